#include "lm/decoder_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "backend/memory.h"
#include "base/file.h"
#include "imago/device.h"
#include "lm/fingerprint.h"
#include "models/mixers.h"
#include "models/open_model.h"
#include "models/program.h"
#include "models/tensor_layout.h"

namespace imago::lm {

namespace {

using backend::Program;
using backend::Runner;
using backend::Step;
using backend::WeightKey;
using backend::WeightUse;
using files::StoredTensor;
using files::TensorFile;
using models::Role;
using models::WeightSlice;

/// Fills a decoder with the weights of its steps.
class DecoderLoader {
 public:
  /// `encoder` is asked for every matrix; it may be empty.
  DecoderLoader(DecoderWeights& weights, MatrixSource& source, const LanguageModelOptions& options,
                const MatrixEncoder& encoder)
      : weights_(weights), source_(source), options_(options), encoder_(encoder) {
    for (const StoredTensor& tensor : source.file()->tensors()) total_bytes_ += tensor.bytes.size();
  }

  std::vector<float> vector(Role role) {
    const auto slice = source_.tensors().find(role);
    return slice ? vector(*slice) : std::vector<float>();
  }

  void load(std::span<const Step> steps, std::size_t runner) {
    for (const WeightUse& use : backend::weights_of(steps)) load(use, runner);
  }

  /// The output of the last runner and the token embedding of the first; they may be one matrix.
  void load_ends(const Program& program) {
    const WeightKey table = program.embed.table;
    const std::size_t last = weights_.runners.size() - 1;
    bool tied = false;
    for (const WeightUse& use : backend::weights_of(program.output)) {
      if (use.keys.front() == table) {
        tied = true;
      } else {
        load(use, last);
      }
    }
    load({.keys = {table}, .runner = tied ? last : 0, .multiplied = tied, .looked_up = true});
    Runner& first = *weights_.runners.front();
    const backend::Embed& embed = program.embed;
    for (const auto& key : {embed.positions, embed.types}) {
      if (key) first.take(*key, vector(key->role));
    }
    if (embed.norm) load(std::span<const Step>(std::initializer_list<Step>{*embed.norm}), 0);
    load(program.head.steps, last);
    if (const auto& layers = program.embed.layers) {
      load({.keys = {layers->table}, .multiplied = false, .looked_up = true});
      load({.keys = {layers->projection}});
      load({.kind = WeightUse::Kind::norm, .keys = {layers->norm}}, 0);
    }
    if (const auto& streams = program.embed.streams) {
      for (std::size_t i = 0; i + 1 < streams->count; ++i) load({.keys = {streams->projection.of_expert(i)}});
    }
  }

  /// Which matrices did not take the type that the options ask for.
  std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    for (const auto& [what, count] : misfits_) {
      notes.push_back(fmt::format("the rows of {} of {} matrices, {} weights long, fit no block of {}: they are {}",
                                  count, prepared_, what.first, options_.type->name(), what.second));
    }
    for (const auto& [type, count] : decoded_) {
      notes.push_back(fmt::format("{} matrices are published in {} with scales that no type here has: they are float16",
                                  count, type));
    }
    return notes;
  }

 private:
  void load(MatrixGroup group) {
    std::vector<PreparedMatrix> prepared;
    for (const WeightKey& key : group.keys) {
      prepared.push_back(prepare(key));
      group.formats.push_back(prepared.back().format);
    }
    LaidOutGroup laid = weights_.lay_out(group, std::move(prepared));
    weights_.exchange(group, laid);
    for (const WeightKey& key : group.keys) finish(slice_of(key));
    weights_.groups.push_back(std::move(group));
  }

  void load(const WeightUse& use, std::size_t index) {
    const WeightKey& key = use.keys.front();
    Runner& runner = *weights_.runners[index];
    switch (use.kind) {
      case WeightUse::Kind::matrix: return load({.keys = use.keys, .runner = index});
      case WeightUse::Kind::router: {
        const WeightSlice slice = slice_of(key);
        const PreparedMatrix prepared = source_.prepare(slice, source_.format_for(slice, std::nullopt));
        const backend::KeyedMatrix matrix{key, prepared.view()};
        runner.exchange(*runner.lay_out({&matrix, 1}));
        return finish(slice);
      }
      case WeightUse::Kind::norm: {
        const WeightSlice slice = slice_of(key);
        std::vector<float> values = vector(slice);
        if (models::is_norm(key.role)) {
          for (float& value : values) value += weights_.traits.norm_offset;
        } else {
          values = models::mixer_vector(weights_.traits, key.role, std::move(values), slice.cols);
        }
        return runner.take(key, values);
      }
      case WeightUse::Kind::bias:
        if (const auto slice = source_.tensors().find(key.role, key.block, key.expert)) {
          runner.take(key, vector(*slice));
        }
        return;
    }
  }

  WeightSlice slice_of(const WeightKey& key) const {
    return source_.tensors().require(key.role, key.block, key.expert);
  }

