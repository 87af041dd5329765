# Httplib: Httplib_FOUND and the target Httplib::Httplib. What it was compiled with decides the layout of its types.

find_path(Httplib_INCLUDE_DIR httplib.h)
find_library(Httplib_LIBRARY cpp-httplib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Httplib REQUIRED_VARS Httplib_LIBRARY Httplib_INCLUDE_DIR)
mark_as_advanced(Httplib_LIBRARY Httplib_INCLUDE_DIR)

if(Httplib_FOUND AND NOT TARGET Httplib::Httplib)
  add_library(Httplib::Httplib UNKNOWN IMPORTED)
  set_target_properties(Httplib::Httplib PROPERTIES IMPORTED_LOCATION ${Httplib_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${Httplib_INCLUDE_DIR}
    INTERFACE_COMPILE_DEFINITIONS "CPPHTTPLIB_OPENSSL_SUPPORT;CPPHTTPLIB_ZLIB_SUPPORT;CPPHTTPLIB_BROTLI_SUPPORT")
endif()
