#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "imago/error.h"
#include "math/onednn.h"

namespace imago::math {

namespace {

using dnnl::memory;

const dnnl::engine& engine() {
  static const dnnl::engine instance(dnnl::engine::kind::cpu, 0);
  return instance;
}

/// An array in our layout and in that of oneDNN, which has channels in blocks of a vector.
struct Operand {
  memory::desc given, wanted;
  std::optional<dnnl::reorder> reorder;  ///< none: both are the same. Towards `given` for the result.
};

/// Code made for one request.
struct Plan {
  dnnl::primitive primitive;
  Operand operands[3];
  int arguments[3];
  int result;
  memory::desc scratchpad;
};

memory::dim dim(std::size_t value) { return static_cast<memory::dim>(value); }

/// Sizes of oneDNN are int inside.
bool is_small(const ConvolutionRequest& r) {
  constexpr std::size_t kMostExtent = 1u << 20;
  constexpr std::size_t kMostValues = 1u << 31;
  const ConvolutionExtents& e = r.extents;
  for (int axis = 0; axis < 3; ++axis) {
    if (std::max({e.in[axis], e.out[axis], e.kernel[axis], e.stride[axis], e.padding[axis]}) > kMostExtent)
      return false;
  }
  return e.batch * r.x_sample < kMostValues && e.filters * r.w_filter < kMostValues &&
         e.batch * r.y_sample < kMostValues;
}

struct Geometry {
  memory::dims x, w, y;  // extents
  memory::dims x_steps, w_steps, y_steps;
  memory::dims stride, padding_before, padding_after;
};

/// oneDNN requires a padding after the input that fits the output size and is not negative, so inputs that no output
/// reads are cut off. Nothing if no output reads any input along some axis.
std::optional<Geometry> geometry(const ConvolutionRequest& r) {
  const ConvolutionExtents& e = r.extents;
  Geometry g{.x = {dim(e.batch), dim(e.channels)},
             .w = {dim(e.filters), dim(e.channels)},
             .y = {dim(e.batch), dim(e.filters)},
             .x_steps = {dim(r.x_sample), dim(in_values(e))},
             .w_steps = {dim(r.w_filter), dim(kernel_values(e))},
             .y_steps = {dim(r.y_sample), dim(out_values(e))},
             .stride = {},
             .padding_before = {},
             .padding_after = {}};
  // Two axes at least: code for one is no faster, and rarer.
  const bool flat = e.in[0] == 1 && e.out[0] == 1 && e.kernel[0] == 1 && e.padding[0] == 0;
  for (int axis = flat ? 1 : 0; axis < 3; ++axis) {
    const memory::dim reached = dim((e.out[axis] - 1) * e.stride[axis] + e.kernel[axis]) - dim(e.padding[axis]);
    if (reached <= 0) return std::nullopt;
    g.x.push_back(std::min(reached, dim(e.in[axis])));
    g.w.push_back(dim(e.kernel[axis]));
    g.y.push_back(dim(e.out[axis]));
    g.stride.push_back(dim(e.stride[axis]));
    g.padding_before.push_back(dim(e.padding[axis]));
    g.padding_after.push_back(reached - g.x.back());
  }
  const auto spatial_steps = [&](memory::dims& steps, const std::size_t(&extents)[3]) {
    if (!flat) steps.push_back(dim(extents[1] * extents[2]));
    steps.push_back(dim(extents[2]));
    steps.push_back(1);
  };
  spatial_steps(g.x_steps, e.in);
  spatial_steps(g.w_steps, e.kernel);
  spatial_steps(g.y_steps, e.out);
  return g;
}

Operand operand(const memory::dims& extents, const memory::dims& steps, const memory::desc& wanted, bool is_result) {
  Operand o{.given = memory::desc(extents, memory::data_type::f32, steps), .wanted = wanted, .reorder = {}};
  if (o.given == o.wanted) return o;
  const memory::desc& from = is_result ? o.wanted : o.given;
  const memory::desc& to = is_result ? o.given : o.wanted;
  o.reorder.emplace(dnnl::reorder::primitive_desc(engine(), from, engine(), to));
  return o;
}

/// The result of backward_data has its channels in blocks of 16, mostly padding where there are few: a gradient for 3
/// channels takes oneDNN as long as one for 16, and columns a third of that (AVX-512); from 8 on oneDNN is ahead.
bool has_few_channels(const ConvolutionRequest& request) {
  return request.kind == ConvolutionKind::backward_data && request.extents.channels < 8;
}

/// Null where oneDNN offers nothing better than columns.
std::shared_ptr<const Plan> make_plan(const ConvolutionRequest& request) {
  if (!is_small(request) || has_few_channels(request)) return nullptr;
  const std::optional<Geometry> g = geometry(request);
  if (!g) return nullptr;
  const auto any = [](const memory::dims& extents) {
    return memory::desc(extents, memory::data_type::f32, memory::format_tag::any);
  };
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // ours, per thread: a plan serves many at once

  using Forward = dnnl::convolution_forward;
  using BackwardData = dnnl::convolution_backward_data;
  using BackwardWeights = dnnl::convolution_backward_weights;
  const dnnl::algorithm direct = dnnl::algorithm::convolution_direct;
  const Forward::primitive_desc forward(Forward::desc(dnnl::prop_kind::forward_training, direct, any(g->x), any(g->w),
                                                      any(g->y), g->stride, g->padding_before, g->padding_after),
                                        attributes, engine());
  const auto plan = [&](const auto& descriptor, const dnnl::primitive& primitive, const memory::desc& x,
                        const memory::desc& w, const memory::desc& y, std::array<int, 3> arguments,
                        int result) -> std::shared_ptr<const Plan> {
    if (std::string_view(descriptor.impl_info_str()).starts_with("ref")) return nullptr;
    return std::make_shared<const Plan>(
        Plan{.primitive = primitive,
             .operands = {operand(g->x, g->x_steps, x, result == 0), operand(g->w, g->w_steps, w, result == 1),
                          operand(g->y, g->y_steps, y, result == 2)},
             .arguments = {arguments[0], arguments[1], arguments[2]},
             .result = result,
             .scratchpad = descriptor.scratchpad_desc()});
  };
  switch (request.kind) {
    case ConvolutionKind::forward:
      return plan(forward, Forward(forward), forward.src_desc(), forward.weights_desc(), forward.dst_desc(),
                  {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}, 2);
    case ConvolutionKind::backward_data: {
      const BackwardData::primitive_desc data(
          BackwardData::desc(direct, any(g->x), any(g->w), any(g->y), g->stride, g->padding_before, g->padding_after),
          attributes, engine(), forward);
      return plan(data, BackwardData(data), data.diff_src_desc(), data.weights_desc(), data.diff_dst_desc(),
                  {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST}, 0);
    }
    case ConvolutionKind::backward_weights: {
      const BackwardWeights::primitive_desc weights(
          BackwardWeights::desc(direct, any(g->x), any(g->w), any(g->y), g->stride, g->padding_before,
                                g->padding_after),
          attributes, engine(), forward);
      return plan(weights, BackwardWeights(weights), weights.src_desc(), weights.diff_weights_desc(),
                  weights.diff_dst_desc(), {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}, 1);
    }
  }
  return nullptr;
}

/// Making code takes milliseconds, and a network asks for the same few shapes again and again.
class Plans {
 public:
  std::shared_ptr<const Plan> find(const ConvolutionRequest& request) {
    const std::lock_guard lock(mutex_);
    const Key key = key_of(request);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    if (plans_.size() >= kMost) plans_.clear();  // shapes that never repeat must not fill the memory
    return plans_.emplace(key, make(request)).first->second;
  }

