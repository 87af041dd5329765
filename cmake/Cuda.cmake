# The CUDA backend: whether it is built, for which chips, and how its sources join a module.

# GPU code takes longer to compile than everything else, so AUTO builds it only where it can run, or for named chips.
set(IMAGO_CUDA AUTO CACHE STRING
  "Packed weights on NVIDIA GPUs: AUTO (where nvcc is found, and a GPU or IMAGO_CUDA_ARCHITECTURES), ON, OFF")
set_property(CACHE IMAGO_CUDA PROPERTY STRINGS AUTO ON OFF)
set(IMAGO_CUDA_ARCHITECTURES "" CACHE STRING
  "Chips to compile CUDA kernels for; empty: the GPU of this machine, or all if it has none; all: every supported chip")
# 90a: no later chip has the tensor core instructions of Hopper. Later chips get the plain kernels through PTX.
set(imago_all_chips 80-real 89-real 90a-real 90-virtual)

set(IMAGO_HAS_CUDA FALSE)
set(imago_chips ${IMAGO_CUDA_ARCHITECTURES})
if(IMAGO_CUDA AND NOT CMAKE_CROSSCOMPILING)
  if(NOT imago_chips)
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/cuda_architecture.sh --gpu
      OUTPUT_VARIABLE imago_chips OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  if(NOT imago_chips AND IMAGO_CUDA STREQUAL AUTO)
    message(STATUS "No GPU found, so no GPU code is built (IMAGO_CUDA=ON, or make CUDA=ON, builds it)")
  elseif(NOT imago_chips OR imago_chips STREQUAL all)
    set(imago_chips ${imago_all_chips})
  endif()
endif()
if(imago_chips AND IMAGO_CUDA AND NOT CMAKE_CROSSCOMPILING)
  find_program(IMAGO_NVCC nvcc HINTS $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
  mark_as_advanced(IMAGO_NVCC)
  set(problem "nvcc was not found: install the CUDA toolkit, or set CUDA_PATH")
  if(IMAGO_NVCC)
    execute_process(COMMAND ${IMAGO_NVCC} --version OUTPUT_VARIABLE version)
    string(REGEX REPLACE ".*release ([0-9.]+).*" "\\1" version "${version}")
    set(problem "")
    if(version VERSION_LESS 12.0)
      set(problem "${IMAGO_NVCC} belongs to CUDA ${version}; 12.0 or later is needed")
      message(STATUS "No GPU code: ${problem}")
    endif()
  endif()
  if(NOT problem)
    set(CMAKE_CUDA_COMPILER ${IMAGO_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES ${imago_chips})
    if(IMAGO_CCACHE)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${IMAGO_CCACHE})
    endif()
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc can
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    find_package(CUDAToolkit REQUIRED)
    set(IMAGO_HAS_CUDA TRUE)
    message(STATUS "GPU code by CUDA ${CUDAToolkit_VERSION} for ${imago_chips}")
  elseif(NOT IMAGO_CUDA STREQUAL AUTO)
    message(FATAL_ERROR "IMAGO_CUDA is ${IMAGO_CUDA}, but ${problem}")
  endif()
endif()

# imago_cuda_sources(NAME [SOURCES a.cu b.cpp ...] [TESTS c_test.cpp ...]): files of a module for the GPU. C++ files among
# them may include the headers of the CUDA runtime. A build without CUDA leaves them out; functions that the rest of the
# library calls are then defined in src/none. The tests make one program NAME_cuda_test with the label `cuda`; each of them
# must skip where there is no device.
function(imago_cuda_sources NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;TESTS" ${ARGN})
  if(NOT IMAGO_HAS_CUDA)
    return()
  endif()
  if(ARG_SOURCES)
    target_sources(imago_${NAME} PRIVATE ${ARG_SOURCES})
    set_source_files_properties(${ARG_SOURCES} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  target_include_directories(imago_${NAME} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  list(TRANSFORM ARG_TESTS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL APPEND PROPERTY IMAGO_CUDA_TESTS_${NAME} ${ARG_TESTS})
endfunction()

# imago_gpu_test(NAME ...): as imago_test, with the label `cuda`. Skipped as a whole if all of its tests are. One at a time:
# they share the memory of the GPU.
function(imago_gpu_test NAME)
  imago_test(${NAME} ${ARGN} LABELS cuda
    COMMAND ${PROJECT_SOURCE_DIR}/tests/gpu/run.sh $<TARGET_FILE:${NAME}>)
  target_include_directories(${NAME} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  set_tests_properties(${NAME} PROPERTIES SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu)
  add_dependencies(imago_cuda_tests ${NAME})
endfunction()

# Turns the GPU tests of every module into programs; called once the library exists.
function(imago_add_cuda_tests)
  add_custom_target(imago_cuda_tests COMMENT "All tests that need a GPU")
  get_property(modules GLOBAL PROPERTY IMAGO_MODULES)
  foreach(module ${modules})
    get_property(tests GLOBAL PROPERTY IMAGO_CUDA_TESTS_${module})
    if(tests)
      imago_gpu_test(${module}_cuda_test SOURCES ${tests} APART ${tests})
    endif()
  endforeach()
endfunction()
