#include "lm/decoder_weights.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "backend/memory.h"
#include "base/file.h"
#include "imago/codec.h"
#include "imago/device.h"
#include "lm/fingerprint.h"
#include "models/decoder_tensors.h"
#include "models/program.h"
#include "quant/scheme.h"

namespace imago::lm {

namespace {

using backend::Program;
using backend::Runner;
using backend::Step;
using backend::WeightKey;
using backend::WeightUse;
using files::StoredTensor;
using files::TensorFile;
using models::DecoderTensors;
using models::Role;
using models::WeightSlice;

/// A matrix in the type it will be computed in, before it is laid out.
struct PreparedMatrix {
  WeightSlice slice;
  Format format = DType::float32;
  std::optional<EncodedWeights> encoded;  ///< none: as the file has it
};

/// Weights that are float32 at a time while a matrix is encoded: 64 MiB.
constexpr std::size_t kPieceWeights = std::size_t{16} << 20;

/// The bytes that hold a slice. A transposed one is spread over its whole tensor.
std::span<const std::byte> bytes_of(const WeightSlice& slice) {
  const StoredTensor& tensor = *slice.tensor;
  const std::size_t rows = tensor.rows();
  if (slice.transposed || rows == 0 || tensor.bytes.size() % rows != 0) return tensor.bytes;
  const std::size_t row_bytes = tensor.bytes.size() / rows;
  if (slice.first_row > rows || slice.rows > rows - slice.first_row) return tensor.bytes;
  return tensor.bytes.subspan(slice.first_row * row_bytes, slice.rows * row_bytes);
}

/// The matrix where it is: in the file, or in memory of its own.
kernels::PackedMatrix packed_of(const PreparedMatrix& prepared) {
  const WeightSlice& slice = prepared.slice;
  if (prepared.encoded) return prepared.encoded->view(slice.rows, slice.cols);
  return {.format = prepared.format,
          .rows = slice.rows,
          .cols = slice.cols,
          .packed = slice.tensor->bytes,
          .scales = slice.tensor->scales(),
          .first = slice.first_row * slice.cols};
}

/// Prepares matrices one after the other, each in parallel. Every tensor is checked once for values that are not
/// finite, and its pages leave memory once it has been read.
class MatrixLoader {
 public:
  /// `total_bytes`: what progress counts up to. `encoder` is asked for every matrix; it may be empty.
  MatrixLoader(const LanguageModelOptions& options, const MatrixEncoder& encoder, std::uint64_t total_bytes)
      : options_(options), encoder_(encoder), total_bytes_(total_bytes) {}

  /// As the encoder packs it, or in the type that the options ask for where rows fit its blocks, or as stored; float32
  /// for stored types that have no products.
  PreparedMatrix prepare(const models::MatrixKey& key, const WeightSlice& slice) {
    if (encoder_) {
      check(*slice.tensor);
      std::vector<float> weights(slice.rows * slice.cols);
      models::decode_slice(slice, weights);
      if (auto encoded = encoder_(key, weights, slice.rows, slice.cols)) {
        const Format format = encoded->format;
        return {.slice = slice, .format = format, .encoded = std::move(encoded)};
      }
    }
    return prepare_in(slice, planned_format(slice));
  }

  /// In its stored type: for what is small and decides much.
  PreparedMatrix prepare_as_stored(const WeightSlice& slice) { return prepare_in(slice, stored_format(slice)); }

  /// Gives a runner matrices that one product reads together.
  void give(std::span<const WeightKey> keys, std::span<const PreparedMatrix> prepared, Runner& runner) {
    std::vector<backend::KeyedMatrix> matrices;
    for (std::size_t i = 0; i < keys.size(); ++i) matrices.push_back({keys[i], packed_of(prepared[i])});
    runner.take(matrices);
    for (const PreparedMatrix& one : prepared) {
      weights_of_type_[std::string(one.format.name())] += std::uint64_t{one.slice.rows} * one.slice.cols;
      finish(one.slice);
    }
  }

  std::vector<float> vector(const WeightSlice& slice) {
    check(*slice.tensor);
    std::vector<float> values(slice.rows * slice.cols);
    models::decode_slice(slice, values);
    finish(slice);
    return values;
  }

