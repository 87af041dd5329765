// serialize(deserialize(J)) = J for every layer type, dtype and nesting, and the same through `.entity` where the form
// allows it (docs/formats/checkpoint.md).

#include <gtest/gtest.h>

#include <string>

#include "checkpoint/entity.h"
#include "checkpoint/layer_fields.h"
#include "imago/error.h"
#include "imago/files.h"

namespace imago::checkpoint {
namespace {

std::vector<Layer> every_type() {
  const ConvolutionShape image{.channels = 2, .filters = 3, .kernel = 2, .height = 3};
  return layer_list(dense(5, 3, Activation::silu), attention({.width = 8, .heads = 2, .kv_heads = 1}), swiglu(4, 6),
                    rms_norm(6, 1e-5), convolution(1, image), convolution(2, image), convolution(3, image),
                    rnn(3, 2, 2), lstm(3, 2, 2), layer_norm(5), transposed_convolution(1, image),
                    transposed_convolution(2, image), transposed_convolution(3, image), embedding(7, 4),
                    kmeans(3, 4, 0.5, "features"), softmax(SoftmaxType::entmax),
                    parallel("concat", layer_list(dense(3, 2), sequential(layer_list(dense(3, 3), residual())))),
                    sequential(layer_list(dense(3, 4), softmax())), residual(),
                    metacognition(dense(3, 3), {{1, 0.5, 90, 0.25f, 3, true}}));
}

enum class Nesting { none, parallel, sequential, gate, observed };

Layer nest(Layer layer, Nesting nesting) {
  switch (nesting) {
    case Nesting::none: break;
    case Nesting::parallel: return parallel("add", layer_list(std::move(layer), residual()));
    case Nesting::sequential: return sequential(layer_list(residual(), parallel("avg", layer_list(std::move(layer)))));
    case Nesting::gate: return mixture(std::move(layer), layer_list(residual(), residual()));
    case Nesting::observed: return metacognition(sequential(layer_list(std::move(layer))), {});
  }
  return layer;
}

std::vector<std::string> stored_bytes(const Network& network) {
  std::vector<std::string> all;
  for_each_path(network, [&](const std::string& path, const Layer& layer) {
    if (!layer.weights) return;
    const auto version = layer.weights->morph(layer.config.scheme());
    const std::span<const std::byte> codes = version ? version->codes() : std::as_bytes(layer.weights->master());
    const std::vector<float> active = layer.weights->active(layer.config.scheme());
    all.push_back(path + std::string(reinterpret_cast<const char*>(codes.data()), codes.size()) +
                  std::string(reinterpret_cast<const char*>(active.data()), active.size() * sizeof(float)));
  });
  return all;
}

TEST(Idempotency, EveryTypeInEveryDtypeAtEveryDepth) {
  std::size_t permutations = 0;
  for (const DTypeInfo& dtype : kDTypes) {
    for (const Nesting nesting :
         {Nesting::none, Nesting::parallel, Nesting::sequential, Nesting::gate, Nesting::observed}) {
      for (std::size_t type = 0; type < every_type().size(); ++type) {
        Network network(layer_list(nest(std::move(every_type()[type]), nesting)), 11 + type);
        for_each_path(network, [&](const std::string&, Layer& layer) { layer.config.dtype = dtype.id; });
        const std::string text = serialize_network(network);
        const Network again = deserialize_network(text);
        ASSERT_EQ(serialize_network(again), text);
        ASSERT_EQ(stored_bytes(again), stored_bytes(network)) << text;
        // The rule survives dropping the version and quantizing the master anew.
        Network dropped = deserialize_network(text);
        for_each_path(dropped, [&](const std::string&, Layer& layer) {
          if (layer.weights) layer.weights->edit_master();
        });
        ASSERT_EQ(serialize_network(dropped), text);
        ++permutations;
      }
    }
  }
  EXPECT_EQ(permutations, 21u * 20 * 5);
}

TEST(Idempotency, ThroughEntityFiles) {
  for (const DTypeInfo& dtype : kDTypes) {
    for (const Nesting nesting : {Nesting::none, Nesting::parallel, Nesting::gate, Nesting::observed}) {
      for (std::size_t type = 0; type < every_type().size(); ++type) {
        Network network(layer_list(nest(std::move(every_type()[type]), nesting)), 11 + type);
        for_each_path(network, [&](const std::string&, Layer& layer) {
          if (layer.config.type != LayerType::rms_norm) layer.config.dtype = dtype.id;  // always float32 in this form
        });
        StringSink sink;
        write_entity(sink, network);
        const Entity entity = read_entity(std::as_bytes(std::span(sink.text())), "e");
        ASSERT_EQ(serialize_network(entity.network), serialize_network(network));
        StringSink again;
        write_entity(again, entity.network);
        ASSERT_EQ(again.text(), sink.text());
      }
    }
  }
}

TEST(Idempotency, AGranularityWithoutScalesIsCarriedAlong) {
  for (const DType dtype : {DType::float32, DType::float16}) {
    for (const bool norm : {false, true}) {
      Layer layer = norm ? rms_norm(4) : dense(4, 2);
      layer.config.dtype = dtype;
      layer.config.granularity = Granularity::row;
      const Network network(layer_list(std::move(layer)), 5);
      const std::string text = serialize_network(network);
      EXPECT_NE(text.find("\"granularity\": \"row\""), std::string::npos);
      EXPECT_EQ(text.find("\"scales\""), std::string::npos);
      EXPECT_EQ(serialize_network(deserialize_network(text)), text);
      StringSink sink;
      write_entity(sink, network);
      const Network again = read_entity(std::as_bytes(std::span(sink.text())), "e").network;
      EXPECT_EQ(again.layers()[0].config.granularity, Granularity::row);
    }
  }
}

TEST(Idempotency, ScalesOfRowsAndGroups) {
  for (const DTypeInfo& dtype : kDTypes) {
    if (!is_scaled(dtype.id)) continue;
    for (const int group : {0, 32, 64}) {
      LayerConfig config;
      config.input_height = 64;
      config.output_height = 3;
      config.dtype = dtype.id;
      config.granularity = group == 0 ? Granularity::row : Granularity::group;
      config.group = group;
      const Network network(layer_list(Layer(config)), 5);
      const std::string text = serialize_network(network);
      EXPECT_NE(text.find("\"scales\""), std::string::npos);
      const Network again = deserialize_network(text);
      EXPECT_EQ(serialize_network(again), text);
      EXPECT_EQ(stored_bytes(again), stored_bytes(network));
      StringSink sink;
      write_entity(sink, network);
      EXPECT_EQ(serialize_network(read_entity(std::as_bytes(std::span(sink.text())), "e").network), text);
    }
  }
}

/// Layers with matrices whose rows fit every block, and one without; weights everywhere, biases too.
Network block_network(BlockFormat format) {
  // Plain kernels search the codebook of iq1 for seconds where there are many weights.
  const bool slow = format == BlockFormat::iq1_s || format == BlockFormat::iq1_m;
  std::vector<Layer> layers = layer_list(
      dense(256, 3), attention({.width = 256, .heads = 4, .kv_heads = 1}), slow ? dense(256, 4) : swiglu(256, 256),
      rms_norm(8), slow ? dense(256, 5) : rnn(256, 256, 1), slow ? dense(256, 6) : lstm(256, 256, 1), embedding(4, 256),
      sequential(layer_list(dense(256, 2), kmeans(256, 2))));
  layers[1].config.k_norm.assign(64, 0.5f);
  Network network(std::move(layers), 3);
  std::uint64_t seed = 0;
  for_each_path(network, [&](const std::string&, Layer& layer) {
    if (layer.weights) layer.weights->randomize(++seed, 0.5f);
  });
  morph_network(network, format);
  return network;
}

class BlockIdempotency : public ::testing::TestWithParam<BlockFormatInfo> {};

TEST_P(BlockIdempotency, InCheckpoints) {
  const Network network = block_network(GetParam().id);
  const std::string text = serialize_network(network);
  EXPECT_NE(text.find("\"block_format\": \"" + std::string(GetParam().name) + "\""), std::string::npos);
  const Network again = deserialize_network(text);
  ASSERT_EQ(serialize_network(again), text);
  ASSERT_EQ(stored_bytes(again), stored_bytes(network));
  EXPECT_EQ(again.layers()[3].config.dtype, DType::float32) << "a norm has no matrix";
  // A reader that does not know the format finds a float32 layer (int4 for the original's own), and no weights in it.
  EXPECT_EQ(text.find(R"("dtype": "q)"), std::string::npos);
  EXPECT_EQ(text.find("\"weights\""), text.rfind("\"weights\"")) << "those of the norm";
}

TEST_P(BlockIdempotency, InEntityFiles) {
  const Network network = block_network(GetParam().id);
  StringSink sink;
  write_entity(sink, network);
  const Entity entity = read_entity(std::as_bytes(std::span(sink.text())), "e");
  EXPECT_EQ(serialize_network(entity.network), serialize_network(network));
  StringSink again;
  write_entity(again, entity.network);
  EXPECT_TRUE(again.text() == sink.text());
}

INSTANTIATE_TEST_SUITE_P(All, BlockIdempotency, ::testing::ValuesIn(kBlockFormats),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(Idempotency, NothingSaysBlockWithoutThem) {
  EXPECT_EQ(serialize_network(Network(layer_list(dense(32, 2)), 1)).find("block"), std::string::npos);
}

/// A Dense layer of 2 × 2 codes with these keys.
std::string dense_text(const std::string& keys) {
  return R"({"id":"a","depth":1,"rows":1,"cols":1,"layers_per_cell":1,"layers":[{"z":0,"y":0,"x":0,"l":0,"type":"Dense",)"
         R"("activation":"Linear","dtype":"uint8","input_height":2,"output_height":2,"weights":"AGSA/w==","native":true)" +
         keys + "}]}";
}

std::vector<float> values_of(const std::string& text) {
  const Network network = deserialize_network(text);
  const std::span<const float> master = network.layers()[0].weights->master();
  return {master.begin(), master.end()};
}

std::string saved(const std::string& text) { return serialize_network(deserialize_network(text)); }

TEST(Idempotency, FilesWithoutZeroPointsKeepTheirMeaning) {
  const std::string text = dense_text(R"(,"scale":0.5)");  // codes 0, 100, 128, 255
  EXPECT_EQ(values_of(text), (std::vector<float>{0, 50, 64, 127.5f}));
  EXPECT_EQ(saved(text).find("zero"), std::string::npos);
  Network network = deserialize_network(text);
  network.layers()[0].weights->edit_master()[0] = -3;
  EXPECT_EQ(values_of(serialize_network(network))[0], 0) << "its scale came without a zero point, and stays";
  EXPECT_EQ(serialize_network(network), saved(text));
}

TEST(Idempotency, ZeroPointsAreKeysOfTheirOwn) {
  const std::string single = dense_text(R"(,"scale":0.5,"zero_point":100)");
  EXPECT_EQ(values_of(single), (std::vector<float>{-50, 0, 14, 77.5f}));
  EXPECT_NE(saved(single).find(R"("zero_point": 100)"), std::string::npos);
  EXPECT_EQ(saved(saved(single)), saved(single));
  EXPECT_EQ(values_of(saved(single)), values_of(single));
  // Scales 1 and 1, zero points 0 and 128, as base64 of float32.
  const std::string rows = dense_text(R"(,"granularity":"row","scales":"AACAPwAAgD8=","zeros":"AAAAAAAAAEM=")");
  EXPECT_EQ(values_of(rows), (std::vector<float>{0, 100, 0, 127}));
  EXPECT_NE(saved(rows).find(R"("zeros": "AAAAAAAAAEM=")"), std::string::npos);
  EXPECT_EQ(saved(saved(rows)), saved(rows));
}

TEST(Idempotency, ZeroPointsThatDoNotFitAreRefused) {
  for (const char* keys :
       {R"(,"scale":0.5,"zero_point":0.5)", R"(,"scale":0.5,"zero_point":256)", R"(,"zero_point":3)",
        R"(,"scale":0.5,"zeros":"AAAAAA==")", R"(,"granularity":"row","scales":"AACAPwAAgD8=","zeros":"AAAAAA==")",
        R"(,"granularity":"row","scales":"AACAPwAAgD8=","zeros":"AAAAPwAAAEM=")"}) {
    EXPECT_THROW(deserialize_network(dense_text(keys)), FormatError) << keys;
  }
}

}  // namespace
}  // namespace imago::checkpoint
