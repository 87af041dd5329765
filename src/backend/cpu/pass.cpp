#include "backend/cpu/pass.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/parallel.h"

namespace imago::backend {

namespace {

/// Whether the product of the results of attention rounds them.
bool reads_fast(const CpuRunner& runner, std::span<const Step> after) {
  for (const Step& step : after) {
    const auto* const products = std::get_if<Products>(&step);
    if (products == nullptr || products->in != Slot::query) continue;
    return runner.weights().matrix(products->list.front().matrix)->kernel().arithmetic == kernels::Arithmetic::fast;
  }
  return false;
}

/// Whether a token's results depend on those before it.
bool passes_tokens(const Step& step) {
  return std::holds_alternative<Attend>(step) || std::holds_alternative<ShortConv>(step) ||
         std::holds_alternative<LinearScan>(step) || std::holds_alternative<ChannelScan>(step) ||
         std::holds_alternative<LatentAttend>(step);
}

/// Slots that have rows for the tokens that are read, from the start: what follows the last step that needs them all.
bool of_read_tokens(Slot slot) {
  return slot == Slot::query || slot == Slot::output_gate || slot == Slot::scanned || slot == Slot::attended;
}

/// Attention of one sequence: its keys and values into its pages, its queries over them. Results replace the queries.
struct SegmentAttention {
  const Attend& step;
  std::span<const float> query_norm, key_norm;  // after the rotation
  const Sizes& sizes;
  std::size_t block;
  const kernels::RopeTable* rope;
  std::span<float> q, k, v;             // all tokens of the batch; q only those that are read
  std::span<kernels::KeyRange> ranges;  // like q
  std::span<const float> sinks;
  RowRange all_read;  // tokens of the batch
  bool fast;          // results are rounded to int8 or bfloat16 next
  std::optional<std::size_t> singles;

  /// Tokens of the batch from `first` on.
  void run(const Segment& segment, std::size_t first) const {
    const std::size_t query_values = sizes.of(Slot::query), key_values = sizes.of(Slot::key);
    const std::size_t begin = std::clamp(all_read.first, first, first + segment.tokens);
    const std::size_t end = std::clamp(all_read.first + all_read.count, begin, first + segment.tokens);
    const RowRange read = {begin - first, end - begin};  // the part of the segment
    const std::size_t place = begin == end ? 0 : begin - all_read.first;
    const std::span<float> queries = q.subspan(place * query_values, read.count * query_values);
    const std::span<float> keys = k.subspan(first * key_values, segment.tokens * key_values);
    const std::span<float> values = v.subspan(first * key_values, segment.tokens * key_values);
    const std::size_t cached = step.cache.value_or(block);
    const bool stores = cached == block;
    if (rope != nullptr && step.rotary != 0) {
      kernels::rope(queries, sizes.heads, sizes.head_values, *rope, segment.past + read.first, step.pairs);
      if (stores) kernels::rope(keys, sizes.kv_heads, sizes.head_values, *rope, segment.past, step.pairs);
    }
    if (step.query_norm) {
      kernels::rms_norm(queries, query_norm, step.eps, queries);
      kernels::rms_norm(keys, key_norm, step.eps, keys);
    }
    if (step.growth != 0) grow(queries, segment.past + read.first);
    auto& cache = static_cast<CpuCache&>(*segment.cache);
    if (stores) {
      kernels::append_to_cache(cache.page(block), keys, segment.past, cache.keys(block), segment.pages);
      kernels::append_to_cache(cache.page(block), values, segment.past, cache.values(block), segment.pages);
    }
    if (read.count == 0) return;
    const std::span<kernels::KeyRange> seen = ranges.subspan(place, read.count);
    for (std::size_t t = 0; t < read.count; ++t) {
      seen[t] = step.causal
                    ? kernels::causal_range(segment.past, read.first + t, step.window)
                    : kernels::range_around(segment.past + read.first + t, segment.past + segment.tokens, step.window);
    }
    kernels::attention(cache.page(cached), cache.keys(cached), cache.values(cached), queries, sizes.heads, seen,
                       queries,
                       {.scale = step.scale,
                        .cap = step.cap,
                        .fast = fast && !(singles && first < *singles),
                        .many = singles.has_value(),
                        .sinks = sinks},
                       segment.pages);
  }

