#include "files/detect.h"

#include <gtest/gtest.h>

#include <string>

#include "imago/error.h"
#include "testing/loom_files.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

using testing::TempDir;

std::string form_of(const TempDir& folder, std::string_view content) {
  folder.write("file", content);
  try {
    return std::string(name(detect_form(folder.path() / "file")));
  } catch (const FormatError& error) {
    return error.what();
  }
}

std::string with_length(std::uint64_t length, std::string_view rest) {
  std::string text(8, '\0');
  for (int i = 0; i < 8; ++i) text[static_cast<std::size_t>(i)] = static_cast<char>(length >> (8 * i));
  return text.append(rest);
}

TEST(Detect, EveryForm) {
  const TempDir folder;
  EXPECT_EQ(form_of(folder, std::string("ENTITY\0\0", 8)), "entity");
  EXPECT_EQ(form_of(folder, "GGUF"), "gguf");
  EXPECT_EQ(form_of(folder, with_length(2, "{}")), "safetensors");
  EXPECT_EQ(form_of(folder, R"( {"layers":[{"parallel_branches":[{"weights":"AAAA"}]}]})"), "checkpoint");
  EXPECT_EQ(form_of(folder, R"({"layers":[{"weights":""}]})"), "architecture");
  EXPECT_EQ(form_of(folder, "\n\t{\"layers\":[]}"), "architecture");
  folder.write("model/config.json", "{}");
  EXPECT_EQ(detect_form(folder.path() / "model"), FileForm::huggingface);
  EXPECT_EQ(detect_form(testing::loom_folder() / "grid_mixed.entity"), FileForm::entity);
  EXPECT_EQ(detect_form(testing::loom_folder() / "grid_mixed.safetensors"), FileForm::safetensors);
  EXPECT_EQ(detect_form(testing::loom_folder() / "grid_mixed.json"), FileForm::checkpoint);
}

TEST(Detect, ABraceInTheNinthByteOfJsonIsJson) {
  const TempDir folder;
  EXPECT_EQ(form_of(folder, "{\"_\":[ [{\"a\":1}]],\"layers\":[]}"), "architecture");
  EXPECT_EQ(form_of(folder, "       {{"), folder.path().string() + "/file: at byte 8: a key in quotes was expected");
}

TEST(Detect, SaysWhatAFileIsInstead) {
  const TempDir folder;
  const auto expect = [&](std::string_view content, std::string_view text) {
    EXPECT_NE(form_of(folder, content).find(text), std::string::npos) << form_of(folder, content);
  };
  expect("", "the file is empty");
  expect("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs pull");
  expect("<!DOCTYPE html><html>", "HTML page");
  expect("\n  <HTML><body>", "HTML page");
  expect("PK\x03\x04zip", "ZIP archive");
  expect("\x80\x02pickle", "pickle");
  expect("\x1f\x8b\x08", "gzip");
  expect("hello", "none of GGUF");
  expect("GG", "cut off");
  expect("ENTITY", "cut off");
  expect(with_length(1000, "{\"a\":"), "this safetensors file is cut off: its header alone has 1000 bytes");
  expect("{\"layers\":[", "cut off");
  expect("{\"a\":1}", "no `layers`");
  expect("{\"layers\":[],\"layers\":[]}", "comes twice");
  std::filesystem::create_directory(folder.path() / "empty");
  EXPECT_THROW(detect_form(folder.path() / "empty"), IoError);
  EXPECT_THROW(detect_form(folder.path() / "missing"), IoError);
}

}  // namespace
}  // namespace imago
