// oneDNN's products, and its convolutions where it has fast code for them.

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/line_vector.h"
#include "imago/error.h"
#include "math/backend.h"

namespace imago::math {

namespace {

/// The OpenMP that oneDNN was loaded with. Looked up by name, as the loader did for oneDNN itself: linking one would
/// put a second into programs whose compiler brings another (libomp of clang, libgomp of GCC). Nulls where oneDNN was
/// built without OpenMP.
struct OpenMp {
  int (*max_threads)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set_threads)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
};

const OpenMp& open_mp() noexcept {
  static const OpenMp found;
  return found;
}

/// While it exists, oneDNN computes on the calling thread alone, since our pool splits the work. The destructor
/// restores the OpenMP setting of this thread.
class OneThread {
 public:
  OneThread() noexcept {
    const OpenMp& omp = open_mp();
    if (omp.max_threads == nullptr || omp.set_threads == nullptr) return;
    const int threads = omp.max_threads();
    if (threads == 1) return;
    before_ = threads;
    omp.set_threads(1);
  }
  ~OneThread() {
    if (before_ != 0) open_mp().set_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = 0;  // 0: nothing to restore
};

void onednn_gemm(const GemmArgs& g) {
  const OneThread one_thread;
  const auto letter = [](const GemmOperand& operand) { return operand.transpose == Transpose::yes ? 'T' : 'N'; };
  const auto extent = [](std::size_t value) { return static_cast<dnnl_dim_t>(value); };
  const dnnl_status_t status =
      dnnl_sgemm(letter(g.a), letter(g.b), extent(g.m), extent(g.n), extent(g.k), 1.0f, g.a.values, extent(g.a.stride),
                 g.b.values, extent(g.b.stride), g.write == Write::add ? 1.0f : 0.0f, g.c, extent(g.c_stride));
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  if (status != dnnl_success) throw UnsupportedError("oneDNN refuses this product");
}

// ---- convolutions

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

/// What oneDNN calls x, w and y, and which of them is written.
struct Roles {
  int arguments[3];
  int result;
};
constexpr Roles kRoles[] = {
    // by ConvolutionKind
    {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}, 2},
    {{DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST}, 0},
    {{DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}, 1},
};
const Roles& roles_of(ConvolutionKind kind) noexcept { return kRoles[static_cast<std::size_t>(kind)]; }

/// Code made for one kind of convolution, extents and strides.
struct Plan {
  dnnl::primitive primitive;
  Operand operands[3];  // x, w and y
  memory::desc scratchpad;
  bool reads_all;  // no input is left out by all outputs
};

memory::dim dim(std::size_t value) { return static_cast<memory::dim>(value); }

/// Sizes of oneDNN are int inside.
bool is_small(const ConvolutionArgs& r) {
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
  bool reads_all = true;
};

/// oneDNN requires a padding after the input that fits the output size and is not negative, so inputs that no output
/// reads are cut off. Nothing if no output reads any input along some axis.
std::optional<Geometry> geometry(const ConvolutionArgs& r) {
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
    g.reads_all &= g.x.back() == dim(e.in[axis]);
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
bool has_few_channels(const ConvolutionArgs& request) {
  return request.kind == ConvolutionKind::backward_data && request.extents.channels < 8;
}

/// Null where oneDNN offers nothing better than columns.
std::shared_ptr<const Plan> make_plan(const ConvolutionArgs& request) {
  if (!is_small(request) || has_few_channels(request)) return nullptr;
  const std::optional<Geometry> g = geometry(request);
  if (!g) return nullptr;
  const auto any = [](const memory::dims& extents) {
    return memory::desc(extents, memory::data_type::f32, memory::format_tag::any);
  };
  const memory::desc x = any(g->x), w = any(g->w), y = any(g->y);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // ours, per thread: a plan serves many at once

  using Forward = dnnl::convolution_forward;
  using BackwardData = dnnl::convolution_backward_data;
  using BackwardWeights = dnnl::convolution_backward_weights;
  const dnnl::algorithm direct = dnnl::algorithm::convolution_direct;
  const Forward::primitive_desc forward(
      Forward::desc(dnnl::prop_kind::forward_training, direct, x, w, y, g->stride, g->padding_before, g->padding_after),
      attributes, engine());
  const auto plan = [&](const auto& descriptor, const dnnl::primitive& primitive) -> std::shared_ptr<const Plan> {
    if (std::string_view(descriptor.impl_info_str()).starts_with("ref")) return nullptr;
    const Roles& roles = roles_of(request.kind);
    const auto operand_of = [&](int i, const memory::dims& extents, const memory::dims& steps) {
      const memory::desc wanted = descriptor.query_md(dnnl::query::exec_arg_md, roles.arguments[i]);
      return operand(extents, steps, wanted, i == roles.result);
    };
    return std::make_shared<const Plan>(Plan{
        .primitive = primitive,
        .operands = {operand_of(0, g->x, g->x_steps), operand_of(1, g->w, g->w_steps), operand_of(2, g->y, g->y_steps)},
        .scratchpad = descriptor.scratchpad_desc(),
        .reads_all = g->reads_all});
  };
  switch (request.kind) {
    case ConvolutionKind::forward: return plan(forward, Forward(forward));
    case ConvolutionKind::backward_data: {
      const BackwardData::primitive_desc data(
          BackwardData::desc(direct, x, w, y, g->stride, g->padding_before, g->padding_after), attributes, engine(),
          forward);
      return plan(data, BackwardData(data));
    }
    case ConvolutionKind::backward_weights: {
      const BackwardWeights::primitive_desc weights(
          BackwardWeights::desc(direct, x, w, y, g->stride, g->padding_before, g->padding_after), attributes, engine(),
          forward);
      return plan(weights, BackwardWeights(weights));
    }
  }
  return nullptr;
}

/// Making code takes milliseconds, and a network asks for the same few shapes again and again.
class Plans {
 public:
  std::shared_ptr<const Plan> find(const ConvolutionArgs& request) {
    const std::lock_guard lock(mutex_);
    const Key key = key_of(request);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    if (plans_.size() >= kMost) plans_.clear();  // shapes that never repeat must not fill the memory
    return plans_.emplace(key, make(request)).first->second;
  }

 private:
  static constexpr std::size_t kMost = 512;
  using Key = std::array<std::size_t, 22>;

  static Key key_of(const ConvolutionArgs& r) {
    const ConvolutionExtents& e = r.extents;
    Key key{static_cast<std::size_t>(r.kind), r.x_sample, r.w_filter, r.y_sample, e.batch, e.channels, e.filters};
    auto to = key.begin() + 7;
    for (const auto& triple : {e.in, e.out, e.kernel, e.stride, e.padding}) to = std::copy_n(triple, 3, to);
    return key;
  }

  static std::shared_ptr<const Plan> make(const ConvolutionArgs& request) {
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

void execute(const Plan& plan, const ConvolutionArgs& args) {
  thread_local LineVector<std::byte> workspaces[4];  // arrays in the layouts of oneDNN
  thread_local dnnl::stream stream(engine());
  const Roles& roles = roles_of(args.kind);
  float* const addresses[] = {args.x, args.w, args.y};
  memory given[3];
  memory wanted[3];
  for (int i = 0; i < 3; ++i) {
    const Operand& o = plan.operands[i];
    given[i] = memory(o.given, engine(), addresses[i]);
    wanted[i] = o.reorder ? memory(o.wanted, engine(), sized(workspaces[i], o.wanted.get_size()).data()) : given[i];
    if (o.reorder && i != roles.result) o.reorder->execute(stream, given[i], wanted[i]);
  }
  const memory scratchpad(plan.scratchpad, engine(), sized(workspaces[3], plan.scratchpad.get_size()).data());
  plan.primitive.execute(stream, {{roles.arguments[0], wanted[0]},
                                  {roles.arguments[1], wanted[1]},
                                  {roles.arguments[2], wanted[2]},
                                  {DNNL_ARG_SCRATCHPAD, scratchpad}});
  const Operand& result = plan.operands[roles.result];
  if (result.reorder) result.reorder->execute(stream, wanted[roles.result], given[roles.result]);
  stream.wait();
}

void onednn_convolve(const ConvolutionArgs& args) {
  static Plans plans;
  const OneThread one_thread;  // also while code is made: it is made for a number of threads
  const std::shared_ptr<const Plan> plan = plans.find(args);
  if (plan == nullptr) return convolve_by_columns(args, onednn_gemm);
  if (args.kind == ConvolutionKind::backward_data && !plan->reads_all) clear_x(args);
  try {
    execute(*plan, args);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
    throw UnsupportedError(std::string("oneDNN failed at a convolution: ") + error.what());
  }
}

}  // namespace

const Backend* onednn_backend() noexcept {
  static constexpr Backend kBackend{.name = "oneDNN", .gemm = onednn_gemm, .convolve = onednn_convolve};
  return &kBackend;
}

}  // namespace imago::math
