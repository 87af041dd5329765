# Answers find_package in cross builds from the sources and headers of the packages that native builds use, so that no
# packages of the other architecture are needed. Given as CMAKE_PROJECT_TOP_LEVEL_INCLUDES by the preset `arm`.

set(IMAGO_HOST_HEADERS /usr/include CACHE PATH "Where the headers of fmt, nlohmann_json and GTest lie")
set(IMAGO_GTEST_SOURCES /usr/src/googletest/googletest CACHE PATH "Sources of GTest")

# A folder with links to these headers only: /usr/include itself would bring the C library of this machine along.
function(imago_link_headers FOLDER)
  if(NOT EXISTS ${IMAGO_HOST_HEADERS}/${FOLDER})
    message(FATAL_ERROR "${IMAGO_HOST_HEADERS}/${FOLDER} is missing; set IMAGO_HOST_HEADERS")
  endif()
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/host-headers)
  file(CREATE_LINK ${IMAGO_HOST_HEADERS}/${FOLDER} ${CMAKE_BINARY_DIR}/host-headers/${FOLDER} SYMBOLIC)
endfunction()

function(imago_header_library TARGET FOLDER)
  imago_link_headers(${FOLDER})
  add_library(${TARGET} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${TARGET} INTERFACE ${CMAKE_BINARY_DIR}/host-headers)
endfunction()

macro(imago_provide_dependency METHOD NAME)
  if("${NAME}" STREQUAL "fmt")
    imago_header_library(fmt::fmt fmt)
    target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY=1)
    set(fmt_FOUND TRUE)
  elseif("${NAME}" STREQUAL "nlohmann_json")
    imago_header_library(nlohmann_json::nlohmann_json nlohmann)
    set(nlohmann_json_FOUND TRUE)
  elseif("${NAME}" STREQUAL "GTest")
    imago_link_headers(gtest)
    add_library(imago_gtest STATIC ${IMAGO_GTEST_SOURCES}/src/gtest-all.cc ${IMAGO_GTEST_SOURCES}/src/gtest_main.cc)
    target_include_directories(imago_gtest SYSTEM PUBLIC ${CMAKE_BINARY_DIR}/host-headers
                                                  PRIVATE ${IMAGO_GTEST_SOURCES})
    target_link_libraries(imago_gtest PUBLIC Threads::Threads)
    add_library(GTest::gtest_main ALIAS imago_gtest)
    set(GTest_FOUND TRUE)
  endif()  # others are looked for in the usual way
endmacro()

cmake_language(SET_DEPENDENCY_PROVIDER imago_provide_dependency SUPPORTED_METHODS FIND_PACKAGE)
