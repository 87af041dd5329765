#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <span>

#include "files/tensor_file.h"
#include "imago/error.h"
#include "imago/files.h"
#include "imago/models.h"
#include "models/traits.h"
#include "testing/original_decoder.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago::convert {
namespace {

class NetworkConversion : public ::testing::Test {
 protected:
  NetworkConversion() {
    std::vector<Layer> layers;
    layers.push_back(dense(64, 96, Activation::relu));
    layers.push_back(rms_norm(96));
    layers.push_back(dense(96, 32));
    Network network(std::move(layers), 7);
    save_network(network, file("net.json"));
  }
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string bytes_of(const std::string& name) const {
    std::ifstream in(file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static ConvertOptions to(Format format) {
    ConvertOptions options;
    options.type = format;
    return options;
  }
  testing::TempDir folder_;
};

TEST_F(NetworkConversion, TypesAreThoseOfMorphNetwork) {
  for (const DTypeInfo& dtype : kDTypes) {
    ConvertOptions options = to(dtype.id);
    options.calibrator = Calibrator::absmax;
    options.measure_error = true;
    const ConvertReport report = convert_model(file("net.json"), file("out.json"), options);
    Network wanted = load_network(file("net.json"));
    morph_network(wanted, dtype.id);
    EXPECT_EQ(serialize_network(load_network(file("out.json"))), serialize_network(wanted)) << dtype.name;
    EXPECT_EQ(report.tensors.size(), 3u);
    EXPECT_EQ(report.from, FileForm::checkpoint);
    EXPECT_EQ(report.tensors.at(0).to_type, dtype.name);
    if (dtype.id == DType::int8) {
      ASSERT_TRUE(report.relative_rmse);
      EXPECT_GT(*report.relative_rmse, 1e-4);
      EXPECT_LT(*report.relative_rmse, 0.02);
    }
  }
}

TEST_F(NetworkConversion, ScalesAreTheBestUnlessAskedForOtherwise) {
  for (const DType dtype : {DType::int8, DType::int4, DType::int2, DType::ternary, DType::fp4, DType::binary}) {
    ConvertOptions options = to(dtype);
    options.measure_error = true;
    const ConvertReport best = convert_model(file("net.json"), file("out.json"), options);
    EXPECT_EQ(best.calibrator, Calibrator::mse);
    options.calibrator = Calibrator::absmax;
    const ConvertReport widest = convert_model(file("net.json"), file("out.json"), options);
    EXPECT_EQ(widest.calibrator, Calibrator::absmax);
    EXPECT_LE(*best.relative_rmse, *widest.relative_rmse) << name(dtype);
    EXPECT_LT(*best.relative_rmse, (dtype == DType::ternary ? 0.8 : 1.0001) * *widest.relative_rmse);
    // What was written by absmax keeps its scales.
    const ConvertReport again = convert_model(file("out.json"), file("again.json"), to(dtype));
    EXPECT_TRUE(bytes_of("again.json") == bytes_of("out.json")) << name(dtype);
    EXPECT_FALSE(again.calibrator);
  }
}

TEST_F(NetworkConversion, ZeroPointsTravelThroughEveryForm) {
  save_network(Network(layer_list(dense(64, 96, Activation::relu), dense(96, 32)), 7), file("net.json"));
  for (const DType dtype : {DType::uint8, DType::uint2}) {
    for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::group}) {
      ConvertOptions options = to(dtype);
      options.granularity = granularity;
      options.measure_error = true;
      const ConvertReport report = convert_model(file("net.json"), file("first.json"), options);
      const Format with_sign = dtype == DType::uint8 ? DType::int8 : DType::int2;
      options.type = with_sign;
      const ConvertReport other = convert_model(file("net.json"), file("signed.json"), options);
      EXPECT_LE(*report.relative_rmse, 1.05 * *other.relative_rmse) << name(dtype);
      EXPECT_NE(bytes_of("first.json").find(granularity == Granularity::tensor ? "\"zero_point\"" : "\"zeros\""),
                std::string::npos);
      EXPECT_EQ(bytes_of("signed.json").find("\"zero"), std::string::npos) << "only where it is used";
      std::string last = "first.json";
      for (const char* form : {"a.entity", "b.safetensors", "c.gguf", "d.json"}) {
        convert_model(file(last), file(form));
        last = form;
      }
      EXPECT_TRUE(bytes_of("d.json") == bytes_of("first.json")) << name(dtype);
    }
  }
}

TEST_F(NetworkConversion, WithoutZeroPointsTheFileIsAsTheOriginalWritesIt) {
  ConvertOptions options = to(DType::uint8);
  options.zero_points = false;
  convert_model(file("net.json"), file("out.json"), options);
  EXPECT_EQ(bytes_of("out.json").find("\"zero"), std::string::npos);
  const Network network = load_network(file("out.json"));
  for (const float weight : network.layers()[0].weights->master()) EXPECT_GE(weight, 0);
}

TEST_F(NetworkConversion, ReportsCountWhatTheFilesHold) {
  const ConvertReport entity = convert_model(file("net.json"), file("i4.entity"), to(DType::int4));
  // Inspecting leaves out the scale of a tensor where the header has it: one per layer in int4.
  EXPECT_EQ(entity.to_bytes, inspect_model(file("i4.entity")).bytes + 2 * sizeof(float));
  EXPECT_EQ(entity.tensors.at(1).to_type, "float32") << "a norm";
  convert_model(file("net.json"), file("i4.json"), to(DType::int4));
  for (const char* out : {"i4.gguf", "i4.safetensors"}) {
    const ConvertReport report = convert_model(file("i4.json"), file(out));
    EXPECT_EQ(report.from_bytes, inspect_model(file("i4.json")).bytes + 3 * sizeof(float)) << out;
    EXPECT_EQ(report.to_bytes, inspect_model(file(out)).bytes) << out;
    EXPECT_EQ(report.tensors.at(0).from_type, "int4") << out;
  }
}

TEST_F(NetworkConversion, WishesThatAreNotFulfilledAreNoted) {
  const ConvertReport report = convert_model(file("net.json"), file("out.gguf"), to(BlockFormat::q4_k));
  const auto notes = [](const ConvertReport& from) {
    std::string all;
    for (const std::string& note : from.notes) all += note + "\n";
    return all;
  };
  EXPECT_NE(notes(report).find("1 of 3 tensors have rows of 64, which fit no block of the type asked for: they are "
                               "q5_0"),
            std::string::npos)
      << notes(report);
  EXPECT_EQ(notes(convert_model(file("net.json"), file("out.gguf"), to(BlockFormat::q8_0))).find("fit no block"),
            std::string::npos);
  convert_model(file("net.json"), file("i4.json"), to(DType::int4));
  const std::string grown = notes(convert_model(file("i4.json"), file("i4.gguf")));
  EXPECT_EQ(grown.find("grew"), std::string::npos) << "codes of a network stay as they are: " << grown;
}

TEST_F(NetworkConversion, EveryFormComesBack) {
  convert_model(file("net.json"), file("net.entity"));
  convert_model(file("net.entity"), file("back.json"));
  EXPECT_EQ(serialize_network(load_network(file("back.json"))), serialize_network(load_network(file("net.json"))));
  convert_model(file("net.json"), file("bag.safetensors"));
  convert_model(file("net.json"), file("bag.gguf"));
  const Network network = load_network(file("net.json"));
  for (const char* name : {"bag.safetensors", "bag.gguf"}) {
    const files::TensorFile bag = files::TensorFile::open(file(name));
    ASSERT_EQ(bag.tensors().size(), 3u);
    const files::StoredTensor& tensor = bag.require("layers.2");
    EXPECT_EQ(tensor.shape, (Shape{32, 96}));
    std::vector<float> values(tensor.shape.elements());
    files::decode_tensor(tensor, 0, values);
    const auto master = network.layers()[2].weights->master();
    EXPECT_EQ(values, std::vector<float>(master.begin(), master.end()));
  }
  const ConvertReport report = convert_model(file("net.json"), file("bag.gguf"), to(BlockFormat::q8_0));
  EXPECT_EQ(report.tensors.at(0).to_type, "q8_0");
  EXPECT_EQ(report.tensors.at(0).shape, (Shape{96, 64}));
}

/// All that is hard to carry: layers in layers, packed types, scales per row, a layer that no language model has.
Network odd_network() {
  Network network(layer_list(with_dtype(dense(8, 6), DType::int4), rnn(6, 6, 2),
                             sequential(layer_list(with_dtype(dense(6, 6), DType::binary), residual()))),
                  3);
  network.layers()[0].config.granularity = Granularity::row;
  return network;
}

TEST_F(NetworkConversion, EveryPathThroughTwoFormsComesBackByteForByte) {
  save_network(odd_network(), file("odd.json"));
  const std::string forms[] = {"json", "entity", "safetensors", "gguf"};
  for (const std::string& first : forms) {
    convert_model(file("odd.json"), file("a." + first));
    for (const std::string& second : forms) {
      const ConvertReport report = convert_model(file("a." + first), file("b." + second));
      EXPECT_EQ(report.tensors.at(0).to_type, "int4");
      EXPECT_EQ(report.tensors.at(0).to_bytes, 8u * 6 / 2 + 6 * 4);
      EXPECT_TRUE(report.notes.empty());
      convert_model(file("b." + second), file("back.json"));
      EXPECT_TRUE(bytes_of("back.json") == bytes_of("odd.json")) << first << ", " << second;
    }
  }
}

TEST_F(NetworkConversion, TypesAreTheSameInEveryForm) {
  for (const DTypeInfo& dtype : kDTypes) {
    convert_model(file("net.json"), file("wanted.json"), to(dtype.id));
    for (const char* form : {"a.safetensors", "a.gguf"}) {
      convert_model(file("net.json"), file(form), to(dtype.id));
      convert_model(file(form), file("back.json"));
      EXPECT_TRUE(bytes_of("back.json") == bytes_of("wanted.json")) << dtype.name << " " << form;
    }
  }
}

/// Layers with one matrix and with several, biases and a norm; rows fit every block.
Network block_network() {
  Network network(
      layer_list(dense(256, 8), rms_norm(8), swiglu(256, 256), attention({.width = 256, .heads = 2, .kv_heads = 1}),
                 sequential(layer_list(lstm(256, 256, 1)))),
      5);
  for (Layer& layer : network.layers()) {
    if (layer.weights) layer.weights->randomize(11, 0.3f);
  }
  return network;
}

TEST_F(NetworkConversion, BlocksAreTheSameInEveryForm) {
  save_network(block_network(), file("net.json"));
  for (const BlockFormatInfo& block : kBlockFormats) {
    if (!block.in_gguf()) continue;
    Network wanted = load_network(file("net.json"));
    morph_network(wanted, block.id);
    save_network(wanted, file("wanted.json"));
    for (const std::string form : {"a.json", "a.entity", "a.safetensors", "a.gguf"}) {
      // The original's files have a q4_0 of their own for what decoders consist of.
      const bool own = form == "a.entity" && block.id == BlockFormat::q4_0;
      ConvertOptions options = to(block.id);
      options.measure_error = true;
      const ConvertReport report = convert_model(file("net.json"), file(form), options);
      for (const std::size_t i : {0, 2, 3, 4}) {
        EXPECT_EQ(report.tensors.at(i).to_type, own && (i == 2 || i == 3) ? "entity_q4_0" : block.name) << form;
        const double error = report.tensors.at(i).relative_rmse.value_or(-1);
        EXPECT_TRUE(error > 0 && error < 0.8) << form << ", " << block.name << ": " << error;
      }
      EXPECT_EQ(report.tensors.at(1).to_type, "float32") << "vectors stay wide";
      convert_model(file(form), file("back.json"));
      if (own) {
        EXPECT_EQ(load_network(file("back.json")).layers()[2].config.dtype, BlockFormat::entity_q4_0);
        continue;
      }
      EXPECT_TRUE(bytes_of("back.json") == bytes_of("wanted.json")) << block.name << " " << form;
      EXPECT_EQ(inspect_model(file(form)).bytes, report.to_bytes) << form;
    }
  }
}

TEST_F(NetworkConversion, BlocksPassThroughAnyTwoForms) {
  for (const Format type : {Format(BlockFormat::q4_0), Format(BlockFormat::q5_k), Format(BlockFormat::entity_q4_0)}) {
    Network network = block_network();
    morph_network(network, type);
    save_network(network, file("blocks.json"));
    for (const std::string first : {"json", "entity", "safetensors", "gguf"}) {
      convert_model(file("blocks.json"), file("a." + first));
      for (const std::string second : {"json", "entity", "safetensors", "gguf"}) {
        const ConvertReport report = convert_model(file("a." + first), file("b." + second));
        EXPECT_EQ(report.tensors.at(2).to_type, type.name());
        EXPECT_EQ(report.to_bytes, report.from_bytes);
        convert_model(file("b." + second), file("back.json"));
        EXPECT_TRUE(bytes_of("back.json") == bytes_of("blocks.json")) << type.name() << " " << first << ", " << second;
      }
    }
    // And out of blocks again.
    convert_model(file("blocks.json"), file("wide.json"), to(DType::float32));
    const Network wide = load_network(file("wide.json"));
    EXPECT_EQ(wide.layers()[2].config.dtype, DType::float32);
    EXPECT_EQ(wide.layers()[2].weights->active(DType::float32), network.layers()[2].weights->active(type));
  }
}

TEST_F(NetworkConversion, LayersThatFitNoBlockKeepTheirType) {
  save_network(Network(layer_list(dense(10, 4), dense(64, 4), swiglu(96, 64)), 3), file("net.json"));
  const ConvertReport report = convert_model(file("net.json"), file("out.json"), to(BlockFormat::q3_k));
  EXPECT_EQ(report.tensors.at(0).to_type, "float32");
  EXPECT_EQ(report.tensors.at(1).to_type, "q4_0");
  EXPECT_EQ(report.tensors.at(2).to_type, "q4_0") << "rows of 96 and of 64";
  ASSERT_EQ(report.notes.size(), 3u);
  EXPECT_NE(report.notes[0].find("rows of 10, which fit no block of the type asked for: they are float32"),
            std::string::npos)
      << report.notes[0];
  ConvertOptions pure = to(BlockFormat::q3_k);
  pure.pure = true;
  EXPECT_EQ(convert_model(file("net.json"), file("out.json"), pure).tensors.at(1).to_type, "float32");
}

TEST_F(NetworkConversion, TensorsInBlocksBecomeLayersInBlocks) {
  SafetensorsWriter writer(file("bag.safetensors"), {{"fc.weight", SafetensorsType::f32, {4, 64}}});
  writer.write("fc.weight", std::vector<float>(4 * 64, 0.5f));
  writer.commit();
  convert_model(file("bag.safetensors"), file("bag.gguf"), to(BlockFormat::q8_0));
  convert_model(file("bag.gguf"), file("out.json"));
  const Network network = load_network(file("out.json"));
  EXPECT_EQ(network.layers()[0].config.dtype, BlockFormat::q8_0);
}

/// What the target of a conversion turned out to be.
std::string kind_of(const std::string& in, const std::string& out) {
  try {
    convert_model(in, out);
  } catch (const UnsupportedError&) {
    return "refused";
  }
  if (std::filesystem::is_directory(out)) {
    return std::filesystem::exists(out + "/config.json") ? "language model" : "tensors";
  }
  if (holds_network(out)) return "network";
  const files::TensorFile file = files::TensorFile::open(out);
  return file.gguf() != nullptr && file.gguf()->find("general.architecture") != nullptr ? "language model" : "tensors";
}

TEST_F(NetworkConversion, TheTableOfAllPairsIsTrue) {
  const auto folder = testing::find_torch_model("llama_tied_f32");
  ASSERT_TRUE(folder) << testing::missing_torch_model("llama_tied_f32");
  for (const char* form : {"n.json", "n.entity", "n.safetensors", "n.gguf"}) save_network(odd_network(), file(form));
  convert_model(*folder, file("l.json"));
  SafetensorsWriter writer(file("t.safetensors"), {{"fc.weight", SafetensorsType::f32, {16, 8}}});
  writer.write("fc.weight", std::vector<float>(16 * 8, 0.5f));
  writer.commit();
  convert_model(file("t.safetensors"), file("t.gguf"));
  convert_model(*folder, file("m.gguf"));
  const std::pair<std::string, std::string> sources[] = {{"network `.json`", file("n.json")},
                                                         {"network `.entity`", file("n.entity")},
                                                         {"network `.safetensors`", file("n.safetensors")},
                                                         {"network `.gguf`", file("n.gguf")},
                                                         {"network that is a language model", file("l.json")},
                                                         {"tensors `.safetensors`", file("t.safetensors")},
                                                         {"tensors `.gguf`", file("t.gguf")},
                                                         {"language model, folder", *folder},
                                                         {"language model `.gguf`", file("m.gguf")}};
  std::string table = "| from | `.json` | `.entity` | `.safetensors` | `.gguf` | folder |\n|---|---|---|---|---|---|\n";
  for (const auto& [what, path] : sources) {
    table += "| " + what + " |";
    for (const char* target : {"out.json", "out.entity", "out.safetensors", "out.gguf", "out/"}) {
      table += " " + kind_of(path, file(target)) + " |";
      std::filesystem::remove_all(file(target));
    }
    table += "\n";
  }
  std::ifstream page(IMAGO_TEST_DATA "/../../docs/convert.md");
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  EXPECT_NE(text.find(table), std::string::npos) << "docs/convert.md should have\n" << table;
}

TEST_F(NetworkConversion, AFolderIsRefusedWithTheReason) {
  save_network(odd_network(), file("odd.json"));
  try {
    convert_model(file("odd.json"), file("folder"));
    ADD_FAILURE();
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("layers.1 is of type RNN"), std::string::npos) << error.what();
  }
}

