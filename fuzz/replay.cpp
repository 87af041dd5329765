// Stands in for libFuzzer in normal builds: feeds each file named on the command line, and each file of each folder
// named there, to the target. A folder that does not exist holds nothing.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void replay(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  std::printf("%s: %zu bytes\n", path.c_str(), bytes.size());
  std::fflush(stdout);  // the name must be visible if the target dies on it
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  for (const std::string& path : std::vector<std::string>(argv + 1, argv + argc)) {
    if (std::filesystem::is_directory(path)) {
      for (const auto& entry : std::filesystem::directory_iterator(path)) replay(entry.path());
    } else if (std::filesystem::exists(path)) {
      replay(path);
    }
  }
  LLVMFuzzerTestOneInput(nullptr, 0);
  return 0;
}