  std::vector<float> vector(const WeightSlice& slice) {
    std::vector<float> values = source_.values(slice);
    finish(slice);
    return values;
  }

  /// As the encoder packs it, or in the type that the options ask for.
  PreparedMatrix prepare(const WeightKey& key) {
    const WeightSlice slice = slice_of(key);
    if (encoder_) {
      if (auto encoded = encoder_(key, source_.values(slice), slice.rows, slice.cols)) {
        const Format format = encoded->format;
        return {.slice = slice, .format = format, .encoded = std::move(encoded)};
      }
    }
    const Format format = source_.format_for(slice, options_.type);
    ++prepared_;
    const bool decoded = slice.tensor->published && !options_.type && format == Format(DType::float16);
    if (decoded) ++decoded_[slice.tensor->type];
    if (options_.type && format != *options_.type) ++misfits_[{slice.cols, std::string(format.name())}];
    return source_.prepare(slice, format);
  }

  /// The pages of a weight leave memory once it has been read.
  void finish(const WeightSlice& slice) {
    done_bytes_ = std::min<std::uint64_t>(total_bytes_, done_bytes_ + release(slice));
    if (options_.progress) options_.progress(done_bytes_, total_bytes_);
  }

  DecoderWeights& weights_;
  MatrixSource& source_;
  const LanguageModelOptions& options_;
  const MatrixEncoder& encoder_;
  std::uint64_t total_bytes_ = 0, done_bytes_ = 0;
  std::map<std::pair<std::size_t, std::string>, std::size_t> misfits_;  // by length of rows and type
  std::map<std::string, std::size_t> decoded_;                          // published matrices, by type
  std::size_t prepared_ = 0;
};

/// Tells models apart by names, shapes, types and the first and last bytes of every tensor: reading all of a large
/// model would take longer than loading it.
std::uint64_t fingerprint(const TensorFile& file, std::optional<Format> type) {
  constexpr std::size_t kBytes = 64;
  Fingerprint hash;
  for (const StoredTensor& tensor : file.tensors()) {
    hash.add(tensor.name);
    hash.add(tensor.type);
    for (const std::size_t extent : tensor.shape.extents()) hash.add(extent);
    hash.add(tensor.bytes.first(std::min(kBytes, tensor.bytes.size())));
    hash.add(tensor.bytes.last(std::min(kBytes, tensor.bytes.size())));
  }
  hash.add(type ? type->name() : std::string_view());
  return hash.value();
}

/// The first block that the device of the options gets; all blocks stay on the host if they name none.
std::size_t first_device_block(const Program& program, const MatrixSource& source, std::size_t context,
                               const LanguageModelOptions& options) {
  if (options.device == nullptr || options.device->is_host() || options.gpu_layers == 0) return program.blocks.size();
  const auto matrix_bytes = [&](const WeightKey& key) {
    const WeightSlice slice = source.tensors().require(key.role, key.block, key.expert);
    const Format format = source.format_for(slice, options.type);
    const std::size_t group = slice.tensor->format == format ? slice.tensor->scale_group : 0;
    return backend::device_matrix_bytes(format, slice.rows, slice.cols, group);
  };
  const auto bytes_of = [&](std::span<const Step> steps) {
    std::uint64_t sum = 0;
    for (const WeightUse& use : backend::weights_of(steps)) {
      if (use.kind == WeightUse::Kind::norm || use.kind == WeightUse::Kind::bias) continue;
      for (const WeightKey& key : use.keys) sum += matrix_bytes(key);
    }
    return sum;
  };
  std::vector<std::uint64_t> blocks;
  for (const backend::Block& block : program.blocks) blocks.push_back(bytes_of(block.steps));
  const WeightKey table = program.embed.table;
  const bool tied = std::ranges::any_of(backend::weights_of(program.output),
                                        [&](const WeightUse& use) { return use.keys.front() == table; });
  std::uint64_t embedding = tied ? 0 : matrix_bytes(table);
  if (const auto& layers = program.embed.layers) {
    embedding += matrix_bytes(layers->table) + matrix_bytes(layers->projection);
  }
  const backend::DecoderBytes bytes{
      .blocks = blocks,
      .output = bytes_of(program.output),
      .embedding = embedding,
      .work = backend::device_work_bytes(program.sizes,
                                         std::min(backend::kDeviceBatch, std::max<std::size_t>(1, context)))};
  const std::string name = options.device->name();
  return backend::plan_device(bytes, options.gpu_layers, backend::free_memory(name), name).first_block;
}

/// Blocks that share a cache are on one device: the first block from `first` on, after which none attends to the cache
/// of a block before it.
std::size_t after_shared_caches(const Program& program, std::size_t first) {
  for (std::size_t i = first; i < program.blocks.size(); ++i) {
    for (const Step& step : program.blocks[i].steps) {
      const auto* const attend = std::get_if<backend::Attend>(&step);
      if (attend != nullptr && attend->cache.value_or(i) < first) return after_shared_caches(program, i + 1);
    }
  }
  return first;
}

}  // namespace