  void grow(std::span<float> queries, std::size_t first_position) const {
    const std::size_t query_values = sizes.of(Slot::query);
    for (std::size_t t = 0; t * query_values < queries.size(); ++t) {
      const std::size_t whole_periods = (first_position + t) / step.growth_period;
      if (whole_periods == 0) continue;
      const auto periods = static_cast<double>(whole_periods);
      const auto factor = static_cast<float>(1 + static_cast<double>(step.growth) * std::log1p(periods));
      kernels::scale(queries.subspan(t * query_values, query_values), factor);
    }
  }
};

}  // namespace

std::span<float> CpuPass::values(Slot slot) {
  if (slot == Slot::logits) return logits_;
  const std::size_t cols = sizes_->of(slot);
  if (slot == Slot::stream) return std::span(work_.stream()).subspan(live_.first * cols, live_.count * cols);
  if (slot == Slot::streams)
    return sized(work_.at(slot), tokens_ * cols).subspan(live_.first * cols, live_.count * cols);
  return sized(work_.at(slot), (of_read_tokens(slot) ? read_ : live_).count * cols);
}

std::span<const float> CpuPass::vector(const std::optional<WeightKey>& key) const {
  const std::vector<float>* const found = runner_.weights().vector(key);
  return found != nullptr ? std::span<const float>(*found) : std::span<const float>();
}

std::optional<std::size_t> CpuPass::singles_of(RowRange rows) const {
  if (!singles_) return std::nullopt;
  const std::size_t first = live_.first + rows.first;
  return std::clamp(*singles_, first, first + rows.count) - first;
}

kernels::Product CpuPass::product_of(const Product& step, std::size_t expert, std::span<float> y, RowRange rows,
                                     std::optional<std::size_t> singles) {
  const auto bias_of = [&](const std::optional<WeightKey>& key) {
    return key ? vector(key->of_expert(expert)) : std::span<const float>();
  };
  kernels::Product made{.matrix = &matrix(step.matrix.of_expert(expert)),
                        .y = y,
                        .first_token = rows.first,
                        .tokens = rows.count,
                        .epilogue = {.bias = bias_of(step.bias), .activation = step.activation},
                        .up_bias = bias_of(step.up_bias),
                        .singles = singles};
  if (step.up) made.up = &matrix(step.up->of_expert(expert));
  return made;
}

void CpuPass::show(std::span<const Product> products, std::size_t expert, std::span<const float> x,
                   std::size_t tokens) const {
  if (work_.observer == nullptr) return;
  std::vector<Role> roles;
  for (const Product& product : products) {
    roles.push_back(product.matrix.role);
    if (product.up) roles.push_back(product.up->role);
  }
  work_.observer->see(roles, products.front().matrix.block, expert, x, tokens);
}

void CpuPass::make_layer_inputs(const LayerInputs& step, std::span<const Token> ids, const RowTable& table) {
  const std::size_t cols = sizes_->layer_inputs, count = ids.size() * cols;
  const std::span<float> made = sized(work_.at(Slot::layer_inputs), count);
  const Product projection{.matrix = step.projection, .out = Slot::layer_inputs};
  show({&projection, 1}, 0, work_.stream(), ids.size());
  const RowRange rows{0, ids.size()};
  const kernels::Product product = product_of(projection, 0, made, rows, singles_of(rows));
  kernels::multiply_all({&product, 1}, std::span(work_.stream()).first(ids.size() * sizes_->width), ids.size());
  kernels::scale(made, step.projection_scale);
  kernels::rms_norm(made, vector(step.norm), step.eps, made);
  std::vector<Token> known(ids.begin(), ids.end());
  for (Token& id : known) {
    if (static_cast<std::size_t>(id) >= table.matrix.rows) id = 0;
  }
  const std::span<float> own = sized(work_.gathered, count);
  table.look_up(known, own);
  kernels::add_scaled(own, step.table_scale, made);
  kernels::scale(made, step.scale);
}

void CpuPass::embed(std::span<const Token> ids, const RowTable& table, const RowTable& layers,
                    std::span<const Segment> segments) {
  const Embed& step = runner_.program().embed;
  const std::size_t width = sizes_->width;
  const std::span<float> x = sized(work_.stream(), ids.size() * width);
  table.look_up(ids, x);
  if (step.scale != 1) kernels::scale(x, step.scale);
  if (step.layers) make_layer_inputs(*step.layers, ids, layers);
  if (step.streams) start_streams(*step.streams);
  const std::span<const float> positions = vector(step.positions), types = vector(step.types);
  std::size_t first = 0;
  for (const Segment& segment : segments) {
    const std::span<float> rows = x.subspan(first * width, segment.tokens * width);
    if (!positions.empty()) kernels::add(positions.subspan(segment.past * width, rows.size()), rows);
    for (std::size_t t = 0; !types.empty() && t < segment.tokens; ++t) {
      const bool second = segment.past + t >= segment.second_text && types.size() > width;
      kernels::add(types.subspan(second ? width : 0, width), rows.subspan(t * width, width));
    }
    first += segment.tokens;
  }
  if (step.norm) run(*step.norm);
}

void CpuPass::run_block(std::size_t block, RowRange read, std::span<const Segment> segments, const Ropes& ropes) {
  read_ = read;
  block_ = block;
  segments_ = segments;
  ropes_ = ropes;
  const Block& steps = runner_.program().blocks[block];
  sizes_ = &steps.sizes;
  run(steps.steps);
}

void CpuPass::run_output(RowRange rows, std::span<float> logits) {
  live_ = read_ = rows;
  logits_ = logits;
  run(runner_.program().output);
}

void CpuPass::run_output_input(RowRange rows, std::span<float> hidden) {
  run_output(rows, {});  // stops before the product
  std::ranges::copy(values(runner_.program().output.empty() ? Slot::stream : Slot::normed), hidden.begin());
}

void CpuPass::run_head(std::span<float> results) {
  const Block& head = runner_.program().head;
  sizes_ = &head.sizes;
  logits_ = results;
  run(head.steps);
}

void CpuPass::run(std::span<const Step> steps) {
  const auto last = std::find_if(steps.rbegin(), steps.rend(), passes_tokens);
  const auto left = static_cast<std::size_t>(steps.rend() - last);  // steps that need all tokens
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (i == left) live_ = read_;
    if (live_.count == 0) return;
    after_ = steps.subspan(i + 1);
    std::visit([this](const auto& step) { run(step); }, steps[i]);
  }
}

