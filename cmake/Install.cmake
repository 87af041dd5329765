# What `cmake --install` puts where, and the two ways to find it again: find_package(imago) and pkg-config.

include(CMakePackageConfigHelpers)

install(TARGETS imago EXPORT imago-targets)
if(IMAGO_CLI)
  install(TARGETS imago_cli)
  include(InstallProgramFiles)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/imago DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT imago-targets NAMESPACE imago:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/imago)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/imagoConfig.cmake.in ${PROJECT_BINARY_DIR}/imagoConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/imago)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/imagoConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/imagoConfig.cmake ${PROJECT_BINARY_DIR}/imagoConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindOneDNN.cmake ${PROJECT_SOURCE_DIR}/cmake/FindPCRE2.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindUtf8proc.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/imago)

# The prefix is chosen at install time, so the file finds it from where it lies.
file(RELATIVE_PATH IMAGO_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" IMAGO_PC_TO_PREFIX ${IMAGO_PC_TO_PREFIX})
set(IMAGO_PC_LIBS "")
if(OneDNN_FOUND)
  cmake_path(GET OneDNN_LIBRARY PARENT_PATH folder)
  set(IMAGO_PC_LIBS " -L${folder} -ldnnl")
endif()
if(IMAGO_LM)
  string(APPEND IMAGO_PC_LIBS " -lpcre2-8 -lutf8proc")
endif()
if(IMAGO_HAS_CUDA)
  cmake_path(GET CUDA_cudart_static_LIBRARY PARENT_PATH folder)
  string(APPEND IMAGO_PC_LIBS " -L${folder} -lcudart_static -lrt")
endif()
foreach(library ${CMAKE_DL_LIBS})
  string(APPEND IMAGO_PC_LIBS " -l${library}")
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/imago.pc.in ${PROJECT_BINARY_DIR}/imago.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/imago.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
