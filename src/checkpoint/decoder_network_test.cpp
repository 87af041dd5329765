// Networks that are language models: how they are recognised, and what they become.

#include "checkpoint/decoder_network.h"

#include <gtest/gtest.h>

#include <utility>

#include "imago/error.h"
#include "imago/files.h"
#include "models/open_model.h"
#include "models/traits.h"
#include "testing/original_decoder.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago::checkpoint {
namespace {

Network small_model(int heads = 2) {
  constexpr int kWidth = 16;
  const AttentionShape shape{.width = kWidth, .heads = heads, .rope_base = 500};
  std::vector<Layer> layers = layer_list(embedding(24, kWidth));
  for (int block = 0; block < 2; ++block) {
    layers.push_back(decoder_block(layer_list(rms_norm(kWidth, 1e-5), attention(shape)),
                                   layer_list(rms_norm(kWidth, 1e-5), swiglu(kWidth, 40))));
    layers.back().sub_layers[0].sub_layers[1].config.rms_norm_eps = 1e-5;
  }
  layers.push_back(rms_norm(kWidth, 1e-5));
  layers.push_back(dense(kWidth, 24));
  return Network(std::move(layers), 3);
}

Layer& attention_of(Network& network, std::size_t block = 0) {
  return network.layers()[block + 1].sub_layers[0].sub_layers[1];
}
Layer& swiglu_of(Network& network, std::size_t block = 0) {
  return network.layers()[block + 1].sub_layers[2].sub_layers[1];
}

files::TensorFile model_of(Network network) {
  return checkpoint::model_of(std::make_shared<const Network>(std::move(network)), "net.json");
}

std::vector<float> values_of(const files::TensorFile& file, std::string_view name) {
  std::vector<float> values(file.require(name).shape.elements());
  files::decode_tensor(file.require(name), 0, values);
  return values;
}

TEST(DecoderNetwork, HasTheTraitsAndTensorsOfItsLayers) {
  Network network = small_model();
  attention_of(network).config.max_seq_len = attention_of(network, 1).config.max_seq_len = 77;
  const std::span<const float> master = attention_of(network).weights->master();
  const std::vector<float> key(master.begin() + 256, master.begin() + 512);
  const files::TensorFile file = model_of(std::move(network));
  const models::Traits traits = models::read_traits(file);
  EXPECT_EQ(name(traits.architecture), "llama");
  EXPECT_EQ(traits.blocks, 2u);
  EXPECT_EQ(traits.heads, 2u);
  EXPECT_EQ(traits.vocabulary, 24u);
  EXPECT_EQ(traits.context, 77u);
  EXPECT_EQ(traits.rope_base, 500);
  EXPECT_EQ(traits.norm_eps, 1e-5);
  EXPECT_FALSE(traits.tied_output);
  EXPECT_EQ(values_of(file, "model.layers.0.self_attn.k_proj.weight"), key);
  EXPECT_EQ(file.find("model.layers.0.self_attn.k_proj.bias"), nullptr);
  EXPECT_EQ(file.tensors().size(), 2u * 9 + 3);
}

TEST(DecoderNetwork, IsTiedOnlyIfAlsoTheZeroPointsAgree) {
  const auto is_tied = [](float zero_of_embedding, float zero_of_head) {
    Network network = small_model();
    Layer& table = network.layers().front();
    Layer& head = network.layers().back();
    const std::vector<std::byte> codes(24 * 16, std::byte{130});
    table.config.dtype = head.config.dtype = DType::uint8;
    table.weights->set_loaded(DType::uint8, codes, 0.1f, zero_of_embedding);
    head.weights->set_loaded(DType::uint8, codes, 0.1f, zero_of_head);
    return models::read_traits(model_of(std::move(network))).tied_output;
  };
  EXPECT_TRUE(is_tied(100, 100));
  EXPECT_FALSE(is_tied(100, 120));
}

TEST(DecoderNetwork, NamesTheArchitectureThatFits) {
  const auto architecture = [](Network network) {
    return std::string(name(models::read_traits(model_of(std::move(network))).architecture));
  };
  Network biased = small_model();
  attention_of(biased).weights->edit_master()[4 * 256] = 0.5f;  // the first bias of the queries
  EXPECT_EQ(architecture(std::move(biased)), "qwen2");
  Network all_biased = small_model();
  attention_of(all_biased).weights->edit_master()[4 * 256 + 3 * 16] = 0.5f;  // of the output
  EXPECT_EQ(architecture(std::move(all_biased)), "llama");
  Network normed = small_model();
  for (std::size_t block = 0; block < 2; ++block) {
    attention_of(normed, block).config.q_norm = attention_of(normed, block).config.k_norm = std::vector<float>(8, 1.5f);
  }
  EXPECT_EQ(architecture(normed.copy()), "qwen3");
  for (std::size_t block = 1; block <= 2; ++block) {  // norms after attention and SwiGLU
    for (const std::size_t branch : {0, 2}) {
      std::vector<Layer>& layers = normed.layers()[block].sub_layers[branch].sub_layers;
      std::swap(layers[0], layers[1]);
    }
  }
  EXPECT_EQ(architecture(std::move(normed)), "exaone4");
  Network unturned = small_model();
  attention_of(unturned, 1).config.no_rope = true;
  EXPECT_EQ(architecture(std::move(unturned)), "smollm3");
  Network named = small_model();
  named.id = "mistral";
  EXPECT_EQ(architecture(std::move(named)), "mistral");
}

TEST(DecoderNetwork, TiedMeansTheSameValues) {
  Network network = small_model();
  const auto tie = [&] {
    const std::span<const float> table = network.layers()[0].weights->master();
    network.layers()[4].weights->set_master(table);
  };
  tie();
  const files::TensorFile tied = model_of(network.copy());
  EXPECT_TRUE(models::read_traits(tied).tied_output);
  EXPECT_EQ(tied.find("lm_head.weight"), nullptr);
  network.layers()[4].config.dtype = DType::int8;
  EXPECT_FALSE(models::read_traits(model_of(std::move(network))).tied_output);
}

TEST(DecoderNetwork, PackedMatricesStayPacked) {
  for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::group}) {
    for (const DType dtype : {DType::int8, DType::int4, DType::bfloat16, DType::ternary}) {
      Network network = small_model();
      morph_network(network, dtype);
      for (Layer* layer : {&attention_of(network), &swiglu_of(network)}) {
        layer->config.granularity = granularity;
        if (granularity == Granularity::group) layer->config.group = 32;
      }
      const std::vector<float> wanted = attention_of(network).weights->active(attention_of(network).config.scheme());
      const files::TensorFile file = model_of(std::move(network));
      const files::StoredTensor& value = file.require("model.layers.0.self_attn.v_proj.weight");
      // Rows of 16 share groups of 32: what cannot be cut is decoded.
      const bool cut = granularity != Granularity::group || dtype == DType::bfloat16;
      EXPECT_EQ(value.type, name(cut ? dtype : DType::float32));
      EXPECT_NO_THROW(files::check_values(value));
      EXPECT_EQ(values_of(file, value.name), std::vector<float>(wanted.begin() + 512, wanted.begin() + 768));
    }
  }
}

