#include "backend/cuda/fuse.h"

#include <fmt/format.h>

#include <algorithm>

#include "imago/error.h"
#include "kernels/cuda/recurrent.h"

namespace imago::backend::cuda {

namespace {

/// Walks over steps and joins them.
class Fuser {
 public:
  explicit Fuser(std::span<const Step> steps) : steps_(steps) {}

  std::vector<FusedStep> block() {
    std::vector<FusedStep> fused;
    while (at_ < steps_.size()) {
      if (peek<NormValues>() != nullptr || peek<NormHeads>() != nullptr || peek<Attend>() != nullptr) {
        attention(fused);
      } else if (peek<Gate>() != nullptr || peek<ShortConv>() != nullptr) {
        fused.push_back(convolve());
      } else if (peek<LinearScan>() != nullptr || peek<ChannelScan>() != nullptr) {
        fused.push_back(scan());
      } else if (joins_products(fused)) {
        ++at_;
      } else {
        fused.push_back(next());
      }
    }
    return fused;
  }

  /// Throws for a step that Pass::run_head does not know.
  void check_head() {
    while (at_ < steps_.size()) {
      const auto* const norm = take<Norm>();
      if (norm != nullptr ? norm->in != norm->out : take<Products>() == nullptr) refuse();
    }
  }

  void output(FusedProgram& program) {
    program.output.norm = stream_norm();
    if (at_ == steps_.size()) return;  // no logits
    program.output = stream_products(program.output.norm, Slot::logits);
    if (const auto* const adjust = take<AdjustLogits>()) program.adjust = *adjust;
    if (at_ != steps_.size()) refuse();
  }

 private:
  /// The step at hand if it is of that kind; then the next one is at hand.
  template <class Kind>
  const Kind* take() {
    const Kind* const found = at_ < steps_.size() ? std::get_if<Kind>(&steps_[at_]) : nullptr;
    if (found != nullptr) ++at_;
    return found;
  }
  template <class Kind>
  const Kind& require() {
    const Kind* const found = take<Kind>();
    if (found == nullptr) refuse();
    return *found;
  }
  template <class Kind>
  const Kind* peek() const {
    return at_ < steps_.size() ? std::get_if<Kind>(&steps_[at_]) : nullptr;
  }

  [[noreturn]] void refuse() const {
    throw UnsupportedError(fmt::format("the CUDA backend does not run '{}' at this place of a block",
                                       at_ < steps_.size() ? text(steps_[at_]) : "the end"));
  }

  FusedStep next() {
    if (const auto* const step = take<LatentAttend>()) return *step;
    if (const auto* const step = take<TakeLayerInput>()) return *step;
    if (const auto* const step = peek<ScaleStream>(); step != nullptr && step->out == Slot::stream) {
      return *take<ScaleStream>();
    }
    if (const auto* const products = peek<Products>();
        products != nullptr && products->in != Slot::stream && products->in != Slot::normed) {
      if (ends_branch(products->in)) return finish_branch();
      return slot_products();
    }
    if (const auto* const norm = peek<Norm>();
        norm != nullptr && norm->in == norm->out && (norm->in == Slot::stream || norm->in == Slot::query_low)) {
      return *take<Norm>();
    }
    // What products have left for a scan, in place.
    if (const auto* const step = peek<Scale>();
        step != nullptr && (step->at == Slot::output_gate || step->at == Slot::step)) {
      return *take<Scale>();
    }
    const std::optional<Norm> norm = stream_norm();
    if (peek<Experts>() != nullptr) return experts(norm);
    const auto* const scale =
        norm && peek<Scale>() != nullptr && peek<Scale>()->at == Slot::normed ? take<Scale>() : nullptr;
    StreamProducts made = stream_products(norm, std::nullopt);
    if (scale != nullptr) made.scale = *scale;
    return made;
  }

  /// Where the product that ends a branch reads.
  static bool ends_branch(Slot in) {
    return in == Slot::query || in == Slot::hidden || in == Slot::scanned || in == Slot::attended ||
           in == Slot::layer_hidden;
  }

  std::optional<Norm> stream_norm() {
    const auto* const norm = peek<Norm>();
    if (norm == nullptr) return std::nullopt;
    if (norm->in != Slot::stream || norm->out != Slot::normed) refuse();
    ++at_;
    return *norm;
  }

  /// Steps that follow `norm` read what it makes.
  void check_input(Slot in, const std::optional<Norm>& norm) const {
    if (in != (norm ? Slot::normed : Slot::stream)) refuse();
  }