  /// The slice in `format`, encoded piece by piece: float32 is needed for a piece only.
  EncodedWeights encode(const WeightSlice& slice, Format format) {
    const std::size_t rows = slice.rows, cols = slice.cols;
    // A piece is whole rows, and rows that begin at a whole byte.
    const std::size_t piece_rows = std::max<std::size_t>(8, kPieceWeights / std::max<std::size_t>(1, cols) / 8 * 8);
    EncodedWeights encoded{.format = format, .packed = host_device()->allocate(packed_bytes(format, rows * cols))};
    if (format.has_scales()) {
      encoded.scales.resize(rows);
      encoded.scale_group = cols;
    }
    std::vector<float> piece(std::min(piece_rows, rows) * cols);
    for (std::size_t row = 0; row < rows; row += piece_rows) {
      const std::size_t count = std::min(piece_rows, rows - row);
      const std::span<float> weights = std::span(piece).first(count * cols);
      WeightSlice part = slice;
      part.first_row += row;
      part.rows = count;
      models::decode_slice(part, weights);
      const std::span<std::byte> packed =
          encoded.packed.host().subspan(packed_bytes(format, row * cols), packed_bytes(format, count * cols));
      if (format.has_scales()) {
        Scheme scheme(format);
        scheme.granularity = Granularity::row;
        const std::vector<float> scales = derive_scales(scheme, scale_layout(scheme, count, cols), weights);
        std::copy(scales.begin(), scales.end(), encoded.scales.begin() + static_cast<std::ptrdiff_t>(row));
      }
      const std::size_t scales = format.has_scales() ? count : 0;
      imago::encode(format, weights, {std::span(encoded.scales).subspan(scales == 0 ? 0 : row, scales), cols}, packed);
    }
    return encoded;
  }

  /// Bytes that what `prepare` will choose takes on a GPU; an encoder is not asked.
  std::uint64_t planned_device_bytes(const WeightSlice& slice) const {
    const Format format = planned_format(slice);
    const std::size_t group = slice.tensor->format == format ? slice.tensor->scale_group : 0;
    return backend::device_matrix_bytes(format, slice.rows, slice.cols, group);
  }

  /// The type that holds most weights of the matrices given so far.
  std::string main_type() const {
    const auto most = std::max_element(weights_of_type_.begin(), weights_of_type_.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == weights_of_type_.end() ? "" : most->first;
  }

 private:
  Format stored_format(const WeightSlice& slice) const {
    const std::optional<Format> stored = slice.tensor->format;
    if (!stored) return DType::float32;
    // Blocks and scales of a transposed tensor lie across its rows.
    if (slice.transposed && !stored->is_wide()) return DType::float32;
    return *stored;
  }

  Format planned_format(const WeightSlice& slice) const {
    const bool morphs = options_.type && slice.cols % static_cast<std::size_t>(options_.type->block_values()) == 0;
    return morphs ? *options_.type : stored_format(slice);
  }

  PreparedMatrix prepare_in(const WeightSlice& slice, Format format) {
    check(*slice.tensor);
    PreparedMatrix prepared{.slice = slice, .format = format, .encoded = std::nullopt};
    if (slice.transposed || slice.tensor->format != format) prepared.encoded.emplace(encode(slice, format));
    return prepared;
  }

  void check(const StoredTensor& tensor) {
    if (checked_.insert(&tensor).second) files::check_values(tensor);
  }

  void finish(const WeightSlice& slice) {
    const std::span<const std::byte> bytes = bytes_of(slice);
    release_pages(bytes);
    done_bytes_ = std::min<std::uint64_t>(total_bytes_, done_bytes_ + bytes.size());
    if (options_.progress) options_.progress(done_bytes_, total_bytes_);
  }

  const LanguageModelOptions& options_;
  const MatrixEncoder& encoder_;
  std::uint64_t total_bytes_, done_bytes_ = 0;
  std::set<const StoredTensor*> checked_;
  std::map<std::string, std::uint64_t> weights_of_type_;
};

/// Gives runners the weights of their steps.
class DecoderLoader {
 public:
  DecoderLoader(std::shared_ptr<const TensorFile> file, const models::Traits& traits, const DecoderTensors& tensors,
                MatrixLoader& matrices)
      : file_(std::move(file)), traits_(traits), tensors_(tensors), matrices_(matrices) {}

