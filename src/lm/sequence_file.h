#pragma once

// Sequences on disk. Little-endian:
//   8 bytes   "imagoseq"
//   u32       version, 2
//   u32       cache kind: 0 float32, 1 float16, 2 q8_0
//   u64       fingerprint of the model
//   u64       blocks, and bytes of one token in all of them (two numbers)
//   u64       tokens
//   i32       ids, one per token
//   bytes     for each block keys, then values; for each head the rows of all tokens
//   f32       the states of each block, if there are tokens
//   u64       fingerprint of all bytes before it

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "imago/lm.h"
#include "lm/forward.h"

namespace imago::lm {

/// What a file must be made for.
struct SequenceOwner {
  std::uint64_t fingerprint = 0;
  CacheKind kind = CacheKind::float16;
  std::size_t vocabulary = 0;
};

/// A file that has been checked: all ids are in the vocabulary, `rows` and `states` are exactly what `cache` asks for.
struct SequenceView {
  std::vector<TokenId> tokens;
  std::span<const std::byte> rows, states;
};

/// Throws FormatError for a file that is damaged or made for something else, UsageError if it has more than `room`
/// tokens.
SequenceView parse_sequence(std::span<const std::byte> bytes, std::string_view path, const SequenceOwner& owner,
                            const KvCache& cache, std::size_t room);

/// Throws IoError.
void save_sequence(const std::string& path, const SequenceOwner& owner, std::span<const TokenId> tokens,
                   const KvCache& cache, std::span<const std::uint32_t> pages = kernels::kOnePage,
                   std::uint32_t state = 0);

/// Fills the pages and the slot of states, and returns the tokens. Throws IoError, and as parse_sequence; the cache is
/// then as before.
std::vector<TokenId> restore_sequence(const std::string& path, const SequenceOwner& owner, KvCache& cache,
                                      std::span<const std::uint32_t> pages = kernels::kOnePage,
                                      std::uint32_t state = 0);

}  // namespace imago::lm