  StreamProducts stream_products(const std::optional<Norm>& norm, std::optional<Slot> out) {
    const auto* const products = peek<Products>();
    if (products == nullptr) refuse();
    check_input(products->in, norm);
    for (const Product& product : products->list) {
      const bool fits = out ? product.out == *out
                            : product.out == Slot::query || product.out == Slot::key || product.out == Slot::value ||
                                  product.out == Slot::hidden || product.out == Slot::channels ||
                                  product.out == Slot::input_gate || product.out == Slot::output_gate ||
                                  product.out == Slot::step || product.out == Slot::query_low ||
                                  product.out == Slot::layer_hidden;
      if (!fits) refuse();
    }
    ++at_;
    return {.norm = norm, .products = products->list};
  }

  /// Attention beside a scan reads the norm that the scan has read: its products join those, if the stream is still the
  /// same and they write to slots of their own.
  bool joins_products(std::vector<FusedStep>& fused) const {
    const auto* const products = peek<Products>();
    if (products == nullptr || products->in != Slot::normed) return false;
    const auto last = std::find_if(fused.rbegin(), fused.rend(), [](const FusedStep& step) {
      return !std::holds_alternative<SlotProducts>(step) && !std::holds_alternative<Convolve>(step) &&
             !std::holds_alternative<Scan>(step) && !std::holds_alternative<Scale>(step);
    });
    auto* const before = last == fused.rend() ? nullptr : std::get_if<StreamProducts>(&*last);
    if (before == nullptr || !before->norm || before->scale) refuse();
    for (const Product& product : products->list) {
      const bool is_attention = product.out == Slot::query || product.out == Slot::key || product.out == Slot::value;
      if (!is_attention || std::ranges::find(before->products, product.out, &Product::out) != before->products.end())
        refuse();
      before->products.push_back(product);
    }
    return true;
  }

  SlotProducts slot_products() {
    const Products& products = require<Products>();
    SlotProducts made{.in = products.in, .products = products.list};
    for (const Product& product : made.products) {
      const bool fits =
          (made.in == Slot::channels && (product.out == Slot::step_low || product.out == Slot::input_gate)) ||
          (made.in == Slot::step_low && product.out == Slot::step) ||
          (made.in == Slot::query_low && product.out == Slot::query);
      if (!fits) {
        --at_;
        refuse();
      }
    }
    return made;
  }

  /// A gate of that slot, if it is next.
  std::optional<Gate> take_gate(Slot at) {
    const auto* const gate = peek<Gate>();
    if (gate == nullptr || gate->at != at) return std::nullopt;
    ++at_;
    return *gate;
  }

  Convolve convolve() {
    const auto linear_gate = [&](Slot at) {
      if (const auto* const gate = peek<Gate>(); gate != nullptr && gate->activation != kernels::Activation::linear)
        refuse();
      return take_gate(at);
    };
    Convolve made;
    made.in_gate = linear_gate(Slot::channels);
    made.conv = require<ShortConv>();
    if (made.conv.out == Slot::scanned) made.out_gate = linear_gate(Slot::scanned);
    return made;
  }

  Scan scan() {
    Scan made;
    if (const auto* const linear = peek<LinearScan>()) {
      if (linear->shape.keys > kernels::cuda::kMostScanKeys) refuse();
      made.scan = *linear;
    } else {
      const auto& channels = *peek<ChannelScan>();
      if (channels.states > kernels::cuda::kMostChannelStates) refuse();
      made.scan = channels;
    }
    ++at_;
    made.gate = take_gate(Slot::scanned);
    made.gate_first = made.gate.has_value();
    if (const auto* const norm = peek<NormHeads>(); norm != nullptr && norm->at == Slot::scanned) {
      made.norm = *norm;
      ++at_;
      if (!made.gate) made.gate = take_gate(Slot::scanned);
    }
    return made;
  }

  bool reads_attention() const {
    const auto* const products = peek<Products>();
    return products != nullptr && products->in == Slot::query;
  }

  void attention(std::vector<FusedStep>& fused) {
    PlaceAndAttend made;
    if (const auto* const norm = take<NormValues>()) made.value_norm = *norm;
    while (const auto* const norm = take<NormHeads>()) {
      if (norm->at != Slot::query && norm->at != Slot::key) refuse();
      (norm->at == Slot::query ? made.query_norm : made.key_norm) = *norm;
    }
    // Heads are normed together, with one eps.
    if (made.value_norm && (made.query_norm ? made.query_norm->eps : made.value_norm->eps) != made.value_norm->eps) {
      refuse();
    }
    made.attend = require<Attend>();
    made.gate = take_gate(Slot::query);
    // A feed-forward layer beside attention reads the same stream. It goes first, with the products before attention
    // where the norm is the same, so that results of attention are the last that was rounded when they are multiplied.
    if (!reads_attention()) {
      StreamProducts beside = stream_products(stream_norm(), Slot::hidden);
      auto* const before = fused.empty() ? nullptr : std::get_if<StreamProducts>(&fused.back());
      if (before != nullptr && before->norm && !before->scale && beside.norm &&
          before->norm->weight == beside.norm->weight) {
        before->products.insert(before->products.end(), beside.products.begin(), beside.products.end());
      } else {
        fused.push_back(std::move(beside));
      }
    }
    if (!reads_attention() || peek<Products>()->list.size() != 1) refuse();
    made.reader = peek<Products>()->list.front().matrix;
    fused.push_back(made);
  }

