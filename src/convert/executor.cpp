#include "convert/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>

#include "base/file.h"
#include "base/parallel.h"
#include "guided/encode_matrix.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "quant/packed_array.h"
#include "quant/scheme.h"

namespace imago::convert {

namespace {

// Weights of a piece: 256 KiB as float32, which stay in the second-level cache between decoding and encoding.
constexpr std::size_t kPieceWeights = std::size_t{1} << 16;
// Pieces of a batch: enough that threads wait little for the last one.
constexpr std::size_t kBatchPieces = 64;
// One being computed, one waiting, one being written.
constexpr std::size_t kBatches = 3;

/// A tensor being converted.
struct Job {
  const PlannedTensor& planned;
  const TensorGuide& guide;
  models::RecipeReader reader;
  ScaleValues scales;            // of a scaled type: all of them, and as many zero points if the plan has them
  std::vector<std::byte> codes;  // of a tensor guided by a calibration: all codes, made before its first piece
  bool whole = false;            // decoded as a whole before its pieces are encoded
  bool checked = false;          // its values were checked as a whole
  TensorError error;

  Job(const PlannedTensor& plan, const TensorGuide& guidance)
      : planned(plan), guide(guidance), reader(*plan.recipe, plan.scheme.granularity == Granularity::row) {}
  bool is_guided() const noexcept { return !guide.inputs.empty(); }
  const std::vector<float>& values(Due::Part part) const noexcept {
    return part == Due::Part::scales ? scales.scales : scales.zero_points;
  }
  /// Puts the scales of groups [first, …) in their place. Zero points that are all 0 may be missing.
  void put(const ScaleValues& found, std::size_t first) {
    std::ranges::copy(found.scales, scales.scales.begin() + static_cast<std::ptrdiff_t>(first));
    if (found.zero_points.empty()) return;
    std::ranges::copy(found.zero_points, scales.zero_points.begin() + static_cast<std::ptrdiff_t>(first));
  }
  /// The weights to encode.
  void read(std::size_t first, std::span<float> weights) const {
    reader.read(first, weights);
    if (guide.changes_weights()) guide.apply(first, weights, planned.recipe->shape);
  }
};

/// Elements [first, first + count) of a job, or its scales.
struct Piece {
  const Due* due;
  Job* job;
  std::size_t first, count;
};

/// A piece of the target, ready to be written: in its own buffer, or in the source.
struct Slot {
  std::string_view name;
  std::vector<std::byte> buffer;
  std::span<const std::byte> bytes;  // of the buffer or of the source
};

/// Pieces that are computed together and written one after the other.
struct Batch {
  std::vector<Slot> slots;
  std::vector<std::span<const std::byte>> sources;  // pages that are not needed once it is written
};

std::span<float> scratch(std::size_t count, int which) {
  thread_local std::vector<float> buffers[2];
  std::vector<float>& buffer = buffers[which];
  if (buffer.size() < count) buffer.resize(count);
  return std::span(buffer).first(count);
}

/// A single scale needs all weights at once, unless the extremes of every piece give it.
bool needs_all_weights(const PlannedTensor& planned) {
  if (!planned.type.scaled || planned.copied || planned.scheme.granularity != Granularity::tensor) return false;
  const bool averages = info(planned.type.format->dtype()).kind == NumberKind::binary;
  return planned.scheme.calibrator != Calibrator::absmax || averages;
}

bool widens_integers(const PlannedTensor& planned) {
  const auto is_number = [](std::optional<Format> format) {
    return format && format->has_scales() && bits(format->dtype()) >= 8 &&
           info(format->dtype()).kind != NumberKind::narrow_float;
  };
  return !planned.copied && !planned.type.scaled && is_number(planned.type.format) &&
         is_number(planned.source().format);
}

/// Whether a code of a 16-bit float type is infinite or NaN.
bool has_infinity(std::span<const std::byte> bytes, unsigned exponent) {
  bool found = false;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    std::uint16_t code = 0;
    std::memcpy(&code, bytes.data() + i, sizeof code);
    found |= (code & exponent) == exponent;
  }
  return found;
}

class Executor {
 public:
  Executor(std::span<const PlannedTensor> plan, std::span<const TensorGuide> guides, TargetWriter& target,
           const ConvertOptions& options)
      : options_(options), target_(target) {
    for (std::size_t i = 0; i < plan.size(); ++i) {
      const PlannedTensor& planned = plan[i];
      jobs_.push_back(std::make_unique<Job>(planned, guides[i]));
      Job& job = *jobs_.back();
      job.whole = !planned.copied && (planned.has_parts() || job.reader.needs_whole() || needs_all_weights(planned) ||
                                      job.is_guided() || job.guide.changes_weights());
      if (planned.type.scaled) {
        const files::StoredTensor& source = planned.source();
        job.scales = {std::vector<float>(planned.scales.count),
                      std::vector<float>(planned.zero_points ? planned.scales.count : 0)};
        if (planned.copied) job.scales = {source.scale_values, source.zero_points};
      }
      total_ += models::source_bytes(*planned.recipe);
    }
    for (const Due& due : target.due()) cut(due);
  }

