#pragma once

// A small language model with a tokenizer of one token per byte, for tests that need text.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lm/byte_letters.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago::testing {

class ByteModel {
 public:
  /// Why there is no such model: its reference data are absent.
  static std::optional<std::string> missing() {
    return find_torch_model(kName) ? std::nullopt : std::optional(missing_torch_model(kName));
  }
  ByteModel() {
    const std::filesystem::path source = *find_torch_model(kName);
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::ifstream in(source / file, std::ios::binary);
      folder_.write(file, std::string{std::istreambuf_iterator<char>(in), {}});
    }
    folder_.write("tokenizer.json", tokenizer());
  }
  std::string path() const { return folder_.path().string(); }
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }

  static std::string text(std::size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += "Up betimes, and counted " + std::to_string(text.size()) + " ships. ";
    text.resize(bytes);
    return text;
  }

 private:
  static constexpr const char* kName = "llama3_rope_scaling_f16";

  static std::string tokenizer() {
    using nlohmann::json;
    json vocabulary = json::object();
    for (int byte = 0; byte < 256; ++byte) {
      std::string letter;
      lm::append_utf8(letter, lm::kByteLetters[static_cast<std::size_t>(byte)]);
      vocabulary[letter] = byte;
    }
    return json{{"version", "1.0"},
                {"added_tokens", json::array()},
                {"normalizer", nullptr},
                {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
                {"decoder", {{"type", "ByteLevel"}}},
                {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}}
        .dump();
  }
  TempDir folder_;
};

}  // namespace imago::testing
