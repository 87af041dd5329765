# Writes SOURCE, a C++ file with the bytes of HTML.

file(READ ${HTML} bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes ${bytes})
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes ${bytes})
file(WRITE ${SOURCE} "#include \"server/page.h\"

namespace imago::server {

namespace {

constexpr char kPage[] = {
${bytes}};

}  // namespace

std::string_view page() { return {kPage, sizeof kPage}; }

}  // namespace imago::server
")
