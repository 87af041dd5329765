#pragma once

// `.entity`: a checkpoint whose weights lie as raw bytes after a JSON header (docs/formats/entity.md).
//
// | bytes | content | rule |
// |---|---|---|
// | 8 | `ENTITY`, two zero bytes | |
// | 2 | u16 version | 1 |
// | 2 | u16 flags | 0 |
// | 8 | u64 N | at most 256 MiB, and not more than the file holds |
// | N | header: compact JSON | `format_version` 1; `network`; `transformer` and `blobs` optional |
// | rest | blobs | one after the other in the order of the list, none twice, none of an unknown path, no tail |

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/detect.h"
#include "files/json_writer.h"
#include "imago/files.h"
#include "imago/layer.h"
#include "imago/network.h"
#include "imago/numeric.h"

namespace imago::checkpoint {

using files::kEntityMagic;
using files::Sink;
using files::StringSink;

/// A blob as the header describes it; `bytes` are in the file's memory.
struct EntityBlob {
  std::string path;
  std::string dtype;  ///< one of the 21, `Q4_0` or `BITNET_TERNARY`, as the file spells it
  float scale = 0;    ///< 0: none was given
  bool native = false;
  std::span<const std::byte> bytes;
  float zero_point = 0;
};

/// How a file has the Q4_0 matrices of a layer, beyond what they mean: so that they are written as they were read.
struct EntityBlocks {
  std::vector<std::size_t> words;  ///< of codes, with padding; in the order of the matrices
  bool has_biases = false;         ///< a blob of them, be they all zero
};
using EntityBlocksByPath = std::map<std::string, EntityBlocks, std::less<>>;

/// Embeddings, head and final norm of a decoder belong to no layer: they are kept as data.
struct Entity {
  Network network;
  std::string transformer;                ///< JSON as the header has it; empty if there is none
  std::vector<EntityBlob> decoder_blobs;  ///< `transformer.…`
  EntityBlocksByPath blocks = {};         ///< of layers in entity_q4_0
};

/// Q4_0 matrices whose rows are whole blocks make a layer in entity_q4_0; others, and ternary matrices of decoders,
/// become float32 weights with exactly the values they stand for. Throws FormatError.
Entity read_entity(std::span<const std::byte> file, std::string_view path, Fp4Table fp4 = Fp4Table::ocp);

/// The blobs of a file as tensors, checked as read_entity checks them but for their values; `network` has no weights.
struct EntityContents {
  Network network;
  std::string transformer;  ///< JSON as the header has it; empty if there is none
  std::vector<TensorSummary> tensors;
  std::uint64_t parameters = 0;  ///< weights in them: no scales, no padding of blocks
};
EntityContents measure_entity(std::span<const std::byte> file, std::string_view path);

/// `transformer` and its blobs, if given, are written as they are; `blocks` say how layers in entity_q4_0 were read.
void write_entity(Sink& sink, const Network& network, std::string_view transformer = {},
                  std::span<const EntityBlob> decoder_blobs = {}, const EntityBlocksByPath& blocks = {});

/// The same into the file `path`, which appears whole or not at all. Throws IoError.
void save_entity(const std::string& path, const Network& network, std::string_view transformer = {},
                 std::span<const EntityBlob> decoder_blobs = {}, const EntityBlocksByPath& blocks = {});

// Matrices of decoder layers as `.entity` files may pack them: Q4_0 blocks and ternary words.

/// A matrix blob of a layer. For Q4_0 the `key` says which: 200 … 203 are Wq, Wk, Wv, Wo, 100 … 102 are Wg, Wu, Wd;
/// ternary blobs carry their place themselves.
struct DecoderMatrix {
  int key = 0;
  const EntityBlob* blob = nullptr;
};

/// All weights of `layer` from its packed matrices and its biases (empty: zeros): in entity_q4_0 if all matrices are,
/// and their rows are whole blocks; else as a float32 master. Checks every size before it allocates. Returns the words
/// of each matrix, none for a float32 master. Throws UsageError or ShapeError for what does not fit.
std::vector<std::size_t> install_decoder_matrices(Layer& layer, std::span<const DecoderMatrix> matrices,
                                                  std::span<const float> biases);

/// A Q4_0 blob of a layer: its key, and its bytes.
using OutgoingMatrix = std::pair<int, std::vector<std::byte>>;
/// The matrices of a layer in entity_q4_0, whose packed array this is; `words` as install_decoder_matrices gave them,
/// empty for the padding of the original. REQUIRES: has_entity_blocks.
std::vector<OutgoingMatrix> emit_decoder_matrices(const LayerConfig& config, std::span<const std::byte> packed,
                                                  std::span<const std::size_t> words);

/// The shapes of the matrices, checked as above but for the codes; `biases` is their number.
std::vector<Shape> measure_decoder_matrices(const LayerConfig& config, std::span<const DecoderMatrix> matrices,
                                            std::size_t biases);

}  // namespace imago::checkpoint