void DecoderWeights::count_bytes() {
  run_bytes = step_bytes = 0;
  for (const auto& runner : runners) {
    run_bytes += runner->bytes();
    step_bytes += runner->step_bytes();
  }
  std::map<std::string_view, std::uint64_t> weights_of_type;
  for (const MatrixGroup& group : groups) {
    for (std::size_t i = 0; i < group.keys.size(); ++i) {
      const models::RoleExtent extent = models::extent_of(traits, group.keys[i].role, group.keys[i].block);
      weights_of_type[group.formats[i].name()] += std::uint64_t{extent.rows} * extent.cols;
    }
  }
  const auto most = std::ranges::max_element(weights_of_type, {}, [](const auto& one) { return one.second; });
  if (most != weights_of_type.end()) type = most->first;
}

std::shared_ptr<MatrixSource> DecoderWeights::open_source() const {
  if (source) return source;
  if (path.empty()) throw UnsupportedError("this model was not loaded from a file, so its matrices keep their types");
  auto opened = std::make_shared<MatrixSource>(models::open_model(path), traits);
  if (lm::fingerprint(*opened->file(), loaded_type) != fingerprint) {
    throw FormatError(path, 0, "has changed since the model was loaded; load it again");
  }
  return opened;
}

LaidOutGroup DecoderWeights::lay_out(const MatrixGroup& group, std::vector<PreparedMatrix> prepared) const {
  LaidOutGroup laid;
  const Runner& first = *runners.front();
  const bool on_host = first.device()->is_host();
  if (group.multiplied) {
    std::vector<backend::KeyedMatrix> matrices;
    for (std::size_t i = 0; i < prepared.size(); ++i) matrices.push_back({group.keys[i], prepared[i].view()});
    laid.product = runners[group.runner]->lay_out(matrices);
  }
  // A GPU looks rows up in the matrix that it multiplies with.
  if (group.looked_up && (on_host || !group.multiplied || group.runner != 0)) {
    laid.table = first.lay_out_table(group.keys.front(), table_of(std::move(prepared.front()), on_host));
  }
  return laid;
}

void DecoderWeights::exchange(const MatrixGroup& group, LaidOutGroup& laid) const {
  if (laid.product) runners[group.runner]->exchange(*laid.product);
  if (laid.table) runners.front()->exchange(*laid.table);
}

DecoderWeights load_decoder(TensorFile opened, const LanguageModelOptions& options, const MatrixEncoder& encoder) {
  DecoderWeights weights;
  weights.path = opened.path();
  weights.loaded_type = options.type;
  weights.traits = models::read_traits(opened);
  weights.source = std::make_shared<MatrixSource>(std::move(opened), weights.traits);
  MatrixSource& source = *weights.source;
  const TensorFile& file = *source.file();
  for (const StoredTensor& tensor : file.tensors()) weights.parameters += tensor.shape.elements();
  for (const StoredTensor* const tensor : source.tensors().encoders()) {
    weights.parameters -= tensor->shape.elements();
  }
  weights.program = std::make_shared<const Program>(models::make_program(weights.traits));
  const Program& program = *weights.program;
  if (program.embed.positions) {
    weights.learned_positions = source.tensors().require(program.embed.positions->role).rows;
  }

  const std::size_t blocks = program.blocks.size();
  const std::size_t planned = first_device_block(program, source, weights.traits.context, options);
  const std::size_t on_host = after_shared_caches(program, planned);
  if (on_host != 0) {
    weights.runners.push_back(std::make_unique<backend::CpuRunner>(
        weights.program, backend::RunnerOptions{.blocks = {0, on_host}, .fast = options.fast}));
  }
  if (on_host != blocks) {
    weights.runners.push_back(backend::make_cuda_runner(options.device, weights.program,
                                                        {.blocks = {on_host, blocks}, .fast = options.fast}));
  }
  DecoderLoader loader(weights, source, options, encoder);
  weights.rope_divisors = loader.vector(Role::rope_factors);
  for (std::size_t runner = 0; runner < weights.runners.size(); ++runner) {
    const backend::BlockRange range = weights.runners[runner]->blocks();
    for (std::size_t i = range.begin; i < range.end; ++i) loader.load(program.blocks[i].steps, runner);
  }
  loader.load_ends(program);
  for (const auto& runner : weights.runners) runner->finish();

  weights.notes = loader.notes();
  if (on_host != planned) {
    weights.notes.push_back(fmt::format("blocks {} to {} stay on the host, whose caches they or later ones attend to",
                                        planned, on_host - 1));
  }
  if (std::string note = models::encoder_note(source.tensors()); !note.empty()) {
    weights.notes.push_back(std::move(note));
  }
  weights.count_bytes();
  weights.fingerprint = fingerprint(file, options.type);
  bool mapped = true;
  for (const StoredTensor& tensor : file.tensors()) mapped = release_pages(tensor.bytes) && mapped;
  if (!mapped) weights.source.reset();
  return weights;
}

}  // namespace imago::lm
