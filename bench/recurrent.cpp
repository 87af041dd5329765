// Blocks that pass states, beside attention of the same width whose projections are as large: a prompt, and generation
// after a short and after a long text. Models of two blocks with random weights; each pair takes turns.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "files/hugging_face.h"
#include "harness.h"
#include "imago/data.h"
#include "imago/lm.h"
#include "imago/system.h"
#include "models/tensor_layout.h"
#include "models/traits_reading.h"

namespace imago::bench {
namespace {

constexpr std::size_t kWidth = 1024, kPrompt = 2048, kGenerated = 48;
constexpr int kTurns = 7;
constexpr double kPromptTarget = 0.7, kGenerationTarget = 0.9;

/// A model of `config`, in a folder of its own for as long as it takes to load it.
class RandomModel {
 public:
  RandomModel(const std::string& name, const std::string& config)
      : folder_(std::filesystem::temp_directory_path() / fmt::format("imago_bench_recurrent_{}", name)) {
    std::filesystem::create_directories(folder_);
    const std::string text = fmt::format(
        R"({{"hidden_size": {}, "num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 4096, {}}})",
        kWidth, config);
    std::ofstream(folder_ / "config.json") << text;
    const models::Traits traits = models::config_traits(files::JsonFile::parse(text, "config.json"));
    std::vector<std::pair<std::string, Tensor<float>>> tensors;
    models::for_each_tensor(
        traits, models::usual_naming(traits, false), [&](const models::LayoutTensor& tensor, std::size_t) {
          tensors.emplace_back(tensor.name, Tensor<float>(tensor.shape, synthetic_weights(tensor.shape.elements())));
        });
    save_safetensors((folder_ / "model.safetensors").string(), tensors);
    model_.emplace(LanguageModel::load(folder_.string(), {.type = BlockFormat::q8_0}));
  }
  ~RandomModel() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  RandomModel(const RandomModel&) = delete;
  RandomModel& operator=(const RandomModel&) = delete;

  double prompt_seconds() {
    Sequence sequence(*model_, {.context = kPrompt + kGenerated});
    return seconds_of([&] { sequence.append(ids(kPrompt)); });
  }
  /// Seconds for each token after `before` others.
  double token_seconds(std::size_t before) {
    Sequence sequence(*model_, {.context = kPrompt + kGenerated});
    sequence.append(ids(before));
    return seconds_of([&] {
             for (std::size_t i = 0; i < kGenerated; ++i) sequence.append(ids(1));
           }) /
           kGenerated;
  }

 private:
  static std::vector<TokenId> ids(std::size_t count) {
    std::vector<TokenId> made(count);
    for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<TokenId>(i * 7 % 64);
    return made;
  }
  static double seconds_of(const std::function<void()>& body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  std::filesystem::path folder_;
  std::optional<LanguageModel> model_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Attention with so many values of queries and of keys; the feed-forward layer is next to nothing.
std::string attention(std::size_t queries, std::size_t keys) {
  return fmt::format(
      R"("model_type": "llama", "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": 128,
         "intermediate_size": 32, "rms_norm_eps": 1e-5)",
      queries / 128, keys / 128);
}

struct Pair {
  std::string name, recurrent, attention;
};

/// Projections: 6 · width² where a mixer is twice as wide as the stream, 4 · width² for short convolutions.
std::vector<Pair> pairs() {
  const std::string wide = attention(2 * kWidth, kWidth), narrow = attention(kWidth, kWidth);
  const std::string common = R"("num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128,
      "intermediate_size": 32, )";
  return {
      {"delta rule",
       R"("model_type": "qwen3_5_text", "layer_types": ["linear_attention", "linear_attention"],
          "linear_num_value_heads": 16, "linear_num_key_heads": 8, "linear_key_head_dim": 128,
          "linear_value_head_dim": 128, "rms_norm_eps": 1e-6, )" +
           common.substr(0, common.rfind(',')),
       wide},
      {"mamba2", R"("model_type": "mamba2", "num_heads": 32, "head_dim": 64, "n_groups": 1, "state_size": 128)", wide},
      {"mamba", R"("model_type": "mamba", "state_size": 16, "expand": 2)", wide},
      {"short convolution",
       R"("model_type": "lfm2", "layer_types": ["conv", "conv"], "conv_L_cache": 3, )" +
           common.substr(0, common.rfind(',')),
       narrow},
  };
}

int run() {
  fmt::print("width {}, q8_0, {} threads; rates of a block beside attention with projections of the same size\n",
             kWidth, thread_count());
  fmt::print("{:<18} {:>12} {:>12} {:>12} {:>14}\n", "", "prompt, t/s", "attention", "ratio", "2048 : 64");
  bool reached = true;
  for (const Pair& pair : pairs()) {
    RandomModel recurrent("states", pair.recurrent), attends("keys", pair.attention);
    std::vector<double> ours, theirs, ratios, late;
    for (int turn = 0; turn < kTurns; ++turn) {
      ours.push_back(recurrent.prompt_seconds());
      theirs.push_back(attends.prompt_seconds());
      ratios.push_back(theirs.back() / ours.back());
      const double after_few = recurrent.token_seconds(64);
      late.push_back(after_few / recurrent.token_seconds(kPrompt));
    }
    const double ratio = median(ratios), generation = median(late);
    reached = reached && ratio >= kPromptTarget && generation >= kGenerationTarget;
    fmt::print("{:<18} {:>12.0f} {:>12.0f} {:>12.2f} {:>14.2f}\n", pair.name, kPrompt / median(ours),
               kPrompt / median(theirs), ratio, generation);
  }
  fmt::print("target{:>38.2f} {:>14.2f}: {}\n", kPromptTarget, kGenerationTarget, reached ? "reached" : "missed");
  return reached ? 0 : 1;
}

}  // namespace
}  // namespace imago::bench

int main() {
  try {
    return imago::bench::run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "imago_bench_recurrent: error: {}\n", error.what());
    return 1;
  }
}
