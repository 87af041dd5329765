#include "checkpoint/entity.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "imago/error.h"
#include "imago/files.h"
#include "testing/bounded.h"
#include "testing/loom_files.h"

namespace imago::checkpoint {
namespace {

Entity read(std::string_view file) { return read_entity(std::as_bytes(std::span(file)), "f"); }

std::string problem_of(std::string_view file) {
  try {
    read(file);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

void expect_problem(std::string_view file, std::string_view text) {
  EXPECT_NE(problem_of(file).find(text), std::string::npos) << problem_of(file);
}

std::string entity_of(std::string_view header, std::string_view data, std::uint16_t version = 1,
                      std::uint16_t flags = 0) {
  std::string file(kEntityMagic);
  const auto put = [&](auto value) { file.append(reinterpret_cast<const char*>(&value), sizeof value); };
  put(version);
  put(flags);
  put(std::uint64_t{header.size()});
  return file.append(header).append(data);
}

/// One layer with these keys, and these blobs.
std::string entity_of_layer(std::string_view keys, std::string_view blobs, std::string_view data) {
  return entity_of(R"({"format_version":1,"network":{"depth":1,"rows":1,"cols":1,"layers_per_cell":1,"layers":[{)" +
                       std::string(keys) + R"(}]},"blobs":)" + std::string(blobs) + "}",
                   data);
}

constexpr std::string_view kDense = R"("type":"Dense","dtype":"int8","input_height":2,"output_height":1)";
constexpr std::string_view kBlob =
    R"([{"path":"layers.0","offset":0,"length":2,"dtype":"int8","scale":0.5,"native":true}])";

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::vector<float> master_of(const Network& network) {
  const std::span<const float> master = network.layers()[0].weights->master();
  return {master.begin(), master.end()};
}

TEST(Entity, FilesOfTheOriginalComeBack) {
  std::size_t same = 0;
  for (const auto& entry : std::filesystem::directory_iterator(testing::loom_folder())) {
    if (entry.path().extension() != ".entity") continue;
    const std::string file = testing::read_text(entry.path());
    const Entity entity = read(file);
    StringSink sink;
    write_entity(sink, entity.network);
    // A norm takes the dtype of its blob, float32, so that files which name another come back with that.
    if (sink.text() == file) ++same;
    EXPECT_TRUE(sink.text() == file || file.find("\"RMSNorm\"") != std::string::npos) << entry.path();
    StringSink again;
    write_entity(again, read(sink.text()).network);
    EXPECT_EQ(again.text(), sink.text()) << entry.path();
  }
  EXPECT_GE(same, 9u);
}

TEST(Entity, HoldsTheNetworkOfTheCheckpoint) {
  const Network entity = load_network(testing::loom_folder() / "grid_mixed.entity");
  EXPECT_EQ(serialize_network(entity), testing::read_text(testing::loom_folder() / "grid_mixed.json"));
}

TEST(Entity, NormsAreFloat32Here) {
  const Network network = load_network(testing::loom_folder() / "sequential_ternary.entity");
  const Layer& norm = network.layers()[0].sub_layers.at(2);
  EXPECT_EQ(norm.config.type, LayerType::rms_norm);
  EXPECT_EQ(norm.config.dtype, DType::float32);
  EXPECT_EQ(network.layers()[0].sub_layers.at(0).config.dtype, DType::ternary);
}

TEST(Entity, AnEmptyNetworkAndSeqLengthOne) {
  const std::string file = entity_of_layer(R"("type":"Residual","seq_length":1)", "null", "");
  const Entity entity = read(file);
  EXPECT_EQ(entity.network.layers()[0].config.seq_length, 1) << "read as it stands";
  StringSink sink;
  write_entity(sink, entity.network);
  EXPECT_EQ(sink.text().find("seq_length"), std::string::npos);
  EXPECT_NE(sink.text().find(R"("blobs":null})"), std::string::npos);
}

TEST(Entity, DecoderSectionsAreKeptAsData) {
  const std::string file = entity_of(
      R"({"format_version":1,"network":{"id":"network","depth":1,"rows":1,"cols":1,"layers_per_cell":1,"layers":[)"
      R"({"z":0,"y":0,"x":0,"l":0,"type":"Residual","activation":"Linear","dtype":"float32","softmax_type":"Standard"}]},)"
      R"("transformer":{"architecture":"llama_style_decoder","dims":{"num_layers":0}},)"
      R"("blobs":[{"path":"transformer.embeddings","offset":0,"length":4,"dtype":"float32","native":false}]})",
      std::string_view("\0\0\x80\x3F", 4));
  const Entity entity = read(file);
  EXPECT_EQ(entity.transformer, R"({"architecture":"llama_style_decoder","dims":{"num_layers":0}})");
  ASSERT_EQ(entity.decoder_blobs.size(), 1u);
  EXPECT_EQ(entity.decoder_blobs[0].path, "transformer.embeddings");
  StringSink sink;
  write_entity(sink, entity.network, entity.transformer, entity.decoder_blobs);
  EXPECT_EQ(sink.text(), file);
}

// ---- packed matrices of decoders: SwiGLU 2 → 3, so that each of Wg, Wu, Wd has 6 weights in one block

constexpr std::string_view kSwiGlu = R"("type":"SwiGLU","dtype":"int4","input_height":2,"output_height":3)";

std::string q4_blob(float scale, std::initializer_list<int> codes) {
  std::string bytes;
  append(bytes, std::uint32_t{1});
  append(bytes, std::uint32_t{512});
  append(bytes, scale);
  std::uint32_t word = 0;
  int place = 0;
  for (const int code : codes) word |= (static_cast<std::uint32_t>(code) & 15u) << (4 * place++);
  append(bytes, word);
  return bytes.append(511 * 4, '\0');
}

std::string q4_file(std::string_view third_key = "102", std::string_view third_dtype = "Q4_0") {
  const std::string a = q4_blob(0.5f, {1, -1, 7, -8, 0, 2}), b = q4_blob(2, {1, 1, 1, 1, 1, 1}), c = q4_blob(0, {7});
  const std::string biases = []() {
    std::string bytes;
    for (int i = 1; i <= 8; ++i) append(bytes, static_cast<float>(i));
    return bytes;
  }();
  const auto entry = [&](std::string_view path, std::size_t offset, std::size_t length, std::string_view dtype) {
    return R"({"path":"layers.0.)" + std::string(path) + R"(","offset":)" + std::to_string(offset) + R"(,"length":)" +
           std::to_string(length) + R"(,"dtype":")" + std::string(dtype) + R"(","native":true})";
  };
  const std::size_t n = a.size();
  return entity_of_layer(kSwiGlu,
                         "[" + entry("q4_0.100", 0, n, "Q4_0") + "," + entry("q4_0.101", n, n, "Q4_0") + "," +
                             entry("q4_0." + std::string(third_key), 2 * n, n, third_dtype) + "," +
                             entry("biases", 3 * n, 32, "float32") + "]",
                         a + b + c + biases);
}

TEST(Entity, ReadsQ4Blocks) {
  const Network network = read(q4_file()).network;
  const std::vector<float> wanted = {0.5f, -0.5f, 3.5f, -4, 0, 1, 2, 2, 2, 2, 2, 2, 0,
                                     0,    0,     0,    0,  0, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(master_of(network), wanted);
  EXPECT_EQ(network.layers()[0].config.dtype, DType::float32);
  expect_problem(q4_file("101"), "comes twice");
  expect_problem(q4_file("103"), "names no matrix");
  expect_problem(q4_file("200"), "names no matrix");
  expect_problem(q4_file("x"), "belongs to nothing");
  expect_problem(q4_file("102", "Q4_1"), "belongs to nothing");
}

// ---- Q4_0 matrices whose rows are whole blocks: SwiGLU 32 → 32

/// A matrix of 32 blocks, with that many words of padding; code j of block i is i + j, its scale 1 + i / 4.
std::string whole_q4_blob(std::size_t padding) {
  std::string bytes;
  append(bytes, std::uint32_t{32});
  append(bytes, static_cast<std::uint32_t>(128 + padding));
  for (int i = 0; i < 32; ++i) append(bytes, 1 + static_cast<float>(i) / 4);
  for (int i = 0; i < 32; ++i) {
    for (int j = 0; j < 32; j += 2) append(bytes, static_cast<std::uint8_t>(((i + j) & 15) | ((i + j + 1) & 15) << 4));
  }
  return bytes.append(4 * padding, '\0');
}

std::string whole_q4_file(std::size_t padding, const std::string& biases) {
  std::string blobs, data;
  const auto add = [&](const std::string& path, const std::string& bytes, const std::string& end) {
    blobs += (blobs.empty() ? "[" : ",") + (R"({"path":"layers.0.)" + path) + R"(","offset":)" +
             std::to_string(data.size()) + R"(,"length":)" + std::to_string(bytes.size()) + R"(,"dtype":)" + end;
    data += bytes;
  };
  for (const char* key : {"q4_0.100", "q4_0.101", "q4_0.102"}) {
    add(key, whole_q4_blob(padding), R"("Q4_0","native":true})");
  }
  if (!biases.empty()) add("biases", biases, R"("float32","native":false})");
  return entity_of(
      R"({"format_version":1,"network":{"id":"network","depth":1,"rows":1,"cols":1,"layers_per_cell":1,"layers":[)"
      R"({"z":0,"y":0,"x":0,"l":0,"type":"SwiGLU","activation":"Silu","dtype":"int4","input_height":32,)"
      R"("output_height":32,"softmax_type":"Standard"}]},"blobs":)" +
          blobs + "]}",
      data);
}

TEST(Entity, Q4BlocksStayBlocks) {
  std::string ones;
  for (int i = 0; i < 96; ++i) append(ones, 1.0f);
  const std::string zeros(96 * 4, '\0');
  for (const std::size_t padding : {0, 384}) {
    for (const std::string& biases : {std::string(), zeros, ones}) {
      const std::string file = whole_q4_file(padding, biases);
      const Entity entity = read(file);
      const Layer& layer = entity.network.layers()[0];
      EXPECT_EQ(layer.config.dtype, BlockFormat::entity_q4_0);
      const std::vector<float> weights = master_of(entity.network);
      for (std::size_t i = 0; i < 3072; ++i) {
        const std::size_t block = i / 32 % 32, code = (block + i % 32) & 15;
        ASSERT_EQ(weights[i], (static_cast<float>(code) - (code < 8 ? 0 : 16)) * (1 + static_cast<float>(block) / 4))
            << i;
      }
      EXPECT_EQ(weights.back(), biases == ones ? 1 : 0);
      StringSink sink;
      write_entity(sink, entity.network, {}, {}, entity.blocks);
      EXPECT_TRUE(sink.text() == file) << padding << ", " << biases.size();
    }
  }
  // What has no file to be like is written as the original writes it: 512 words at least, and biases.
  StringSink sink;
  write_entity(sink, read(whole_q4_file(0, {})).network);
  EXPECT_TRUE(sink.text() == whole_q4_file(384, zeros));
}

TEST(Entity, BlocksOfOtherLayersAreOneBlob) {
  Network network(layer_list(dense(32, 2), lstm(32, 32, 1)), 4);
  morph_network(network, BlockFormat::q8_0);
  StringSink sink;
  write_entity(sink, network);
  EXPECT_NE(sink.text().find(R"({"path":"layers.0","offset":0,"length":68,"dtype":"q8_0","native":true})"),
            std::string::npos);
  // Eight matrices of 32 rows, then 4 · 32 biases.
  EXPECT_NE(sink.text().find(R"({"path":"layers.1","offset":68,"length":9216,"dtype":"q8_0","native":true})"),
            std::string::npos);
  expect_problem(sink.text().substr(0, sink.text().size() - 1), "past the end");
  std::string other = sink.text();
  other.replace(other.find(R"("dtype":"q8_0")"), 14, R"("dtype":"q4_0")");
  expect_problem(other, "68 bytes for 64 weights in q4_0, which take 36");
}

std::string ternary_blob(std::uint32_t rows, std::uint32_t cols, std::uint32_t first, float scale, std::uint32_t word) {
  std::string bytes;
  for (const std::uint32_t value : {rows, cols, first}) append(bytes, value);
  append(bytes, scale);
  append(bytes, std::uint32_t{1});
  append(bytes, rows);
  for (std::uint32_t row = 0; row < rows; ++row) append(bytes, word);
  return bytes;
}

std::string ternary_file(std::string_view a, std::string_view b) {
  const auto entry = [](std::string_view path, std::size_t offset, std::size_t length) {
    return R"({"path":"layers.0.)" + std::string(path) + R"(","offset":)" + std::to_string(offset) + R"(,"length":)" +
           std::to_string(length) + R"(,"dtype":"BITNET_TERNARY","native":true})";
  };
  return entity_of_layer(kSwiGlu,
                         "[" + entry("bitnet.0", 0, a.size()) + "," + entry("bitnet.1", a.size(), b.size()) + "]",
                         std::string(a) + std::string(b));
}

TEST(Entity, ReadsTernaryWords) {
  // codes 2, 0 per row: +1, -1
  const std::string all = ternary_blob(6, 2, 0, 0.5f, 0b0010), rest = ternary_blob(2, 3, 12, 3, 0b100001);
  const std::vector<float> master = master_of(read(ternary_file(all, rest)).network);
  EXPECT_EQ(master[0], 0.5f);
  EXPECT_EQ(master[1], -0.5f);
  EXPECT_EQ((std::vector<float>(master.begin() + 12, master.begin() + 18)), (std::vector<float>{0, -3, 3, 0, -3, 3}));
  EXPECT_EQ(master[18], 0) << "no biases";
  expect_problem(ternary_file(all, ternary_blob(2, 3, 11, 3, 0)), "overlap or leave gaps");
  expect_problem(ternary_file(all, ternary_blob(1, 3, 12, 3, 0)), "have 15 weights, not 18");
  expect_problem(ternary_file(all, ternary_blob(2, 3, 12, -3, 0)), "not negative");
  expect_problem(ternary_file(all, ternary_blob(2, 3, 12, 3, 3)), "code 3");
  expect_problem(ternary_file(all, ternary_blob(2, 17, 12, 3, 0)), "words");
  expect_problem(ternary_file(all, rest.substr(0, 20)), "too short");
  expect_problem(ternary_file(all, rest + "xxxx"), "too many");
}

// ---- hostile files

TEST(HostileEntity, FixedPart) {
  expect_problem("ENTITY", "not an .entity file");
  expect_problem(kEntityMagic, "cut off");
  expect_problem(entity_of("{}", "", 2), "version 2");
  expect_problem(entity_of("{}", "", 0x0100), "big-endian");
  expect_problem(entity_of("{}", "", 1, 1), "flags 1");
  std::string longer = entity_of("{}", "");
  longer[12] = 3;
  expect_problem(longer, "the file ends after 2");
  longer[19] = 1;
  expect_problem(longer, "are allowed");
  expect_problem(entity_of("{}", ""), "format_version is missing");
  expect_problem(entity_of(R"({"format_version":2})", ""), "from 1 to 1");
  expect_problem(entity_of(R"({"format_version":1})", ""), "network is missing");
}

TEST(HostileEntity, Blobs) {
  const std::string data("\x01\xFF", 2);
  EXPECT_EQ(master_of(read(entity_of_layer(kDense, kBlob, data)).network), (std::vector<float>{0.5f, -0.5f}));
  expect_problem(entity_of_layer(kDense, kBlob, "\x01"), "1 bytes past the end");
  expect_problem(entity_of_layer(kDense, kBlob, "123"), "1 bytes after the last blob");
  expect_problem(entity_of_layer(kDense, "null", "1"), "belong to no blob");
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string blobs(kBlob);
    blobs.replace(blobs.find(from), from.size(), to);
    return entity_of_layer(kDense, blobs, data);
  };
  expect_problem(with("layers.0", "layers.1"), "belongs to nothing");
  expect_problem(with("layers.0", "layers.0.odd"), "belongs to nothing");
  expect_problem(with("layers.0", "x"), "belongs to nothing");
  expect_problem(with("layers.0", ".."), "belongs to nothing");
  expect_problem(with("\"offset\":0", "\"offset\":1"), "starts at 1");
  expect_problem(with("\"offset\":0", "\"offset\":-1"), "from 0");
  expect_problem(with("\"length\":2", "\"length\":9223372036854775807"), "past the end");
  expect_problem(with("int8", "int9"), "int9");
  expect_problem(with("int8", "int16"), "do not fit");
  expect_problem(with("0.5", "-0.5"), "not negative");
  expect_problem(with("}]", R"(},{"path":"layers.0","offset":2,"length":0,"dtype":"int8"}])"), "comes twice");
  expect_problem(with("}]", R"(},{"path":"layers.0.biases","offset":2,"length":0,"dtype":"float32"}])"), "biases");
  expect_problem(with("}]", R"(},{"path":"layers.0.scales","offset":2,"length":0,"dtype":"int8"}])"),
                 "must be float32");
}

TEST(HostileEntity, FlippedAndCutFiles) {
  const std::string good = entity_of_layer(kDense, kBlob, "\x01\x02");
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_NE(problem_of(good.substr(0, length)), "no error") << length;
  }
  std::mt19937 random(9);
  for (int i = 0; i < 10000; ++i) {
    std::string flipped = good;
    flipped[random() % flipped.size()] ^= static_cast<char>(1 + random() % 255);
    problem_of(flipped);
  }
  std::string noise = good.substr(0, 12) + std::string("\x40\x4b\x4c\0\0\0\0\0", 8);  // a header of 5 000 000 bytes
  for (int i = 0; i < 10'000'000; ++i) noise += static_cast<char>(random());
  EXPECT_NE(problem_of(noise), "no error");
}

}  // namespace
}  // namespace imago::checkpoint
