# Flags that every target of the project shares: target_link_libraries(... imago_flags).

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Asserts stay on outside kernels; hot files define NDEBUG themselves. Sanitizers read best where little is inlined.
if(IMAGO_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1")
else()
  set(CMAKE_CXX_FLAGS_RELEASE "-O3")
endif()

# Paths below the checkout count as relative, so that a second clone or worktree finds what the first has compiled.
find_program(IMAGO_CCACHE ccache)
if(IMAGO_CCACHE)
  set(IMAGO_CCACHE ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${IMAGO_CCACHE})
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${IMAGO_CCACHE})
  endif()
endif()
find_program(IMAGO_MOLD mold)
if(IMAGO_MOLD)
  # Not mold 1 (Debian 12 has 1.10): it was seen to loop for ever, and to place the read-only-after-relocation segment so
  # that the loader refused the program ("cannot apply additional memory protection").
  execute_process(COMMAND ${IMAGO_MOLD} --version OUTPUT_VARIABLE IMAGO_MOLD_VERSION)
  if(NOT IMAGO_MOLD_VERSION MATCHES "mold [01]\\.")
    add_link_options(-fuse-ld=mold)
  endif()
endif()

add_library(imago_flags INTERFACE)
set(imago_cxx_options
  -Wall -Wextra -Wpedantic -Wshadow -Wswitch-enum -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual
  $<$<BOOL:${IMAGO_WERROR}>:-Werror>
  # GCC 12 sees overlapping copies in `"a" + string` where there are none (its bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  # Packed bytes must not depend on the machine: no fused multiply-add unless a kernel writes one.
  -ffp-contract=off -fno-math-errno -fno-trapping-math)
target_compile_options(imago_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${imago_cxx_options}>")
# nvcc hands the host part to the C++ compiler after rewriting it, which -Wpedantic and others then complain about.
target_compile_options(imago_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-unused-parameter$<$<BOOL:${IMAGO_WERROR}>:;-Werror=all-warnings>;--expt-relaxed-constexpr>")
if(IMAGO_SANITIZE)
  target_compile_options(imago_flags INTERFACE -fsanitize=${IMAGO_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(imago_flags INTERFACE -fsanitize=${IMAGO_SANITIZE})
endif()
if(IMAGO_FUZZ)
  target_compile_options(imago_flags INTERFACE -fsanitize=fuzzer-no-link)  # coverage; the targets link the driver
endif()
