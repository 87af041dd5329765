// The tour, shortened: all of its parts, with few digits and a small model of random weights.

#include <fstream>
#include <iterator>

#include "imago.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(Demo, ShowsEveryTypeAndLeavesAPage) {
  const TempDir folder;
  const std::string model = (folder.path() / "m.gguf").string(), page = (folder.path() / "page.html").string();
  ASSERT_EQ(imago_run({"synth", model, "--type", "f16", "--width", "256", "--blocks", "1", "--feed-forward", "256",
                       "--heads", "4", "--kv-heads", "2", "--vocabulary", "512", "--ctx", "512", "-q"})
                .exit_code,
            0);
  const ProcessResult result =
      imago_run({"demo", "--digits", "60", "-o", page, "-t", "1"}, {.environment = {{"IMAGO_MODEL", model}}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* words : {"\nfloat64 ", "\nfloat32 ", "\nint4 ", "\nternary ", "\nbinary ", "\nas stored ", "\nq2_k ",
                            "21 of the 21 files are identical after a round trip", "page.html", "'imago serve'"}) {
    EXPECT_NE(result.out.find(words), std::string::npos) << words << " is missing from\n" << result.out;
  }
  const std::string html = read(page);
  for (const char* words : {"<!doctype html>", "imago demo", "binary", "q2_k", "mean KL divergence"}) {
    EXPECT_NE(html.find(words), std::string::npos) << words;
  }
}

TEST(Demo, SaysWhenThereIsNowhereToWrite) {
  expect_error(imago_run({"demo", "-o", "/no/such/folder/page.html"}), 1, "/no/such/folder");
}

}  // namespace
}  // namespace imago::testing
