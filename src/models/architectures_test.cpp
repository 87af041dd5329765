// The table of docs/models.md lists what imago runs, no more and no less, in the order of the enum.

#include "models/architectures.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "testing/torch_models.h"

namespace imago::models {
namespace {

/// The cells of the rows of the first table of a page, without its head.
std::vector<std::vector<std::string>> first_table(const std::string& path) {
  std::ifstream page(path);
  std::vector<std::vector<std::string>> rows;
  std::size_t lines = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| ") && !line.starts_with("|-")) {
      if (lines != 0) break;
      continue;
    }
    if (++lines <= 2) continue;
    std::vector<std::string>& cells = rows.emplace_back();
    std::istringstream text(line.substr(2));
    for (std::string cell; std::getline(text, cell, '|');) {
      const std::size_t begin = cell.find_first_not_of(' ');
      cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin));
    }
  }
  return rows;
}

TEST(Architectures, AreThoseOfTheTable) {
  const auto rows = first_table(IMAGO_TEST_DATA "/../../docs/models.md");
  ASSERT_EQ(rows.size(), architectures().size()) << "docs/models.md has a row for each architecture";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ArchitectureFacts& facts = architectures()[i];
    ASSERT_GE(rows[i].size(), 4U) << facts.model_type;
    EXPECT_EQ(rows[i][0], facts.model_type);
    const std::string other(facts.gguf_with_experts);
    const std::string gguf = std::string(facts.gguf) + (other.empty() ? "" : ", with experts " + other);
    EXPECT_EQ(rows[i][1], gguf) << facts.model_type;
    EXPECT_FALSE(rows[i][2].empty()) << facts.model_type;
  }
}

TEST(Architectures, AreTestedWithModelsThatThereAre) {
  std::size_t named = 0;
  for (const auto& row : first_table(IMAGO_TEST_DATA "/../../docs/models.md")) {
    EXPECT_NE(row.at(3).find('`'), std::string::npos) << row[0] << " is tested with nothing";
    std::istringstream models(row[3]);
    for (std::string model; models >> model; ++named) {
      ASSERT_GE(model.size(), 3U) << row[0];
      const std::string name = model.substr(1, model.size() - 2);
      const auto is_name = [&](const char* known) { return name == known; };
      EXPECT_TRUE(
          std::ranges::any_of(testing::kTorchModels, is_name) || std::ranges::any_of(testing::kMoreModels, is_name) ||
          std::ranges::any_of(testing::kEmbeddingModels, is_name) || std::ranges::any_of(testing::kOwnModels, is_name))
          << row[0] << ": " << name;
    }
  }
  EXPECT_GE(named, architectures().size());
}

TEST(Architectures, PagesHaveTheirNumber) {
  const auto has = [](const std::string& name, const std::string& line) {
    std::ifstream page(IMAGO_TEST_DATA "/../../" + name);
    const std::string text(std::istreambuf_iterator<char>(page), {});
    EXPECT_NE(text.find(line), std::string::npos) << name << ": " << line;
  };
  has("README.md", fmt::format("| {} architectures from GGUF files", architectures().size()));
  has("docs/comparison.md", fmt::format("| runs language models | {} architectures |", architectures().size()));
}

}  // namespace
}  // namespace imago::models
