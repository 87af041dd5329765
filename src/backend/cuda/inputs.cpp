// What comes before the blocks and beside them: rows of embeddings, the inputs of each block, and the head that scores
// a pooled text.

#include "backend/cuda/pass.h"

namespace imago::backend::cuda {

using kernels::cuda::GpuProduct;

void Pass::embed(std::size_t tokens) {
  const Embed& step = part_.program->embed;
  const std::size_t width = part_.sizes().width;
  kernels::cuda::dequantize_rows(part_.matrix(step.table).matrix, places_.ids(), tokens, step.scale, x_.data(),
                                 stream_);
  if (step.layers) make_layer_inputs(*step.layers, tokens);
  if (step.types) {
    const Array<float>& types = *part_.weights.vector(*step.types);
    kernels::cuda::add_rows(types.data(), types.size() / width, places_.texts(), tokens, width, x_.data(), stream_);
  }
  if (const float* const positions = part_.vector(step.positions)) {
    kernels::cuda::gather_rows(positions, places_.positions(), tokens, width, branch_.data(), stream_);
    pending_ = {branch_.data(), 1};
  }
  if (step.norm) run(*step.norm);
}

void Pass::make_layer_inputs(const LayerInputs& step, std::size_t tokens) {
  const std::size_t cols = part_.sizes().layer_inputs, values = part_.sizes().layer_values;
  const GpuMatrix& table = part_.matrix(step.table).matrix;
  GpuProduct product = product_of({.matrix = step.projection}, layer_projected_.data());
  product.epilogue.scale = step.projection_scale;
  multiply({&product, 1}, {.x = x_.data(), .count = tokens, .cols = part_.sizes().width});
  kernels::cuda::norm({.x = layer_projected_.data(),
                       .weight = part_.vector(step.norm),
                       .y = layer_projected_.data(),
                       .rows = tokens * (cols / values),
                       .cols = values,
                       .eps = step.eps},
                      stream_);
  kernels::cuda::known_ids(places_.ids(), table.rows(), tokens, layer_ids_.data(), stream_);
  kernels::cuda::dequantize_rows(table, layer_ids_.data(), tokens, step.table_scale * step.scale, layer_inputs_.data(),
                                 stream_);
  kernels::cuda::add(layer_projected_.data(), step.scale, layer_inputs_.data(), tokens * cols, stream_);
}

void Pass::run(const TakeLayerInput& step) {
  const std::size_t block = part_.options.blocks.begin + index_;
  const std::size_t cols = sizes_->layer_values, all = sizes_->layer_inputs;
  kernels::cuda::activate_by(step.activation, layer_inputs_.data() + first_token_ * all + block * cols, all,
                             layer_hidden_.data(), tokens_, cols, stream_);
}

void Pass::run(const ScaleStream& step) {
  kernels::cuda::scale_by(part_.vector(step.factor), pending_.branch, pending_.factor, x_.data(),
                          tokens_ * part_.sizes().width, stream_);
  pending_ = {};
}

void Pass::run(const Norm& step) {
  float* const x = buffer(step.in);
  const bool is_stream = step.in == Slot::stream;
  kernels::cuda::norm({.x = x,
                       .branch = is_stream ? pending_.branch : nullptr,
                       .branch_factor = pending_.factor,
                       .weight = part_.vector(step.weight),
                       .bias = part_.vector(step.bias),
                       .y = x,
                       .rows = tokens_,
                       .cols = sizes_->of(step.in),
                       .eps = step.eps,
                       .layer_norm = step.kind == NormKind::layer},
                      stream_);
  if (is_stream) pending_ = {};
}

void Pass::queue_head(std::size_t rows) {
  const Sizes& sizes = part_.program->head.sizes;
  sizes_ = &sizes;
  tokens_ = rows;
  pending_ = {};
  for (const Step& step : part_.fused.head) {
    if (const auto* const norm = std::get_if<Norm>(&step)) {
      run(*norm);
      continue;
    }
    const auto& products = std::get<Products>(step);
    for (const Product& one : products.list) {
      const GpuProduct product = product_of(one, buffer(one.out));
      multiply({&product, 1}, {.x = buffer(products.in), .count = rows, .cols = sizes.of(products.in)});
    }
  }
}

}  // namespace imago::backend::cuda
