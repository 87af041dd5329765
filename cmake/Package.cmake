# A Debian package of all that is installed, by `make deb`. dpkg-shlibdeps finds the libraries the program needs; those
# who compile against the static library need the development packages too, hence the suggestions.

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME imago)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_DESCRIPTION "One float32 master can take any of 21 scalar types or 16 block formats. Networks of layers are
trained and run in them, language models quantized, converted and run from GGUF files and Hugging Face folders. The
program, its manual page and completions, a small language model, and the C++ library with its headers.")
set(CPACK_PACKAGE_CONTACT "imago developers <imago@localhost>")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libfmt-dev, libdnnl-dev, libpcre2-dev, libutf8proc-dev")
include(CPack)