TEST(DecoderNetwork, WhatIsNoLanguageModelIsRefusedWithTheReason) {
  const auto refused = [](Network network, const std::string& words) {
    try {
      model_of(std::move(network));
      ADD_FAILURE() << "taken, instead of: " << words;
    } catch (const UnsupportedError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  refused(Network(layer_list(dense(4, 4)), 1), "its grid has 1 of the 4 layers");
  refused(Network(layer_list(dense(4, 4), dense(4, 4), dense(4, 4), dense(4, 4)), 1),
          "layers.0 is Dense, not Embedding");
  refused(Network(layer_list(embedding(4, 4), rnn(4, 4, 1)), 1), "layers.1 is of type RNN");
  Network network = small_model();
  network.layers()[1].sub_layers[1] = rms_norm(16);
  refused(std::move(network), "layers.1.sequential_layers.1 is RMSNorm, not Residual");
  network = small_model();
  network.layers()[2].config.is_disabled = true;
  refused(std::move(network), "layers.2 is disabled");
  network = small_model();
  attention_of(network, 1).config.rope_freq_base = 400;
  refused(std::move(network), "in layers.2, sizes or settings differ");
  network = small_model();
  swiglu_of(network).weights->edit_master()[3 * 16 * 40] = 1;
  refused(std::move(network), "SwiGLU has biases");
  network = small_model();
  swiglu_of(network).config.inner_norm = std::vector<float>(40, 1);
  refused(std::move(network), "a norm inside");
  network = small_model(16);  // heads of one value
  refused(std::move(network), "no architecture that imago knows");
  network = small_model();
  network.layers()[3].config.rms_norm_eps = 1e-3;
  refused(std::move(network), "norms differ");
  network = small_model();
  network.layers()[4].weights.reset();
  refused(std::move(network), "layers.4 has no weights");
}

TEST(DecoderNetwork, LayersWithoutBiasesHaveNoneInAnyType) {
  Network network = small_model();
  for (std::size_t block = 0; block < 2; ++block) {
    attention_of(network, block).config.no_bias = swiglu_of(network, block).config.no_bias = true;
  }
  attention_of(network).weights->edit_master()[4 * 256] = 0.5f;  // in the place of a bias
  morph_network(network, DType::binary);                         // which has no zero
  const files::TensorFile file = model_of(std::move(network));
  EXPECT_EQ(name(models::read_traits(file).architecture), "llama");
  EXPECT_EQ(file.find("model.layers.0.self_attn.q_proj.bias"), nullptr);
}

TEST(DecoderNetwork, TheFlatDecodersOfTheOriginalAreModelsToo) {
  const testing::TempDir folder;
  for (const bool tied : {false, true}) {
    Network model = small_model();
    if (tied) model.layers()[4].weights->set_master(model.layers()[0].weights->master());
    const files::TensorFile wanted = model_of(model.copy());
    const std::string path = folder.path() / "original.entity";
    testing::write_original_decoder(path, std::move(model), tied);
    EXPECT_EQ(load_network(path).layers().size(), 8u) << "as before";
    const files::TensorFile file = models::open_model(path);
    EXPECT_EQ(models::read_traits(file), models::read_traits(wanted));
    ASSERT_EQ(file.tensors().size(), wanted.tensors().size());
    for (const files::StoredTensor& tensor : wanted.tensors()) {
      EXPECT_EQ(values_of(file, tensor.name), values_of(wanted, tensor.name)) << tensor.name;
    }
  }
}

TEST(DecoderNetwork, FilesOfTheTokenizerTravelInEveryForm) {
  const testing::TempDir folder;
  Network network = small_model();
  network.files = {{"tokenizer.json", "{\"model\": \"<a> & \\n\"}"}, {"note.txt", "kept"}};
  const std::string text = serialize_network(network);
  for (const char* name : {"n.json", "n.entity", "n.safetensors", "n.gguf"}) {
    const std::string path = folder.path() / name;
    save_network(network, path);
    EXPECT_EQ(serialize_network(load_network(path)), text) << name;
    const auto stored = models::stored_tokenizer(path);
    ASSERT_TRUE(stored && stored->tokenizer()) << name;
    EXPECT_EQ(stored->tokenizer()->text(), network.files[0].second);
    const files::TensorFile model = models::open_model(path);
    EXPECT_EQ(model.folder()->tokenizer()->text(), network.files[0].second);
    EXPECT_EQ(model.folder()->made_of().size(), 2u) << "tokenizer.json and config.json";
  }
}

}  // namespace
}  // namespace imago::checkpoint
