#include "lm/sequence_file.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "base/atomic_file.h"
#include "base/checked.h"
#include "base/file.h"
#include "imago/error.h"
#include "lm/fingerprint.h"

namespace imago::lm {

namespace {

using backend::CachePart;

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr std::string_view kMagic = "imagoseq";
constexpr std::uint32_t kVersion = 2;

/// Everything before the ids.
struct Header {
  char magic[8];
  std::uint32_t version, kind;
  std::uint64_t fingerprint, blocks, token_bytes, tokens;
};
static_assert(sizeof(Header) == 48);

Header header_of(const SequenceOwner& owner, const KvCache& cache, std::size_t tokens) {
  Header header{};
  std::memcpy(header.magic, kMagic.data(), sizeof header.magic);
  header.version = kVersion;
  header.kind = static_cast<std::uint32_t>(owner.kind);
  header.fingerprint = owner.fingerprint;
  header.blocks = cache.shapes.size();
  header.token_bytes = cache.token_bytes();
  header.tokens = tokens;
  return header;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

/// Calls each(block, part) in the order of the file, for what a block has.
template <class Each>
void for_each_part(const KvCache& cache, Each&& each) {
  for (std::size_t block = 0; block < cache.shapes.size(); ++block) {
    each(block, CachePart::keys);
    if (cache.shapes[block].has_values) each(block, CachePart::values);
  }
}

void check_header(const Header& header, std::string_view path, const SequenceOwner& owner, const KvCache& cache) {
  const Header wanted = header_of(owner, cache, header.tokens);
  if (std::memcmp(header.magic, wanted.magic, sizeof header.magic) != 0) {
    throw FormatError(path, 0, "is not a saved sequence: it does not begin with 'imagoseq'");
  }
  if (header.version != kVersion) {
    throw FormatError(path, 8, fmt::format("is of version {}; this imago reads version {}", header.version, kVersion));
  }
  if (header.kind != wanted.kind) {
    constexpr std::string_view kKinds[] = {"float32", "float16", "q8_0"};
    throw FormatError(path, 12,
                      fmt::format("holds a {} cache, and this sequence has {}",
                                  header.kind < 3 ? kKinds[header.kind] : "unknown", kKinds[wanted.kind]));
  }
  if (header.fingerprint != wanted.fingerprint || header.blocks != wanted.blocks ||
      header.token_bytes != wanted.token_bytes) {
    throw FormatError(
        path, 16,
        fmt::format(
            "is of another model: fingerprint {:016x}, {} blocks, {} bytes a token; this one has {:016x}, {}, {}",
            header.fingerprint, header.blocks, header.token_bytes, wanted.fingerprint, wanted.blocks,
            wanted.token_bytes));
  }
}

}  // namespace

SequenceView parse_sequence(std::span<const std::byte> bytes, std::string_view path, const SequenceOwner& owner,
                            const KvCache& cache, std::size_t room) {
  Header header{};
  if (bytes.size() < sizeof header) {
    throw FormatError(path, bytes.size(), fmt::format("ends within its header of {} bytes", sizeof header));
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  check_header(header, path, owner, cache);
  // No count of the file is multiplied before it is known to be small: a token takes more than one byte.
  if (header.tokens > bytes.size()) {
    throw FormatError(path, 40, fmt::format("states {} tokens in {} bytes", header.tokens, bytes.size()));
  }
  const std::size_t tokens = header.tokens;
  const std::size_t id_bytes = tokens * sizeof(TokenId);
  const std::size_t row_bytes = checked_mul(tokens, cache.token_bytes(), "a saved sequence");
  const std::size_t state_bytes = tokens == 0 ? 0 : cache.state_bytes();
  const std::size_t wanted = checked_add(sizeof header + id_bytes + sizeof(std::uint64_t),
                                         checked_add(row_bytes, state_bytes, "a saved sequence"), "a saved sequence");
  if (bytes.size() != wanted) {
    throw FormatError(path, 40, fmt::format("has {} bytes; {} tokens take {}", bytes.size(), tokens, wanted));
  }
  const std::size_t sum_at = wanted - sizeof(std::uint64_t);
  std::uint64_t stated = 0;
  std::memcpy(&stated, bytes.data() + sum_at, sizeof stated);
  Fingerprint sum;
  sum.add(bytes.first(sum_at));
  if (sum.value() != stated) throw FormatError(path, sum_at, "is damaged: its checksum does not fit its content");
  if (tokens > room) {
    throw UsageError(fmt::format("{} holds {} tokens, and there is room for {}", path, tokens, room));
  }
  SequenceView view{std::vector<TokenId>(tokens), bytes.subspan(sizeof header + id_bytes, row_bytes),
                    bytes.subspan(sizeof header + id_bytes + row_bytes, state_bytes)};
  if (tokens != 0) std::memcpy(view.tokens.data(), bytes.data() + sizeof header, id_bytes);
  for (std::size_t i = 0; i < tokens; ++i) {
    if (view.tokens[i] < 0 || static_cast<std::size_t>(view.tokens[i]) >= owner.vocabulary) {
      throw FormatError(
          path, sizeof header + i * sizeof(TokenId),
          fmt::format("token {} is {}; the vocabulary has the ids 0 to {}", i, view.tokens[i], owner.vocabulary - 1));
    }
  }
  return view;
}

void save_sequence(const std::string& path, const SequenceOwner& owner, std::span<const TokenId> tokens,
                   const KvCache& cache, std::span<const std::uint32_t> pages, std::uint32_t state) {
  // The checksum is over one run of bytes, so that a reader can take it in one go.
  std::vector<std::byte> content;
  content.reserve(sizeof(Header) + tokens.size_bytes() + tokens.size() * cache.token_bytes() + cache.state_bytes());
  const auto put = [&](std::span<const std::byte> bytes) { content.insert(content.end(), bytes.begin(), bytes.end()); };
  put(bytes_of(header_of(owner, cache, tokens.size())));
  put(std::as_bytes(tokens));
  for_each_part(cache, [&](std::size_t block, CachePart part) {
    const std::size_t part_bytes = tokens.size() * cache.shapes[block].heads * cache.shapes[block].row_bytes();
    content.resize(content.size() + part_bytes);
    cache.part_of(block).read(block, part, pages, tokens.size(), std::span(content).last(part_bytes));
  });
  for (std::size_t block = 0; block < cache.state_values.size() && !tokens.empty(); ++block) {
    std::vector<float> values(cache.state_values[block]);
    if (!values.empty()) cache.part_of(block).read_state(block, state, values);
    put(std::as_bytes(std::span(values)));
  }
  Fingerprint sum;
  sum.add(content);
  AtomicFile file(path);
  file.write(content);
  file.write(bytes_of(sum.value()));
  file.commit();
}

std::vector<TokenId> restore_sequence(const std::string& path, const SequenceOwner& owner, KvCache& cache,
                                      std::span<const std::uint32_t> pages, std::uint32_t state) {
  const MappedFile file = MappedFile::open(path, Reading::eager);
  SequenceView view = parse_sequence(file.bytes(), path, owner, cache, pages.size() * cache.page_rows);
  std::span<const std::byte> rows = view.rows;
  for_each_part(cache, [&](std::size_t block, CachePart part) {
    const std::size_t part_bytes = view.tokens.size() * cache.shapes[block].heads * cache.shapes[block].row_bytes();
    cache.part_of(block).write(block, part, pages, view.tokens.size(), rows.first(part_bytes));
    rows = rows.subspan(part_bytes);
  });
  for (std::size_t block = 0; block < cache.state_values.size() && !view.states.empty(); ++block) {
    std::vector<float> values(cache.state_values[block]);
    if (values.empty()) continue;
    std::memcpy(values.data(), view.states.data(), values.size() * sizeof(float));
    cache.part_of(block).write_state(block, state, values);
    view.states = view.states.subspan(values.size() * sizeof(float));
  }
  return std::move(view.tokens);
}

}  // namespace imago::lm