  std::vector<std::optional<TensorError>> run() {
    const std::size_t most = std::max<std::size_t>(kBatchPieces, 8 * static_cast<std::size_t>(pool_threads()));
    std::vector<std::size_t> bounds = {0};
    while (bounds.back() < pieces_.size()) bounds.push_back(batch_end(bounds.back(), most));
    const std::size_t count = bounds.size() - 1;

    std::array<Batch, kBatches> batches;  // reused, so that buffers are allocated once
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t computed = 0, written = 0;  // batches
    bool failed = false;
    // What one side does with every batch, once it is ready for that. Stops if the other side failed.
    const auto for_each_batch = [&](auto ready, auto work, std::size_t& done) {
      try {
        for (std::size_t i = 0; i < count; ++i) {
          std::unique_lock lock(mutex);
          changed.wait(lock, [&] { return failed || ready(i); });
          if (failed) return;
          lock.unlock();
          work(i);
          lock.lock();
          ++done;
          changed.notify_all();
        }
      } catch (...) {
        const std::lock_guard lock(mutex);
        failed = true;
        changed.notify_all();
        throw;
      }
    };
    std::future<void> writing = std::async(std::launch::async, [&] {
      for_each_batch([&](std::size_t i) { return i < computed; }, [&](std::size_t i) { write(batches[i % kBatches]); },
                     written);
    });
    for_each_batch([&](std::size_t i) { return i < written + kBatches; },
                   [&](std::size_t i) {
                     prefetch(bounds[i + 1], std::min(pieces_.size(), bounds[i + 1] + most));
                     compute(std::span(pieces_).subspan(bounds[i], bounds[i + 1] - bounds[i]), batches[i % kBatches]);
                   },
                   computed);
    writing.get();  // throws what writing threw
    return errors();
  }

 private:
  void cut(const Due& due) {
    Job& job = *jobs_[due.tensor];
    if (due.part != Due::Part::codes) {
      if (!job.values(due.part).empty()) pieces_.push_back({&due, &job, 0, 0});
      return;
    }
    const std::size_t unit = job.reader.unit();
    const bool in_one = job.planned.has_parts() && !job.planned.copied;
    const std::size_t step = in_one ? job.reader.elements() : std::max(unit, kPieceWeights / unit * unit);
    for (std::size_t first = 0; first < job.reader.elements(); first += step) {
      pieces_.push_back({&due, &job, first, std::min(step, job.reader.elements() - first)});
    }
  }

  void write(const Batch& batch) {
    for (const Slot& slot : batch.slots) target_.write(slot.name, slot.bytes);
    for (const std::span<const std::byte> source : batch.sources) release_pages(source);
  }

  /// Tensors that are decoded as a whole get batches of their own, so that only one is in memory.
  std::size_t batch_end(std::size_t begin, std::size_t most) const {
    std::size_t end = begin + 1;
    while (end < pieces_.size() && end - begin < most) {
      const Job *before = pieces_[end - 1].job, *job = pieces_[end].job;
      if (job != before && (job->whole || before->whole)) break;
      ++end;
    }
    return end;
  }

  void prefetch(std::size_t begin, std::size_t end) const {
    for (std::size_t i = begin; i < end;) {
      std::size_t next = i + 1, count = pieces_[i].count;
      for (; next < end && pieces_[next].due == pieces_[i].due; ++next) count += pieces_[next].count;
      for (const auto source : pieces_[i].job->reader.sources(pieces_[i].first, count)) prefetch_pages(source);
      i = next;
    }
  }

  void compute(std::span<const Piece> pieces, Batch& batch) {
    batch.slots.resize(pieces.size());
    batch.sources.clear();
    std::vector<TensorError> errors(pieces.size());
    for (const Piece& piece : pieces) {
      if (piece.first == 0 && piece.due->part == Due::Part::codes) prepare(*piece.job);
    }
    parallel_for_dynamic(pieces.size(), 1, [&](std::size_t begin, std::size_t) {
      if (pieces[begin].due->part == Due::Part::codes) make(pieces[begin], batch.slots[begin], errors[begin]);
    });
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      pieces[i].job->error += errors[i];
      end_piece(pieces[i], batch.slots[i], batch);
    }
    if (options_.progress) options_.progress(std::min(done_, total_), total_);
  }

