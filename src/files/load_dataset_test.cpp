#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>

#include "imago/data.h"
#include "imago/error.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kImages = "\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x02\x00\xFF\x33\x66"sv;
constexpr std::string_view kLabels = "\0\0\x08\x01\0\0\0\x02\x01\x00"sv;

class LoadDataset : public ::testing::Test {
 protected:
  Dataset load(const std::string& name, DatasetOptions options = {}) {
    if (!options.labels.empty()) options.labels = (folder.path() / options.labels).string();
    return load_dataset((folder.path() / name).string(), options);
  }
  testing::TempDir folder;
};

TEST_F(LoadDataset, CsvByContent) {
  folder.write("data", "a,b,label\n1,2,0\n3,4,1\n");
  EXPECT_EQ(load("data").x.shape(), Shape({2, 2}));
  EXPECT_EQ(load("data", {.target_columns = 2}).y.shape(), Shape({2, 2}));
  EXPECT_EQ(load("data", {.one_hot = true}).y.shape(), Shape({2, 2}));
}

TEST_F(LoadDataset, IdxWithLabelsBesideIt) {
  folder.write("images/train-images-idx3-ubyte", kImages);
  folder.write("images/train-labels-idx1-ubyte", kLabels);
  const Dataset data = load("images/train-images-idx3-ubyte");
  EXPECT_EQ(data.x.shape(), Shape({2, 1, 2}));
  EXPECT_EQ(data.x[1], 1);
  EXPECT_EQ(data.y[0], 1);
  EXPECT_EQ(load("images/train-images-idx3-ubyte", {.one_hot = true}).y.shape(), Shape({2, 2}));
}

TEST_F(LoadDataset, IdxWithLabelsNamed) {
  folder.write("images/pictures", kImages);  // the folder's name is no hint
  folder.write("classes", kLabels);
  EXPECT_EQ(load("images/pictures", {.labels = "classes"}).y[0], 1);
  EXPECT_THROW(load("images/pictures"), UsageError);
}

TEST_F(LoadDataset, SafetensorsWithInputsAndTargets) {
  std::string header = R"({"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                       R"("y":{"dtype":"I64","shape":[2],"data_offsets":[16,32]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file += header;
  const float x[] = {1, 2, 3, 4.5f};
  const std::int64_t y[] = {5, -1};
  file.append(reinterpret_cast<const char*>(x), sizeof x).append(reinterpret_cast<const char*>(y), sizeof y);
  folder.write("data.safetensors", file);
  const Dataset data = load("data.safetensors");
  EXPECT_EQ(data.x.shape(), Shape({2, 2}));
  EXPECT_EQ(data.x[3], 4.5f);
  EXPECT_EQ(data.y.shape(), Shape({2}));
  EXPECT_EQ(data.y[0], 5);
  EXPECT_EQ(data.y[1], -1);

  const std::size_t at = file.find("\"y\"");
  file[at + 1] = 'z';
  folder.write("other.safetensors", file);
  EXPECT_THROW(load("other.safetensors"), FormatError);
}

TEST_F(LoadDataset, GzipIsRefusedInSoManyWords) {
  folder.write("train-images-idx3-ubyte.gz", "\x1F\x8B\x08\x00rest"sv);
  try {
    load("train-images-idx3-ubyte.gz");
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find("gzip"), std::string::npos);
  }
  EXPECT_THROW(load("none"), IoError);
}

}  // namespace
}  // namespace imago