TEST_F(NetworkConversion, ADecoderIsTheSameOutOfBothForms) {
  // llama: rows of q and k are in another order in GGUF. qwen2: biases. qwen3: norms of q and k.
  for (const std::string model : {"llama_tied_f32", "llama_untied_bf16", "qwen2_bias_f32", "qwen3_qknorm_f32"}) {
    const auto folder = testing::find_torch_model(model);
    ASSERT_TRUE(folder) << testing::missing_torch_model(model);
    convert_model(*folder, file("m.gguf"));
    for (const char* form : {".json", ".entity"}) {
      const ConvertReport direct = convert_model(*folder, file(std::string("direct") + form));
      const ConvertReport report = convert_model(file("m.gguf"), file(std::string("by_gguf") + form));
      EXPECT_EQ(report.from, FileForm::gguf);
      EXPECT_EQ(report.notes, direct.notes);
      EXPECT_TRUE(bytes_of(std::string("by_gguf") + form) == bytes_of(std::string("direct") + form)) << model << form;
    }
  }
  // The rows were in another order, so a plain copy would have been seen.
  const auto query_of = [](const std::string& path, const std::string& name) {
    const files::TensorFile opened = files::TensorFile::open(path);
    std::vector<float> values(opened.require(name).shape.elements());
    files::decode_tensor(opened.require(name), 0, values);
    return values;
  };
  const std::string llama = *testing::find_torch_model("llama_tied_f32");
  convert_model(llama, file("m.gguf"));
  EXPECT_NE(query_of(llama, "model.layers.0.self_attn.q_proj.weight"), query_of(file("m.gguf"), "blk.0.attn_q.weight"));
}

