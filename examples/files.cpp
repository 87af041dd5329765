// A model file written, converted and looked into: an example of docs/api.md.
//
//   example_files FOLDER

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "imago/files.h"
#include "imago/models.h"

using namespace imago;

int main(int, char** argv) {
  const std::string folder = argv[1], plain = folder + "/plain.safetensors", small = folder + "/small.gguf";
  const std::vector<std::pair<std::string, Tensor<float>>> tensors = {
      {"bias", Tensor<float>({512}, std::vector<float>(512, 0.5f))},
      {"matrix", Tensor<float>({64, 512}, std::vector<float>(64 * 512, 0.25f))}};
  save_safetensors(plain, tensors);

  ConvertOptions options;
  options.type = BlockFormat::q4_k;
  convert_model(plain, small, options);

  for (const TensorSummary& tensor : inspect_model(small).tensors) {
    std::printf("%-7s %-5s %llu bytes\n", tensor.name.c_str(), tensor.type.c_str(),
                static_cast<unsigned long long>(tensor.bytes));
  }
  try {
    inspect_model(folder + "/absent.gguf");
  } catch (const IoError& error) {  // a type for each kind of failure, and a text that names the file
    std::printf("as expected: %s\n", error.what());
  }
}