void CpuPass::run(const Norm& step) {
  const std::span<const float> in = values(step.in);
  if (step.kind == NormKind::rms) {
    kernels::rms_norm(in, vector(step.weight), step.eps, values(step.out));
  } else {
    kernels::layer_norm(in, vector(step.weight), vector(step.bias), step.eps, values(step.out));
  }
}

void CpuPass::run(const Products& step) {
  const std::span<const float> in = values(step.in);
  std::vector<kernels::Product>& products = work_.products;
  products.clear();
  for (const Product& one : step.list) {
    const RowRange rows = of_read_tokens(one.out) ? read_ : RowRange{0, live_.count};
    kernels::Product product = product_of(one, 0, values(one.out), rows, singles_of(rows));
    if (one.up) product.up_y = sized(work_.up, product.y.size());
    products.push_back(product);
  }
  show(step.list, 0, in, live_.count);
  if (step.list.front().out == Slot::logits && logits_.empty()) return;
  kernels::multiply_all(products, in, live_.count);
}

void CpuPass::run(const NormHeads& step) {
  const std::span<float> x = values(step.at);
  const std::span<const float> weights = vector(step.weight);
  if (step.groups == 1) return kernels::rms_norm(x, weights, step.eps, x);
  const std::size_t values = weights.size() / step.groups;
  parallel_rows(x.size() / values, values, [&](std::size_t row) {
    const std::span<float> group = x.subspan(row * values, values);
    kernels::rms_norm(group, weights.subspan(row % step.groups * values, values), step.eps, group);
  });
}

