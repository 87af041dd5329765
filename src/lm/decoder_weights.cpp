#include "lm/decoder_weights.h"

#include <algorithm>
#include <utility>

#include "backend/memory.h"
#include "base/file.h"
#include "imago/error.h"
#include "lm/fingerprint.h"
#include "lm/matrix_loader.h"
#include "models/decoder_tensors.h"
#include "models/program.h"

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