  void end_piece(const Piece& piece, Slot& slot, Batch& batch) {
    Job& job = *piece.job;
    slot.name = piece.due->name;
    if (piece.due->part != Due::Part::codes) {  // complete by now: they are due after the codes
      const auto bytes = std::as_bytes(std::span(job.values(piece.due->part)));
      slot.buffer.assign(bytes.begin(), bytes.end());
      slot.bytes = slot.buffer;
      const files::StoredTensor& source = job.planned.source();
      const bool scales = piece.due->part == Due::Part::scales;
      done_ += (scales ? source.scale_values : source.zero_points).size() * sizeof(float);
      return;
    }
    for (const auto source : job.reader.sources(piece.first, piece.count)) {
      batch.sources.push_back(source);
      done_ += source.size();
    }
    if (piece.first + piece.count == job.reader.elements()) {
      job.reader.release_whole();
      job.codes = {};
    }
  }

  /// Computes what the pieces of a tensor need from all of it.
  void prepare(Job& job) {
    const PlannedTensor& planned = job.planned;
    if (!options_.allow_nonfinite && (planned.source().scale_group != 0 || job.whole)) {
      job.reader.check_all();
      job.checked = true;
    }
    if (planned.has_parts() && !planned.copied) return encode_parts(job);
    if (job.is_guided()) return encode_whole(job);
    if (job.whole) job.reader.load_whole();
    if (planned.copied || !planned.type.scaled || planned.scheme.granularity != Granularity::tensor) return;
    if (needs_all_weights(planned)) {
      std::vector<float> weights(job.reader.elements());
      job.read(0, weights);
      job.put(derive_scales(planned.scheme, planned.scales, weights), 0);
    } else {
      const std::vector<float> extremes = find_extremes(job);
      job.put(derive_scales(planned.scheme, {1, extremes.size()}, extremes), 0);
    }
  }

  /// Encodes a layer's array of matrices and vectors.
  void encode_parts(Job& job) const {
    const WeightShape& shape = *job.planned.recipe->array;
    const Format format = *job.planned.type.format;
    std::vector<float> weights(job.reader.elements());
    job.reader.read(0, weights);
    job.codes.resize(job.planned.code_bytes);
    encode_array(format, shape, weights, {}, job.codes);
    if (!options_.measure_error) return;
    std::vector<float> back(weights.size());
    decode_array(format, shape, job.codes, {}, back);
    job.error.add(weights, back);
  }

  /// Encodes a whole tensor, guided by the inputs of each matrix in it.
  void encode_whole(Job& job) const {
    const PlannedTensor& planned = job.planned;
    const std::size_t cols = planned.recipe->shape.last(), matrices = job.guide.inputs.size();
    std::vector<float> weights(job.reader.elements());
    models::apply_recipe(*planned.recipe, weights);
    job.guide.apply(0, weights, planned.recipe->shape);
    const Scheme& scheme = planned.scheme;
    const std::size_t each = weights.size() / matrices;
    job.codes.reserve(planned.code_bytes);
    std::size_t scales = 0;
    for (std::size_t i = 0; i < matrices; ++i) {
      const std::span<const float> matrix = std::span<const float>(weights).subspan(i * each, each);
      const guided::InputStatistics* inputs = job.guide.inputs[i].get();
      const guided::EncodedMatrix encoded = guided::encode_matrix(
          matrix, each / cols, cols, scheme, inputs == nullptr ? Rounding::nearest : *options_.rounding, inputs);
      job.codes.insert(job.codes.end(), encoded.codes.begin(), encoded.codes.end());
      job.scales.scales.resize(std::max(job.scales.scales.size(), scales + encoded.scales.size()));
      if (planned.zero_points) job.scales.zero_points.resize(job.scales.scales.size());
      job.put({encoded.scales, encoded.zero_points}, scales);
      scales += encoded.scales.size();
      if (options_.measure_error) job.error.add(matrix, guided::decode_matrix(encoded, scheme, each / cols, cols));
    }
  }

  /// The least and greatest weight of each piece: absmax finds the same scale from them as from all weights.
  std::vector<float> find_extremes(const Job& job) const {
    const std::size_t unit = job.reader.unit(), step = std::max(unit, kPieceWeights / unit * unit);
    std::vector<float> found(2 * ((job.reader.elements() + step - 1) / step));
    parallel_for_dynamic(job.reader.elements(), step, [&](std::size_t begin, std::size_t end) {
      const std::span<float> weights = scratch(end - begin, 0);
      job.read(begin, weights);
      float low = 0, high = 0;
      for (const float w : weights) {
        low = w < low ? w : low;  // false for NaN, which is skipped
        high = w > high ? w : high;
      }
      found[2 * (begin / step)] = low;
      found[2 * (begin / step) + 1] = high;
      for (const auto source : job.reader.sources(begin, end - begin)) release_pages(source);
    });
    return found;
  }