  std::vector<float> vector(Role role) {
    const auto slice = tensors_.find(role);
    return slice ? matrices_.vector(*slice) : std::vector<float>();
  }

  void load(std::span<const Step> steps, Runner& runner) {
    for (const WeightUse& use : backend::weights_of(steps)) load(use, runner);
  }

  /// The output of the last runner and the token embedding of the first; they may be one matrix.
  void load_ends(const Program& program, Runner& first, Runner& last) {
    const WeightKey table = program.embed.table;
    bool tied = false;
    for (const WeightUse& use : backend::weights_of(program.output)) {
      if (use.keys.front() == table) {
        tied = true;
      } else {
        load(use, last);
      }
    }
    PreparedMatrix embedding = matrices_.prepare(table, tensors_.require(table.role));
    if (tied) matrices_.give({&table, 1}, {&embedding, 1}, last);
    first.take_table(table, table_of(std::move(embedding), first.device()->is_host()));
    if (program.embed.positions) {
      first.take(*program.embed.positions, matrices_.vector(tensors_.require(program.embed.positions->role)));
    }
  }

 private:
  void load(const WeightUse& use, Runner& runner) {
    const WeightKey& key = use.keys.front();
    const auto slice = tensors_.find(key.role, key.block, key.expert);
    switch (use.kind) {
      case WeightUse::Kind::matrix: {
        std::vector<PreparedMatrix> prepared;
        for (const WeightKey& one : use.keys) {
          prepared.push_back(matrices_.prepare(one, tensors_.require(one.role, one.block, one.expert)));
        }
        return matrices_.give(use.keys, prepared, runner);
      }
      case WeightUse::Kind::router: {
        const PreparedMatrix prepared = matrices_.prepare_as_stored(tensors_.require(key.role, key.block));
        return matrices_.give(use.keys, {&prepared, 1}, runner);
      }
      case WeightUse::Kind::norm: {
        std::vector<float> values = matrices_.vector(tensors_.require(key.role, key.block));
        for (float& value : values) value += traits_.norm_offset;
        return runner.take(key, values);
      }
      case WeightUse::Kind::bias:
        if (slice) runner.take(key, matrices_.vector(*slice));
        return;
    }
  }

  /// From the file itself if that has the type and its rows can be read one by one; else from memory. A table that
  /// stays on the host has its own bytes if those of the file are memory too.
  backend::RowTable table_of(PreparedMatrix prepared, bool stays) {
    const WeightSlice& slice = prepared.slice;
    const StoredTensor& tensor = *slice.tensor;
    if (!prepared.encoded) {
      if (!rows_are_apart(slice)) {
        prepared.encoded.emplace(matrices_.encode(slice, DType::float32));
      } else if (!release_pages(tensor.bytes) && stays) {
        prepared.encoded.emplace(EncodedWeights{.format = *tensor.format,
                                                .packed = host_device()->allocate(tensor.bytes.size()),
                                                .scales = tensor.scale_values,
                                                .scale_group = tensor.scale_group});
        host_device()->upload(tensor.bytes, prepared.encoded->packed, 0);
      } else {
        return {packed_of(prepared), file_};
      }
    }
    return lm::table_of(slice.rows, slice.cols, std::move(*prepared.encoded));
  }

  /// Whether rows begin at whole bytes and blocks, so that they can be decoded one at a time.
  static bool rows_are_apart(const WeightSlice& slice) {
    if (slice.transposed || slice.first_row != 0 || !slice.tensor->format) return false;
    const Format format = *slice.tensor->format;
    if (slice.cols % static_cast<std::size_t>(format.block_values()) != 0) return false;
    return 8 * packed_bytes(format, slice.cols) == packed_bytes(format, 8 * slice.cols);
  }