 private:
  static constexpr std::size_t kMost = 512;
  using Key = std::array<std::size_t, 22>;

  static Key key_of(const ConvolutionRequest& r) {
    const ConvolutionExtents& e = r.extents;
    Key key{static_cast<std::size_t>(r.kind), r.x_sample, r.w_filter, r.y_sample, e.batch, e.channels, e.filters};
    auto to = key.begin() + 7;
    for (const auto& triple : {e.in, e.out, e.kernel, e.stride, e.padding}) to = std::copy_n(triple, 3, to);
    return key;
  }

  static std::shared_ptr<const Plan> make(const ConvolutionRequest& request) {
    try {
      return make_plan(request);
    } catch (const dnnl::error& error) {
      if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
      return nullptr;  // a shape that oneDNN does not serve
    }
  }

  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const Plan>> plans_;
};

/// Memory of a thread for arrays in the layouts of oneDNN. It never shrinks.
class Workspace {
 public:
  void* reserve(std::size_t bytes) {
    if (lines_.size() * sizeof(Line) < bytes) lines_.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
    return lines_.data();
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

void execute(const Plan& plan, const ConvolutionOperands& operands) {
  thread_local Workspace workspaces[4];
  thread_local dnnl::stream stream(engine());
  memory given[3];
  memory wanted[3];
  for (int i = 0; i < 3; ++i) {
    const Operand& o = plan.operands[i];
    given[i] = memory(o.given, engine(), operands[static_cast<std::size_t>(i)]);
    wanted[i] = o.reorder ? memory(o.wanted, engine(), workspaces[i].reserve(o.wanted.get_size())) : given[i];
    if (o.reorder && i != plan.result) o.reorder->execute(stream, given[i], wanted[i]);
  }
  const memory scratchpad(plan.scratchpad, engine(), workspaces[3].reserve(plan.scratchpad.get_size()));
  plan.primitive.execute(stream, {{plan.arguments[0], wanted[0]},
                                  {plan.arguments[1], wanted[1]},
                                  {plan.arguments[2], wanted[2]},
                                  {DNNL_ARG_SCRATCHPAD, scratchpad}});
  const Operand& result = plan.operands[plan.result];
  if (result.reorder) result.reorder->execute(stream, wanted[plan.result], given[plan.result]);
  stream.wait();
}

/// Zeroes grad_x if some inputs are read by no output.
void clear_unreached(const ConvolutionRequest& r, const Plan& plan, float* grad_x) {
  const memory::dims extents = plan.operands[0].given.dims();
  const ConvolutionExtents& e = r.extents;
  const std::size_t first_axis = 5 - extents.size();
  bool all = true;
  for (std::size_t axis = first_axis; axis < 3; ++axis) all &= extents[2 + axis - first_axis] == dim(e.in[axis]);
  if (all) return;
  for (std::size_t sample = 0; sample < e.batch; ++sample) {
    std::fill_n(grad_x + sample * r.x_sample, e.channels * in_values(e), 0.0f);
  }
}

}  // namespace

bool onednn_convolve(const ConvolutionRequest& request, const ConvolutionOperands& operands) {
  static Plans plans;
  const OneThread one_thread;  // also while code is made: it is made for a number of threads
  const std::shared_ptr<const Plan> plan = plans.find(request);
  if (plan == nullptr) return false;
  if (request.kind == ConvolutionKind::backward_data) clear_unreached(request, *plan, operands[0]);
  try {
    execute(*plan, operands);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
    throw UnsupportedError(std::string("oneDNN failed at a convolution: ") + error.what());
  }
  return true;
}

}  // namespace imago::math
