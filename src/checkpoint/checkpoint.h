#pragma once

// Checkpoint and architecture JSON (docs/formats/checkpoint.md): networks to text and back, byte for byte.
//
// Fields are kept as stated, and defaults are applied where they are used, never here; codes are passed on unchanged,
// never quantized again. So a network is written as it was read.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "files/detect.h"
#include "files/json.h"
#include "files/json_writer.h"
#include "imago/files.h"
#include "imago/network.h"

namespace imago::checkpoint {

using files::JsonDocument;
using files::JsonKind;
using files::JsonMember;
using files::JsonValue;
using files::JsonWriter;
using files::kMaxCheckpointJsonDepth;
using files::kMaxLayerDepth;

/// What a reader does with the weights.
enum class WeightsInJson : std::uint8_t {
  read,
  ignore,   ///< an architecture, or a file that has them elsewhere
  measure,  ///< checks their sizes and lists them, and decodes nothing: the layers get none
};

struct NetworkReading {
  WeightsInJson weights = WeightsInJson::read;
  Fp4Table fp4 = Fp4Table::ocp;
  std::vector<TensorSummary>* measured = nullptr;  ///< of `measure`: where they are listed
  std::map<std::string, float>* scales = nullptr;  ///< of `ignore`: where stated scales go, by path
};

/// Reads a network object, as at the top of a checkpoint. Throws FormatError at the wrong value.
Network read_network(const JsonValue& object, const NetworkReading& reading);

/// Reads one object of `layers`. Throws like read_network.
Layer read_layer(const JsonValue& object, const NetworkReading& reading);

/// What a writer puts into the layer objects.
enum class LayerContent : std::uint8_t {
  all,
  settings,   ///< all but the weights
  described,  ///< as the metadata of tensor files: no weights; a scale only where a tensor has no place for it
  topology,   ///< as the header of an `.entity` file has it: no weights, no `seq_length` of 1 where it says nothing
};

void write_layer(JsonWriter& json, const Layer& layer, LayerContent content);
void write_network(JsonWriter& json, const Network& network, LayerContent content);
std::string network_text(const Network& network, files::JsonStyle style, LayerContent content);

/// Whether the codes stand under a key of their own, with nothing beside them: the original then finds no weights
/// rather than wrong ones.
bool stands_as_blocks(Format format) noexcept;

/// What files state where they must name one of the 21 dtypes: of a block format, what the original has in its place.
DType dtype_beside(Format format) noexcept;

/// The type that a file names: as parse_format, and also entity_q4_0, which users cannot name.
Format parse_stored_format(std::string_view text);

/// Whether an `.entity` file has the layer's matrices one by one in the original's Q4_0: attention and SwiGLU.
bool has_entity_blocks(const LayerConfig& config) noexcept;

/// Gives `layer` the weights that a file has for it: `bytes` in the layer's dtype, or in float32 if not `native`.
/// There is one scale, or as many as the granularity of the layer needs, and as many zero points or none. Throws
/// UsageError or ShapeError if they do not fit.
struct StoredWeights {
  std::span<const std::byte> bytes;
  bool native = true;
  float scale = 0;  ///< 0: none was given
  std::span<const float> scales = {};
  float zero_point = 0;
  std::span<const float> zeros = {};  ///< zero points of rows or groups; empty: all 0
};
void install_weights(Layer& layer, const StoredWeights& stored, Fp4Table fp4);

/// As install_weights checks it, for weights of that many bytes and scales.
struct StoredSizes {
  std::size_t bytes = 0;
  bool native = true;
  std::size_t scales = 0, zeros = 0;  ///< of rows or groups
};
/// Name and type are left to the caller where they differ from `path` and the layer's dtype.
TensorSummary measure_weights(const LayerConfig& config, const StoredSizes& stored, std::string path);

/// The bytes that a file has for the weights of `layer`, and what they belong to: a version, or the master.
struct EmittedWeights {
  std::shared_ptr<const Version> version;
  std::span<const std::byte> bytes;
  float scale = 0;
  std::span<const float> scales;  ///< of rows or groups
  float zero_point = 0;
  std::span<const float> zeros;  ///< of rows or groups; empty: all 0
};
/// REQUIRES: layer.weights.
EmittedWeights emit_weights(const Layer& layer);

/// Little-endian float32 values. Throws FormatError at `value` if it is not a whole number of them.
std::vector<float> read_floats(const JsonValue& value, std::string_view what);

}  // namespace imago::checkpoint
