#pragma once

// A small bert that scores pairs of texts, with a WordPiece tokenizer of letters: the reference model with a classifier
// of drawn weights.

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "imago/data.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago::testing {

class CrossEncoder {
 public:
  using Tensors = std::vector<std::pair<std::string, Tensor<float>>>;

  /// Why there is no such model: its reference data are absent.
  static std::optional<std::string> missing() {
    return find_torch_model(kName) ? std::nullopt : std::optional(missing_torch_model(kName));
  }
  CrossEncoder() {
    const std::string bert = *find_torch_model(kName);
    const SafetensorsFile file = SafetensorsFile::open(bert + "/model.safetensors");
    for (const SafetensorsTensor& tensor : file.tensors()) {
      tensors_.emplace_back(tensor.name, file.read_float32(tensor.name));
    }
    Tensor<float> classifier(Shape{1, 64}), bias(Shape{1});
    for (std::size_t i = 0; i < 64; ++i) classifier[i] = std::sin(static_cast<float>(i * i));
    bias[0] = 0.25f;
    tensors_.emplace_back("classifier.weight", std::move(classifier));
    tensors_.emplace_back("classifier.bias", std::move(bias));
    std::ifstream in(bert + "/config.json");
    config_ = nlohmann::json::parse(in);
    config_["architectures"] = {"BertForSequenceClassification"};
    config_["id2label"] = {{"0", "LABEL_0"}};
    folder_.write("tokenizer.json", tokenizer());
    save();
  }

  std::string path() const { return folder_.path().string(); }
  nlohmann::json& config() noexcept { return config_; }
  /// Read as float32; a change takes effect with `save`.
  Tensor<float>& tensor(const std::string& name) {
    for (auto& [known, tensor] : tensors_) {
      if (known == name) return tensor;
    }
    throw std::runtime_error("there is no " + name);
  }
  void save() const {
    folder_.write("config.json", config_.dump());
    save_safetensors((folder_.path() / "model.safetensors").string(), tensors_);
  }

 private:
  static constexpr const char* kName = "bert_bf16";

  static std::string tokenizer() {
    using nlohmann::json;
    json vocabulary = json::object(), added = json::array();
    const auto add = [&](const std::string& token) { vocabulary[token] = vocabulary.size(); };
    for (const char* const special : {"[PAD]", "[CLS]", "[SEP]", "[UNK]"}) {
      added.push_back({{"id", vocabulary.size()}, {"content", special}, {"special", true}});
      add(special);
    }
    for (const char* const prefix : {"", "##"}) {
      for (char letter = 'a'; letter <= 'z'; ++letter) add(std::string(prefix) + letter);
    }
    for (const char* const word : {"ship", "##s", ".", "?", "the"}) {
      if (!vocabulary.contains(word)) add(word);
    }
    const auto piece = [](const char* kind, const char* id, int type) {
      return json{{kind, {{"id", id}, {"type_id", type}}}};
    };
    return json{
        {"version", "1.0"},
        {"added_tokens", added},
        {"normalizer", {{"type", "BertNormalizer"}, {"lowercase", true}, {"handle_chinese_chars", true}}},
        {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
        {"post_processor",
         {{"type", "TemplateProcessing"},
          {"single", {piece("SpecialToken", "[CLS]", 0), piece("Sequence", "A", 0), piece("SpecialToken", "[SEP]", 0)}},
          {"pair",
           {piece("SpecialToken", "[CLS]", 0), piece("Sequence", "A", 0), piece("SpecialToken", "[SEP]", 0),
            piece("Sequence", "B", 1), piece("SpecialToken", "[SEP]", 1)}}}},
        {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}}},
        {"model",
         {{"type", "WordPiece"}, {"unk_token", "[UNK]"}, {"continuing_subword_prefix", "##"}, {"vocab", vocabulary}}}}
        .dump();
  }

  TempDir folder_;
  nlohmann::json config_;
  Tensors tensors_;
};

}  // namespace imago::testing