  void make(const Piece& piece, Slot& slot, TensorError& error) const {
    Job& job = *piece.job;
    const PlannedTensor& planned = job.planned;
    if (!options_.allow_nonfinite && !job.checked) job.reader.check(piece.first, piece.count);
    if (planned.copied) {
      slot.bytes = job.reader.view(piece.first, piece.count);
      if (!slot.bytes.empty()) return;
    }
    if (planned.has_parts() && !planned.copied) {
      slot.buffer = std::move(job.codes);
      slot.bytes = slot.buffer;
      return;
    }
    slot.buffer.resize(size_of(piece));
    slot.bytes = slot.buffer;
    if (planned.copied) return job.reader.copy(piece.first, piece.count, slot.buffer);
    if (widens_integers(planned)) {
      return job.reader.widen(piece.first, piece.count, planned.type.format->dtype(), slot.buffer);
    }
    if (job.is_guided()) {
      const auto from =
          job.codes.begin() + static_cast<std::ptrdiff_t>(packed_bytes(*planned.type.format, piece.first));
      std::copy_n(from, slot.buffer.size(), slot.buffer.begin());
      return;
    }

    const std::span<float> weights = scratch(piece.count, 0);
    job.read(piece.first, weights);
    const Scales scales = scales_of(job, piece, weights);
    const Format format = *planned.type.format;
    encode(format, weights, scales, slot.buffer);
    if (!options_.allow_nonfinite) check_range(planned, weights, slot.buffer);
    if (!options_.measure_error) return;
    const std::span<float> back = scratch(weights.size(), 1);
    decode(format, slot.buffer, scales, back);
    error.add(weights, back);
  }

  static std::size_t size_of(const Piece& piece) {
    const PlannedTensor& planned = piece.job->planned;
    if (planned.type.format) return packed_bytes(*planned.type.format, piece.count);
    std::size_t bytes = 0;
    for (const auto source : piece.job->reader.sources(piece.first, piece.count)) bytes += source.size();
    return bytes;
  }

  /// Finds scales per row or group; each of them belongs to one piece only.
  static Scales scales_of(Job& job, const Piece& piece, std::span<const float> weights) {
    const PlannedTensor& planned = job.planned;
    if (!planned.type.scaled) return {};
    if (planned.scheme.granularity == Granularity::tensor)
      return job.scales.over(std::max<std::size_t>(weights.size(), 1));
    const std::size_t group = planned.scales.group, first = piece.first / group;
    const ScaleLayout layout{weights.size() / group, group};
    job.put(derive_scales(planned.scheme, layout, weights), first);
    const auto of_piece = [&](std::span<const float> all) {
      return all.empty() ? all : all.subspan(first, layout.count);
    };
    return {of_piece(job.scales.scales), group, of_piece(job.scales.zero_points)};
  }

  void check_range(const PlannedTensor& planned, std::span<const float> weights,
                   std::span<const std::byte> codes) const {
    const Format format = *planned.type.format;
    if (!format.is_wide() || planned.type.scaled) return;
    const DType dtype = format.dtype();
    bool lost = false;
    if (dtype == DType::float16) lost = has_infinity(codes, 0x7C00);
    if (dtype == DType::bfloat16) lost = has_infinity(codes, 0x7F80);
    if (dtype == DType::float32) {
      lost = !std::ranges::all_of(weights, [](float weight) { return std::isfinite(weight); });
    }
    if (!lost) return;
    throw UnsupportedError(fmt::format(
        "{}: tensor '{}' holds values beyond the range of {}; choose {} or, to store infinities, allow values "
        "that are not finite",
        planned.source().file, planned.source().name, name(dtype),
        dtype == DType::float16 ? "bfloat16 or float32" : "a wider type"));
  }

  std::vector<std::optional<TensorError>> errors() const {
    std::vector<std::optional<TensorError>> found(jobs_.size());
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      const Job& job = *jobs_[i];
      if (!options_.measure_error || job.planned.copied || widens_integers(job.planned)) continue;
      found[i] = job.error;
    }
    return found;
  }

  const ConvertOptions& options_;
  TargetWriter& target_;
  std::vector<std::unique_ptr<Job>> jobs_;  // one per tensor of the plan
  std::vector<Piece> pieces_;               // in the order of the target
  std::uint64_t done_ = 0, total_ = 0;      // bytes of the source
};

}  // namespace

void TensorError::add(std::span<const float> weights, std::span<const float> got) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double weight = static_cast<double>(weights[i]), error = weight - static_cast<double>(got[i]);
    signal += weight * weight;
    noise += error * error;
  }
}

std::vector<std::optional<TensorError>> execute(std::span<const PlannedTensor> plan,
                                                std::span<const TensorGuide> guides, TargetWriter& target,
                                                const ConvertOptions& options) {
  return Executor(plan, guides, target, options).run();
}

}  // namespace imago::convert
