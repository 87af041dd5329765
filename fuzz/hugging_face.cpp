// The texts of a folder: config.json up to the first zero byte, then the index. An index that is accepted names files
// of the folder only, and agrees with shards that hold what it says.

#include "files/hugging_face.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "imago/error.h"

namespace imago::files {
namespace {

void read_config(std::string text) {
  const JsonFile config = JsonFile::parse(std::move(text), "config.json");
  check_config(config);
  for (const JsonMember& member : config.root().members("config")) {
    if (member.value.source().empty()) std::abort();
  }
}

void read_shards(std::string text) {
  const HuggingFaceIndex index = read_index(JsonFile::parse(std::move(text), "index.json"));
  std::vector<ShardContents> shards;
  for (const std::string& name : index.shards) {
    const std::filesystem::path path = std::filesystem::path("/folder") / name;
    if (path.parent_path() != "/folder" || path.lexically_normal() != path) std::abort();
    shards.push_back({name, {}});
  }
  for (const HuggingFaceIndex::Entry& entry : index.entries) {
    if (entry.shard >= shards.size()) std::abort();
    shards[entry.shard].tensors.emplace_back(entry.tensor, 1);
  }
  const std::vector<std::string> notes = check_shards(shards, &index, "folder");
  if (notes.size() > 1) std::abort();  // total_size at most: every tensor is where the index has it

  shards[index.entries.front().shard].tensors.clear();
  try {
    check_shards(shards, &index, "folder");
    std::abort();
  } catch (const FormatError&) {
  }
}

}  // namespace
}  // namespace imago::files

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(text.find('\0'), text.size());
  try {
    imago::files::read_config(text.substr(0, end));
  } catch (const imago::Error&) {
  }
  try {
    imago::files::read_shards(text.substr(std::min(end + 1, text.size())));
  } catch (const imago::Error&) {
  }
  return 0;
}