void CpuPass::run(const Add& step) {
  const std::span<const float> from = values(step.from);
  const std::span<float> to = values(step.to);
  if (step.to != Slot::streams) {
    kernels::add_scaled(from, step.factor, to);
  } else {
    const std::size_t width = sizes_->width, count = sizes_->streams;
    for (std::size_t row = 0; row < live_.count * count; ++row) {
      if (row % count == 0) continue;
      kernels::add_scaled(from.subspan(row / count * width, width), step.factor, to.subspan(row * width, width));
    }
  }
  if (step.scale != 1) kernels::scale(to, step.scale);
}

void CpuPass::run(const AdjustLogits& step) {
  if (step.scale != 1) kernels::scale(logits_, step.scale);
  if (step.cap == 0 || logits_.empty()) return;
  kernels::scale(logits_, 1 / step.cap);
  kernels::activate(kernels::Activation::tanh, logits_, logits_);
  kernels::scale(logits_, step.cap);
}

template <class Run>
void CpuPass::for_each_segment(Run&& run) {
  // Threads share the heads and tokens of a piece of a prompt; single tokens are computed side by side.
  std::size_t first = 0;
  for (std::size_t i = 0; i < segments_.size();) {
    const auto several = std::find_if(segments_.begin() + static_cast<std::ptrdiff_t>(i), segments_.end(),
                                      [](const Segment& segment) { return segment.tokens != 1; });
    const auto singles = static_cast<std::size_t>(several - segments_.begin()) - i;
    if (singles > 1) {
      parallel_for_dynamic(singles, 1, [&](std::size_t begin, std::size_t end) {
        for (std::size_t k = begin; k < end; ++k) run(segments_[i + k], first + k);
      });
      i += singles;
      first += singles;
    } else {
      run(segments_[i], first);
      first += segments_[i].tokens;
      ++i;
    }
  }
}

void CpuPass::run(const Attend& step) {
  const SegmentAttention attention{.step = step,
                                   .query_norm = vector(step.query_norm),
                                   .key_norm = vector(step.key_norm),
                                   .sizes = *sizes_,
                                   .block = block_,
                                   .rope = ropes_[step.rope],
                                   .q = values(Slot::query),
                                   .k = values(Slot::key),
                                   .v = values(Slot::value),
                                   .ranges = sized(work_.ranges, read_.count),
                                   .sinks = vector(step.sinks),
                                   .all_read = read_,
                                   .fast = reads_fast(runner_, after_),
                                   .singles = singles_};
  for_each_segment([&](const Segment& segment, std::size_t first) { attention.run(segment, first); });
}

template <class Run>
void CpuPass::pass_states(std::size_t at, std::size_t values, bool all_results, Run&& run) {
  const RowRange wanted = all_results ? RowRange{0, live_.count} : read_;
  for_each_segment([&](const Segment& segment, std::size_t first) {
    auto& cache = static_cast<CpuCache&>(*segment.cache);
    const std::span<float> state = cache.state(block_, segment.state).subspan(at, values);
    if (segment.past == 0) kernels::clear(state);
    const std::size_t end = first + segment.tokens, last = wanted.first + wanted.count;
    const std::size_t kept = segment.kept_tokens == 0 ? end : first + segment.kept_tokens;
    for (std::size_t begin = first; begin < end;) {
      std::size_t until = end;
      for (const std::size_t cut : {kept, last}) {
        if (cut > begin) until = std::min(until, cut);
      }
      const std::size_t result = begin < last ? std::clamp(wanted.first, begin, until) : until;
      run(RowRange{begin, until - begin}, state, result - begin, RowRange{result - wanted.first, until - result});
      if (until == kept && segment.kept_tokens != 0) {
        kernels::copy(state, cache.state(block_, segment.kept_state).subspan(at, values));
      }
      begin = until;
    }
  });
}

void CpuPass::run(const ShortConv& step) {
  const std::size_t channels = sizes_->channels;
  const std::span<const float> taps = vector(step.taps), bias = vector(step.bias);
  const std::span<const float> x = values(Slot::channels);
  const std::span<float> y = values(step.out);
  pass_states(step.state, (step.kernel - 1) * channels, step.out == Slot::channels,
              [&](RowRange tokens, std::span<float> state, std::size_t first_result, RowRange results) {
                kernels::short_conv(x.subspan(tokens.first * channels, tokens.count * channels), channels, taps, bias,
                                    step.activation, state, first_result,
                                    y.subspan(results.first * channels, results.count * channels));
              });
}

