#include "train/cuda/device_loss.h"

#include "train/cuda/loss_kernels.h"
#include "train/loss.h"

namespace imago::cuda {

void DeviceLoss::queue(const Loss& loss, const layers::cuda::DeviceTensor& output,
                       const layers::cuda::DeviceTensor& target, const Tensor<float>& host_target,
                       layers::cuda::DeviceTensor* gradient, double* out, Stream& stream) {
  check_sizes(loss, output.shape(), target.shape());
  if (gradient != nullptr) gradient->resize(*device_, output.shape());
  float* const slopes = gradient == nullptr ? nullptr : gradient->data();
  const std::size_t cols = output.shape().last(), rows = output.size() / cols;
  const ValueLoss values{output.data(), target.data(), slopes, output.size(), nullptr, out};
  const auto partials = [&](std::size_t count) {
    partials_.reserve(*device_, count);
    return partials_.data();
  };
  switch (loss.kind) {
    case LossKind::mse:
    case LossKind::cross_entropy: {
      ValueLoss args = values;
      args.partials = partials(partial_count(output.size()));
      return loss.kind == LossKind::mse ? mean_squared_error(args, stream) : cross_entropy(args, stream);
    }
    case LossKind::cross_entropy_logits: {
      const bool by_class = target.size() == rows;
      return cross_entropy_of_logits({.output = output.data(),
                                      .target = target.data(),
                                      .gradient = slopes,
                                      .rows = rows,
                                      .cols = cols,
                                      .by_class = by_class,
                                      .scored = by_class ? count_scored(host_target.values(), cols) : rows,
                                      .row_losses = partials(rows),
                                      .out = out},
                                     stream);
    }
    case LossKind::multi_head_softmax_ce: {
      check_heads(loss, rows, cols);
      host_starts_.assign(1, 0);
      for (const int head : loss.heads) host_starts_.push_back(host_starts_.back() + head);
      starts_.reserve(*device_, host_starts_.size());
      stream.copy_in(std::as_bytes(std::span(host_starts_)), starts_.data());
      mask_.reserve(*device_, loss.mask.size());
      stream.copy_in(std::as_bytes(std::span(loss.mask)), mask_.data());
      return multi_head_entropy({.output = output.data(),
                                 .target = target.data(),
                                 .gradient = slopes,
                                 .rows = rows,
                                 .cols = cols,
                                 .starts = starts_.data(),
                                 .heads = loss.heads.size(),
                                 .mask = loss.mask.empty() ? nullptr : mask_.data(),
                                 .head_losses = partials(rows * loss.heads.size()),
                                 .out = out},
                                stream);
    }
  }
}

}  // namespace imago::cuda
