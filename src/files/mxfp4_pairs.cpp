#include "files/mxfp4_pairs.h"

#include <fmt/format.h>

#include <map>

#include "base/parallel.h"
#include "imago/error.h"
#include "quant/blocks.h"

namespace imago::files {

namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";
constexpr std::size_t kCodeBytes = quant::MXFP4::kValues / 2;

/// One block as GGUF has it: its scale, then code i and code i + 16 in byte i.
void join_block(const std::byte* codes, std::byte scale, std::byte* to) {
  const auto code = [&](std::size_t i) { return (std::to_integer<unsigned>(codes[i / 2]) >> (i % 2 * 4)) & 15; };
  *to = scale;
  for (std::size_t i = 0; i < kCodeBytes; ++i) {
    to[1 + i] = static_cast<std::byte>(code(i) | code(i + kCodeBytes) << 4);
  }
}

void check_pair(const StoredTensor& codes, const StoredTensor& scales) {
  const std::span<const std::size_t> extents = codes.shape.extents();
  const bool bytes = codes.safetensors_type == SafetensorsType::u8 && scales.safetensors_type == SafetensorsType::u8;
  const bool fits = extents.size() >= 2 && extents.back() == kCodeBytes &&
                    std::ranges::equal(extents.first(extents.size() - 1), scales.shape.extents());
  if (bytes && fits) return;
  throw FormatError(codes.file, codes.offset,
                    fmt::format("tensor '{}' is {} {}, and '{}' {} {}; mxfp4 has U8 [..., blocks, {}] and U8 [..., "
                                "blocks]",
                                codes.name, codes.type, codes.shape.to_string(), scales.name, scales.type,
                                scales.shape.to_string(), kCodeBytes));
}

}  // namespace

std::vector<StoredTensor> join_mxfp4(std::vector<StoredTensor> tensors, std::shared_ptr<const void>& owner) {
  std::map<std::string_view, const StoredTensor*> scales;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.name.ends_with(kScales)) scales[tensor.name] = &tensor;
  }
  const auto stem_of = [](const std::string& name, std::string_view suffix) {
    return name.substr(0, name.size() - suffix.size());
  };
  auto memory = std::make_shared<std::vector<std::vector<std::byte>>>();
  std::map<std::string_view, bool> joined;  // names of scales
  std::vector<StoredTensor> list;
  for (const StoredTensor& codes : tensors) {
    const auto found =
        codes.name.ends_with(kBlocks) ? scales.find(stem_of(codes.name, kBlocks) + std::string(kScales)) : scales.end();
    if (found == scales.end()) {
      list.push_back(codes);
      continue;
    }
    const StoredTensor& own = *found->second;
    check_pair(codes, own);
    joined[found->first] = true;
    const std::size_t blocks = own.shape.elements();
    std::vector<std::byte>& bytes = memory->emplace_back(blocks * sizeof(quant::MXFP4));
    parallel_for(blocks, 4096, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        join_block(codes.bytes.data() + i * kCodeBytes, own.bytes[i], bytes.data() + i * sizeof(quant::MXFP4));
      }
    });
    StoredTensor& made = list.emplace_back(codes);
    made.name = stem_of(codes.name, kBlocks);
    made.format = BlockFormat::mxfp4;
    made.type = made.format->name();
    made.safetensors_type.reset();
    std::vector<std::size_t> extents(own.shape.extents().begin(), own.shape.extents().end());
    extents.back() *= quant::MXFP4::kValues;
    made.shape = Shape(extents);
    made.bytes = bytes;
  }
  if (memory->empty()) return tensors;
  std::erase_if(list, [&](const StoredTensor& tensor) { return joined.contains(tensor.name); });
  owner = std::move(memory);
  return list;
}

}  // namespace imago::files