void CpuPass::run(const LinearScan& step) {
  const kernels::LinearScanShape& shape = step.shape;
  const std::size_t heads = shape.heads, cols = shape.channels(), width = shape.results();
  const std::span<float> channels = values(Slot::channels), sizes = values(Slot::step), y = values(Slot::scanned);
  const std::span<float> decay = sized(work_.scores, sizes.size());
  kernels::step_sizes(sizes, vector(step.step_bias), vector(step.decay_rate), step.low_step, step.high_step, sizes,
                      decay);
  std::span<float> strength = sizes;
  if (shape.delta) {
    kernels::normalize_keys(shape, channels);
    strength = values(Slot::input_gate);
    kernels::activate(kernels::Activation::sigmoid, strength, strength);
  }
  const std::span<const float> skip = vector(step.skip);
  pass_states(step.state, shape.state(), false,
              [&](RowRange tokens, std::span<float> state, std::size_t first_result, RowRange results) {
                const auto part = [&](std::span<const float> all, std::size_t of_token) {
                  return all.subspan(tokens.first * of_token, tokens.count * of_token);
                };
                kernels::linear_scan(shape, part(channels, cols), part(decay, heads), part(strength, heads), skip,
                                     state, first_result, y.subspan(results.first * width, results.count * width));
              });
}

void CpuPass::run(const ChannelScan& step) {
  const std::size_t channels = sizes_->channels, mixed = sizes_->input_gate;
  const std::span<const float> x = values(Slot::channels), inputs = values(Slot::input_gate);
  const std::span<float> sizes = values(Slot::step), y = values(Slot::scanned);
  kernels::step_sizes(sizes, vector(step.step_bias), {}, 0, std::numeric_limits<float>::infinity(), sizes, {});
  const std::span<const float> rates = vector(step.decay_rate), skip = vector(step.skip);
  pass_states(step.state, step.states * channels, false,
              [&](RowRange tokens, std::span<float> state, std::size_t first_result, RowRange results) {
                const auto part = [&](std::span<const float> all, std::size_t of_token) {
                  return all.subspan(tokens.first * of_token, tokens.count * of_token);
                };
                kernels::channel_scan(part(x, channels), part(sizes, channels), part(inputs, mixed), rates, skip, state,
                                      first_result, y.subspan(results.first * channels, results.count * channels));
              });
}

void CpuPass::run(const NormValues& step) {
  const std::vector<float> ones(sizes_->head_values, 1.0F);
  kernels::rms_norm(values(step.from), ones, step.eps, values(Slot::value));
}

void CpuPass::run(const TakeLayerInput& step) {
  const std::span<float> hidden = values(Slot::layer_hidden);
  const std::size_t cols = sizes_->layer_values, all = sizes_->layer_inputs;
  const std::span<const float> inputs = work_.at(Slot::layer_inputs);
  for (std::size_t i = 0; i < live_.count; ++i) {
    const std::span<float> row = hidden.subspan(i * cols, cols);
    kernels::activate_mul(step.activation, row, inputs.subspan((live_.first + i) * all + block_ * cols, cols), row);
  }
}

void CpuPass::run(const ScaleStream& step) {
  const std::span<const float> factor = vector(step.factor);
  const std::span<float> stream = values(Slot::stream), out = values(step.out);
  if (step.out != Slot::stream) kernels::copy(stream, out);
  if (factor.size() == 1) return kernels::scale(out, factor.front());
  for (std::size_t at = 0; at < out.size(); at += factor.size()) {
    const std::span<float> row = out.subspan(at, factor.size());
    kernels::activate_mul(kernels::Activation::linear, row, factor, row);
  }
}

void CpuPass::run(const Scale& step) { kernels::scale(values(step.at), step.factor); }

void CpuPass::run(const Gate& step) {
  const std::span<float> at = values(step.at);
  kernels::activate_mul(step.activation, values(step.by), at, at);
}

}  // namespace imago::backend
