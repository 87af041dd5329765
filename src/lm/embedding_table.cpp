#include "lm/embedding_table.h"

#include <utility>

#include "base/parallel.h"

namespace imago::lm {

namespace {
constexpr std::size_t kTokensPerPart = 8;
}  // namespace

EmbeddingTable::EmbeddingTable(std::size_t rows, std::size_t cols, EncodedWeights weights)
    : own_(std::move(weights.packed)) {
  tensor_.name = "token embedding";
  tensor_.type = weights.format.name();
  tensor_.format = weights.format;
  tensor_.shape = Shape{rows, cols};
  tensor_.bytes = std::as_const(own_).host();
  tensor_.scale_group = weights.scale_group;
  tensor_.scale_values = std::move(weights.scales);
}

bool EmbeddingTable::fits(const files::StoredTensor& tensor) noexcept {
  if (!tensor.format) return false;
  const Format format = *tensor.format;
  if (format.is_block()) return tensor.cols() % static_cast<std::size_t>(format.block_values()) == 0;
  return tensor.cols() * static_cast<std::size_t>(bits(format.dtype())) % 8 == 0;
}

void EmbeddingTable::own_bytes() {
  own_ = host_device()->allocate(tensor_.bytes.size());
  host_device()->upload(tensor_.bytes, own_, 0);
  tensor_.bytes = std::as_const(own_).host();
  tensor_.file = {};
}

void EmbeddingTable::look_up(std::span<const TokenId> ids, std::span<float> out) const {
  const std::size_t cols = tensor_.cols();
  parallel_for(ids.size(), kTokensPerPart, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      files::decode_tensor(tensor_, static_cast<std::size_t>(ids[i]) * cols, out.subspan(i * cols, cols));
    }
  });
}

}  // namespace imago::lm