TEST_F(NetworkConversion, WhatLayersOfADecoderCannotDoIsRefusedInGgufToo) {
  for (const auto& [model, words] : {std::pair("gemma2_softcap_f32", "softcapping"), std::pair("granite_f32", "multip"),
                                     std::pair("qwen3_moe_f32", "4 experts")}) {
    const auto folder = testing::find_torch_model(model);
    ASSERT_TRUE(folder) << testing::missing_torch_model(model);
    convert_model(*folder, file("m.gguf"));
    try {
      convert_model(file("m.gguf"), file("out.json"));
      ADD_FAILURE() << model;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }
  SafetensorsWriter writer(file("bag.safetensors"), {{"w", SafetensorsType::f32, {2, 2}}});
  writer.write("w", std::vector<float>(4, 1));
  writer.commit();
  convert_model(file("bag.safetensors"), file("bag.gguf"));
  EXPECT_THROW(convert_model(file("bag.gguf"), file("out.json")), Error) << "no decoder";
}

/// A folder as float32, tensor by tensor.
std::map<std::string, std::vector<float>> tensors_of(const std::string& path) {
  std::map<std::string, std::vector<float>> found;
  const files::TensorFile file = files::TensorFile::open(path);
  for (const files::StoredTensor& tensor : file.tensors()) {
    std::vector<float> values(tensor.shape.elements());
    files::decode_tensor(tensor, 0, values);
    found[tensor.name] = std::move(values);
  }
  return found;
}

TEST_F(NetworkConversion, ALanguageModelComesBackFromEveryFormOfNetwork) {
  for (const std::string model : {"llama_tied_f32", "llama_untied_bf16", "phi3_fused_f32", "qwen2_bias_f32",
                                  "qwen3_qknorm_f32", "smollm3_nope_f32"}) {
    const auto folder = testing::find_torch_model(model);
    if (!folder) continue;
    const files::TensorFile wanted = files::TensorFile::open(*folder);
    for (const std::string form : {"m.json", "m.entity", "m.safetensors", "m.gguf"}) {
      std::filesystem::remove_all(file("back"));
      ConvertReport report = convert_model(*folder, file("first.entity"));
      EXPECT_TRUE(report.notes.empty()) << report.notes.front();
      convert_model(file("first.entity"), file(form));
      report = convert_model(file(form), file("back/"));
      EXPECT_TRUE(report.notes.empty()) << report.notes.front();
      EXPECT_TRUE(tensors_of(file("back")) == tensors_of(*folder)) << model << " " << form;
      const files::TensorFile back = files::TensorFile::open(file("back"));
      EXPECT_EQ(models::read_traits(back), models::read_traits(wanted)) << model << " " << form;
      for (const files::StoredTensor& tensor : wanted.tensors()) {  // norms are float32 in networks
        if (tensor.shape.rank() < 2) continue;
        EXPECT_EQ(back.require(tensor.name).type, tensor.type) << tensor.name;
      }
    }
  }
}

TEST_F(NetworkConversion, AMorphedNetworkComesBackWithItsCodes) {
  const auto folder = testing::find_torch_model("llama_tied_f32");
  ASSERT_TRUE(folder) << testing::missing_torch_model("llama_tied_f32");
  ConvertOptions options;
  options.tensor_types = {{"^layers\\.2\\..*layers\\.1$", DType::int4}};  // attention and SwiGLU of the second block
  convert_model(*folder, file("m.json"), options);
  convert_model(file("m.json"), file("back/"));
  const files::TensorFile back = files::TensorFile::open(file("back"));
  EXPECT_EQ(back.require("model.layers.0.mlp.up_proj.weight").type, "F32");
  const files::StoredTensor& up = back.require("model.layers.1.mlp.up_proj.weight");
  EXPECT_EQ(up.type, "int4");
  const Network network = load_network(file("m.json"));
  const Layer& swiglu = network.layers()[2].sub_layers[2].sub_layers[1];
  const std::vector<float> all = swiglu.weights->active(swiglu.config.scheme());
  std::vector<float> values(up.shape.elements());
  files::decode_tensor(up, 0, values);
  EXPECT_TRUE(std::ranges::equal(values, std::span(all).subspan(values.size(), values.size())));
}

TEST_F(NetworkConversion, ADecoderOfTheOriginalStaysOneInItsOwnFormAndIsWholeInOthers) {
  const auto folder = testing::find_torch_model("llama_tied_f32");
  ASSERT_TRUE(folder) << testing::missing_torch_model("llama_tied_f32");
  convert_model(*folder, file("whole.json"));
  testing::write_original_decoder(file("d.entity"), load_network(file("whole.json")), true);
  convert_model(file("d.entity"), file("copy.entity"));
  EXPECT_TRUE(bytes_of("copy.entity") == bytes_of("d.entity"));
  EXPECT_EQ(load_network(file("d.entity")).layers().size(), 8u);
  for (const char* name : {"out.json", "out.safetensors", "out.gguf"}) {
    const ConvertReport report = convert_model(file("d.entity"), file(name));
    EXPECT_TRUE(report.notes.empty()) << report.notes.front();
    Network out = load_network(file(name)), whole = load_network(file("whole.json"));
    const Tensor<float> ids({5}, {1, 7, 2, 200, 7});
    EXPECT_TRUE(std::ranges::equal(out.forward(ids).values(), whole.forward(ids).values())) << name;
  }
  convert_model(file("d.entity"), file("back/"));
  EXPECT_TRUE(tensors_of(file("back")) == tensors_of(*folder));
}

TEST_F(NetworkConversion, ScalesSitWhereTheyAreAskedForAndAreFoundAsAskedFor) {
  ConvertOptions options = to(DType::int4);
  options.granularity = Granularity::row;
  options.calibrator = Calibrator::mse;
  convert_model(file("net.json"), file("out.json"), options);
  const Network before = load_network(file("net.json")), after = load_network(file("out.json"));
  Scheme scheme(DType::int4);
  scheme.granularity = Granularity::row;
  scheme.calibrator = Calibrator::mse;
  EXPECT_EQ(after.layers()[0].config.granularity, Granularity::row);
  EXPECT_EQ(after.layers()[0].weights->active(after.layers()[0].config.scheme()),
            before.layers()[0].weights->active(scheme));
}

TEST_F(NetworkConversion, ARequestForTheSchemeOfALayerKeepsItsCodes) {
  ConvertOptions options = to(DType::int8);
  options.granularity = Granularity::row;
  options.calibrator = Calibrator::mse;
  convert_model(file("net.json"), file("mse.json"), options);
  options.calibrator = Calibrator::absmax;  // a file does not say how its scales were found
  const ConvertReport report = convert_model(file("mse.json"), file("again.json"), options);
  EXPECT_TRUE(bytes_of("again.json") == bytes_of("mse.json"));
  EXPECT_EQ(report.tensors.at(0).from_type, "int8");
  EXPECT_EQ(report.tensors.at(0).from_bytes, report.tensors.at(0).to_bytes);
  options.granularity = Granularity::tensor;
  convert_model(file("mse.json"), file("again.json"), options);
  EXPECT_FALSE(bytes_of("again.json") == bytes_of("mse.json"));
}

TEST_F(NetworkConversion, PatternsArePaths) {
  ConvertOptions options;
  options.tensor_types = {{"layers\\.2$", DType::fp8e4m3}};
  const ConvertReport report = convert_model(file("net.json"), file("out.json"), options);
  EXPECT_EQ(report.tensors.at(0).to_type, "float32");
  EXPECT_EQ(report.tensors.at(2).to_type, "fp8e4m3");
  EXPECT_EQ(load_network(file("out.json")).layers()[2].config.dtype, DType::fp8e4m3);
}

TEST_F(NetworkConversion, WhatCannotBeIsRefused) {
  EXPECT_THROW(convert_model(file("net.json"), file("folder")), UnsupportedError);
  EXPECT_FALSE(std::filesystem::exists(file("folder")));
  Network network = load_network(file("net.json"));
  network.layers()[0].weights->edit_master()[3] = std::numeric_limits<float>::quiet_NaN();
  save_network(network, file("nan.entity"));
  EXPECT_THROW(convert_model(file("nan.entity"), file("out.safetensors")), FormatError);
  ConvertOptions allowed;
  allowed.allow_nonfinite = true;
  EXPECT_NO_THROW(convert_model(file("nan.entity"), file("out.safetensors"), allowed));
}

TEST_F(NetworkConversion, TensorsBecomeLayers) {
  SafetensorsWriter writer(file("bag.safetensors"), {{"fc.weight", SafetensorsType::f32, {16, 8}}});
  std::vector<float> values(16 * 8);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>(i) - 0.5f;
  writer.write("fc.weight", std::span<const float>(values));
  writer.commit();
  convert_model(file("bag.safetensors"), file("made.json"));
  const Network made = load_network(file("made.json"));
  ASSERT_EQ(made.layers().size(), 1u);
  EXPECT_EQ(made.layers()[0].config.type, LayerType::dense);
  const auto master = made.layers()[0].weights->master();
  EXPECT_EQ(std::vector<float>(master.begin(), master.end()), values);
  const ConvertReport report = convert_model(file("bag.safetensors"), file("made8.entity"), to(DType::int8));
  EXPECT_EQ(report.tensors.at(0).to_type, "int8");
  EXPECT_EQ(load_network(file("made8.entity")).layers()[0].config.dtype, DType::int8);
}

TEST_F(NetworkConversion, ADryRunWritesNothing) {
  ConvertOptions options = to(DType::int8);
  options.dry_run = true;
  const ConvertReport report = convert_model(file("net.json"), file("out.json"), options);
  EXPECT_EQ(report.tensors.at(0).to_bytes, 64u * 96 + 4);
  EXPECT_FALSE(std::filesystem::exists(file("out.json")));
}

}  // namespace
}  // namespace imago::convert