  FinishBranch finish_branch() {
    const Products& products = require<Products>();
    FinishBranch made{.in = products.in, .product = products.list.front()};
    if (products.list.size() != 1 || made.product.out != Slot::branch) refuse();
    end(made.post_norm, made.factor);
    return made;
  }

  ExpertsBranch experts(const std::optional<Norm>& norm) {
    check_input(peek<Experts>()->in, norm);
    const Experts& step = *peek<Experts>();
    if (step.router_in != step.in || step.expert_scale || step.down.out != Slot::branch) refuse();
    ExpertsBranch made{.norm = norm, .experts = require<Experts>()};
    end(made.post_norm, made.factor);
    return made;
  }

  void end(std::optional<Norm>& post_norm, float& factor) {
    if (const auto* const norm = peek<Norm>()) {
      if (norm->in != Slot::branch || norm->out != Slot::branch) refuse();
      post_norm = *norm;
      ++at_;
    }
    const auto* const add = peek<Add>();
    if (add == nullptr || add->from != Slot::branch || add->to != Slot::stream || add->scale != 1) refuse();
    factor = add->factor;
    ++at_;
  }

  std::span<const Step> steps_;
  std::size_t at_ = 0;
};

std::string joined(std::initializer_list<std::optional<Step>> steps) {
  std::string made;
  for (const std::optional<Step>& step : steps) {
    if (step) made += fmt::format("{}{}", made.empty() ? "" : " | ", text(*step));
  }
  return made;
}

std::string text_of(const StreamProducts& step) {
  return joined({step.norm, step.scale, Products{step.norm ? Slot::normed : Slot::stream, step.products}});
}
std::string text_of(const SlotProducts& step) { return joined({Products{step.in, step.products}}); }
std::string text_of(const PlaceAndAttend& step) {
  return fmt::format("{} for {}", joined({step.value_norm, step.query_norm, step.key_norm, step.attend, step.gate}),
                     name(step.reader.role));
}
std::string text_of(const Convolve& step) { return joined({step.in_gate, step.conv, step.out_gate}); }
std::string text_of(const Scan& step) {
  const Step scan = std::visit([](const auto& one) { return Step(one); }, step.scan);
  return step.gate_first ? joined({scan, step.gate, step.norm}) : joined({scan, step.norm, step.gate});
}
std::string text_of(const FinishBranch& step) {
  return joined({Products{step.in, {step.product}}, step.post_norm, Add{step.factor}});
}
template <class Single>
std::string text_of(const Single& step) {
  return text(Step(step));
}
std::string text_of(const ExpertsBranch& step) {
  return joined({step.norm, step.experts, step.post_norm, Add{step.factor}});
}

}  // namespace

namespace {

void check_caches(const Block& block, BlockRange blocks) {
  for (const Step& step : block.steps) {
    const auto* const attend = std::get_if<Attend>(&step);
    if (attend == nullptr || !attend->cache || *attend->cache >= blocks.begin) continue;
    throw UnsupportedError(fmt::format(
        "the CUDA backend does not attend to the cache of block {}, which is on another device", *attend->cache));
  }
}

}  // namespace

FusedProgram fuse(const Program& program, BlockRange blocks) {
  FusedProgram fused;
  for (std::size_t i = blocks.begin; i < blocks.end; ++i) {
    const Block& block = program.blocks[i];
    check_caches(block, blocks);
    fused.blocks.push_back({block.sizes, Fuser(block.steps).block()});
    if (std::ranges::find(fused.sizes, block.sizes) == fused.sizes.end()) fused.sizes.push_back(block.sizes);
  }
  Fuser(program.output).output(fused);
  Fuser(program.head.steps).check_head();
  fused.head = program.head.steps;
  return fused;
}

bool passes_tokens(const FusedStep& step) noexcept {
  return std::holds_alternative<PlaceAndAttend>(step) || std::holds_alternative<LatentAttend>(step) ||
         std::holds_alternative<Convolve>(step) || std::holds_alternative<Scan>(step);
}

std::string text(const FusedStep& step) {
  return std::visit([](const auto& one) { return text_of(one); }, step);
}

}  // namespace imago::backend::cuda