  std::shared_ptr<const TensorFile> file_;
  const models::Traits& traits_;
  const DecoderTensors& tensors_;
  MatrixLoader& matrices_;
};

/// Tells models apart by names, shapes, types and the first and last bytes of every tensor: reading all of a large
/// model would take longer than loading it.
std::uint64_t fingerprint(const TensorFile& file, const LanguageModelOptions& options) {
  constexpr std::size_t kBytes = 64;
  Fingerprint hash;
  for (const StoredTensor& tensor : file.tensors()) {
    hash.add(tensor.name);
    hash.add(tensor.type);
    for (const std::size_t extent : tensor.shape.extents()) hash.add(extent);
    hash.add(tensor.bytes.first(std::min(kBytes, tensor.bytes.size())));
    hash.add(tensor.bytes.last(std::min(kBytes, tensor.bytes.size())));
  }
  hash.add(options.type ? options.type->name() : std::string_view());
  return hash.value();
}

/// The first block that the device of the options gets; all blocks stay on the host if they name none.
std::size_t first_device_block(const Program& program, const DecoderTensors& tensors, const MatrixLoader& matrices,
                               std::size_t context, const LanguageModelOptions& options) {
  if (options.device == nullptr || options.device->is_host() || options.gpu_layers == 0) return program.blocks.size();
  const auto bytes_of = [&](std::span<const Step> steps) {
    std::uint64_t sum = 0;
    for (const WeightUse& use : backend::weights_of(steps)) {
      if (use.kind == WeightUse::Kind::norm || use.kind == WeightUse::Kind::bias) continue;
      for (const WeightKey& key : use.keys) {
        sum += matrices.planned_device_bytes(tensors.require(key.role, key.block, key.expert));
      }
    }
    return sum;
  };
  std::vector<std::uint64_t> blocks;
  for (const std::vector<Step>& steps : program.blocks) blocks.push_back(bytes_of(steps));
  const WeightKey table = program.embed.table;
  const bool tied = std::ranges::any_of(backend::weights_of(program.output),
                                        [&](const WeightUse& use) { return use.keys.front() == table; });
  const backend::DecoderBytes bytes{
      .blocks = blocks,
      .output = bytes_of(program.output),
      .embedding = tied ? 0 : matrices.planned_device_bytes(tensors.require(table.role)),
      .work = backend::device_work_bytes(program.sizes,
                                         std::min(backend::kDeviceBatch, std::max<std::size_t>(1, context)))};
  const std::string name = options.device->name();
  return backend::plan_device(bytes, options.gpu_layers, backend::free_memory(name), name).first_block;
}

}  // namespace

void DecoderWeights::count_bytes() {
  run_bytes = step_bytes = 0;
  for (const auto& runner : runners) {
    run_bytes += runner->bytes();
    step_bytes += runner->step_bytes();
  }
}

DecoderWeights load_decoder(TensorFile opened, const LanguageModelOptions& options, const MatrixEncoder& encoder) {
  const auto file = std::make_shared<const TensorFile>(std::move(opened));
  DecoderWeights weights;
  weights.path = file->path();
  weights.traits = models::read_traits(*file);
  const DecoderTensors tensors(*file, weights.traits);
  std::uint64_t total = 0;
  for (const StoredTensor& tensor : file->tensors()) {
    total += tensor.bytes.size();
    weights.parameters += tensor.shape.elements();
  }
  weights.program = std::make_shared<const Program>(models::make_program(weights.traits));
  const Program& program = *weights.program;
  if (program.embed.positions) weights.learned_positions = tensors.require(program.embed.positions->role).rows;

  MatrixLoader matrices(options, encoder, total);
  const std::size_t blocks = program.blocks.size();
  const std::size_t on_host = first_device_block(program, tensors, matrices, weights.traits.context, options);
  if (on_host != 0) {
    weights.runners.push_back(std::make_unique<backend::CpuRunner>(
        weights.program, backend::RunnerOptions{.blocks = {0, on_host}, .fast = options.fast}));
  }
  if (on_host != blocks) {
    weights.runners.push_back(backend::make_cuda_runner(options.device, weights.program,
                                                        {.blocks = {on_host, blocks}, .fast = options.fast}));
  }
  DecoderLoader loader(file, weights.traits, tensors, matrices);
  weights.rope_divisors = loader.vector(Role::rope_factors);
  for (const auto& runner : weights.runners) {
    for (std::size_t i = runner->blocks().begin; i < runner->blocks().end; ++i) {
      loader.load(program.blocks[i], *runner);
    }
  }
  loader.load_ends(program, *weights.runners.front(), *weights.runners.back());
  for (const auto& runner : weights.runners) runner->finish();

  weights.type = matrices.main_type();
  weights.count_bytes();
  weights.fingerprint = fingerprint(*file, options);
  for (const StoredTensor& tensor : file->tensors()) release_pages(tensor.bytes);
  return weights;
}

}  // namespace imago::lm
