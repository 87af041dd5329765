# One target per module. DEPENDS and HEADERS are the architecture: tests/layering compares every #include with them.

set_property(GLOBAL PROPERTY IMAGO_MODULES "")

# Each run of tests leaves its results in this folder, for tests/summary.sh.
set(IMAGO_TEST_RESULTS ${PROJECT_BINARY_DIR}/tests/results)

# Seconds a test may take: far more than any does, and an emulator is some thirty times slower.
if(CMAKE_CROSSCOMPILING)
  set(IMAGO_TEST_SECONDS 1800)
else()
  set(IMAGO_TEST_SECONDS 300)
endif()

# imago_module(NAME [ALONE] [HEADERS h.h ...] SOURCES a.cpp ... DEPENDS x y ... TESTS a_test.cpp ... [APART b.cpp ...])
#
# HEADERS: the public headers, in include/imago, whose declarations this module implements. Including one counts as
# including the module.
# With IMAGO_UNITY a dozen sources of a module are compiled as one. Names inside a file may then meet those of its
# neighbours: sources and tests named in APART, or all sources with ALONE, are compiled by themselves.
function(imago_module NAME)
  cmake_parse_arguments(ARG "ALONE" "" "HEADERS;SOURCES;DEPENDS;TESTS;APART" ${ARGN})
  add_library(imago_${NAME} OBJECT ${ARG_SOURCES})
  if(IMAGO_UNITY AND NOT ARG_ALONE)
    set_target_properties(imago_${NAME} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
    # GCC takes a type of an unnamed namespace for one of a header when the file is included.
    target_compile_options(imago_${NAME} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
  set_source_files_properties(${ARG_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_include_directories(imago_${NAME} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(imago_${NAME} PRIVATE imago_flags fmt::fmt Threads::Threads)
  set_property(GLOBAL APPEND PROPERTY IMAGO_MODULES ${NAME})
  set_property(GLOBAL PROPERTY IMAGO_DEPENDS_${NAME} "${ARG_DEPENDS}")
  set_property(GLOBAL PROPERTY IMAGO_HEADERS_${NAME} "${ARG_HEADERS}")
  set_property(GLOBAL PROPERTY IMAGO_TESTS_${NAME} "${ARG_TESTS}")
  set_property(GLOBAL PROPERTY IMAGO_APART_${NAME} "${ARG_APART}")
  set_property(GLOBAL PROPERTY IMAGO_SOURCE_DIR_${NAME} "${CMAKE_CURRENT_SOURCE_DIR}")
endfunction()

# imago_isa_sources(NAME ISA FLAGS -mavx2 ... SOURCES a.cpp ...): files of a module that alone get instruction-set flags
function(imago_isa_sources NAME ISA)
  cmake_parse_arguments(ARG "" "" "SOURCES;FLAGS" ${ARGN})
  target_sources(imago_${NAME} PRIVATE ${ARG_SOURCES})
  set_source_files_properties(${ARG_SOURCES} PROPERTIES COMPILE_OPTIONS "${ARG_FLAGS};-DNDEBUG")
  set_property(GLOBAL APPEND PROPERTY IMAGO_ISAS ${ISA})
  foreach(source ${ARG_SOURCES})
    string(REGEX REPLACE "([.+])" "[\\1]" pattern ${source})  # tests/sealed looks at the objects of these
    set_property(GLOBAL APPEND PROPERTY IMAGO_ISA_OBJECTS_${ISA}
      "$<FILTER:$<TARGET_OBJECTS:imago_${NAME}>,INCLUDE,/${pattern}[.]>")
  endforeach()
endfunction()

# imago_test(NAME SOURCES ... [LIBS ...] [LABELS ...] [APART ...] [COMMAND ...])
#
# COMMAND: how to start it, if not by itself.
# Compiled as modules are: several sources as one, but those of APART. Most of the time goes into GoogleTest's and the
# standard library's headers, which are then read once.
function(imago_test NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;LABELS;APART;COMMAND" ${ARGN})
  if(NOT ARG_COMMAND)
    set(ARG_COMMAND ${NAME})
  endif()
  add_executable(${NAME} ${ARG_SOURCES})
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  if(IMAGO_UNITY)
    set_target_properties(${NAME} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    set_source_files_properties(${ARG_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  target_link_libraries(${NAME} PRIVATE imago imago_flags imago_testing GTest::gtest_main ${ARG_LIBS})
  add_test(NAME ${NAME} COMMAND ${ARG_COMMAND})
  set_tests_properties(${NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${IMAGO_TEST_SECONDS}
    ENVIRONMENT "GTEST_OUTPUT=xml:${IMAGO_TEST_RESULTS}/${NAME}.xml")
endfunction()

# imago_test_with_plain_kernels(NAME LABEL): runs that test a second time with the plain C++ kernels.
function(imago_test_with_plain_kernels NAME LABEL)
  add_test(NAME ${NAME}@ref COMMAND ${NAME})
  set_tests_properties(${NAME}@ref PROPERTIES
    LABELS ${LABEL} TIMEOUT ${IMAGO_TEST_SECONDS}
    ENVIRONMENT "IMAGO_KERNELS=ref;GTEST_OUTPUT=xml:${IMAGO_TEST_RESULTS}/${NAME}@ref.xml")
endfunction()

# Turns the TESTS of every module into a program; called once the library exists. Those of modules above the kernels run
# a second time with the plain C++ kernels, which sanitizers have seen in the kernels' own tests. A light sanitizer build
# leaves out the tests of modules that see no files: tests/networks runs all of their code there.
function(imago_add_module_tests)
  get_property(modules GLOBAL PROPERTY IMAGO_MODULES)
  foreach(module ${modules})
    if(IMAGO_SANITIZE_LIGHT AND module MATCHES "^(numeric|quant|device|math|layers|network|train)$")
      continue()
    endif()
    get_property(tests GLOBAL PROPERTY IMAGO_TESTS_${module})
    get_property(folder GLOBAL PROPERTY IMAGO_SOURCE_DIR_${module})
    if(IMAGO_SANITIZE)
      list(REMOVE_ITEM tests bench_test.cpp)  # speeds under sanitizers say nothing
    endif()
    if(NOT tests)
      continue()
    endif()
    get_property(apart GLOBAL PROPERTY IMAGO_APART_${module})
    list(TRANSFORM tests PREPEND ${folder}/)
    list(TRANSFORM apart PREPEND ${folder}/)
    imago_test(${module}_test SOURCES ${tests} APART ${apart} LABELS ${module})
    if(module MATCHES "^(base|files|checkpoint|jinja|data|models|guided|convert)$")
      set_target_properties(${module}_test PROPERTIES IMAGO_NOT_OPTIMIZED ON)
    endif()
    if(NOT IMAGO_SANITIZE AND NOT module MATCHES "^(base|numeric|quant|device|kernels)$")
      imago_test_with_plain_kernels(${module}_test ${module})
    endif()
  endforeach()
endfunction()
