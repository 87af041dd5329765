// Latent attention: queries are multiplied into the space of the compressed keys, so that attention reads the cache as
// it is, one head of keys whose rows are values, too.

#include "kernels/cuda/latent.h"
#include "backend/cuda/pass.h"

namespace imago::backend::cuda {

using kernels::cuda::GpuProduct;
using kernels::cuda::TokenPlaces;

void Pass::multiply_heads(const WeightKey& weight, std::size_t heads, const float* x, std::size_t x_stride, float* y,
                          std::size_t y_stride) {
  const Product step{.matrix = weight};
  const GpuMatrix& first = part_.matrix(weight).matrix;
  const ExpertTable& table = table_of(step, heads);
  if (tokens_ <= kernels::cuda::kMatVecTokens && table.format) {
    kernels::cuda::multiply_experts(
        *table.format,
        {.layer = {.experts = table.experts.data(), .rows = first.rows(), .cols = first.cols()},
         .chosen = nullptr,
         .count_of_experts = heads,
         .x = x,
         .y = y,
         .x_stride = x_stride,
         .y_stride = y_stride,
         .count = tokens_ * heads,
         .share = 1},
        stream_);
    return;
  }
  const std::size_t cols = first.cols();
  kernels::cuda::gather_heads(x, x_stride, tokens_, heads, cols, latent_rows_.data(), stream_);
  for (std::size_t head = 0; head < heads; ++head) {
    GpuProduct product = product_of(step, y + head * y_stride, head);
    product.y_stride = heads * y_stride;
    multiply({&product, 1}, {.x = latent_rows_.data() + head * tokens_ * cols, .count = tokens_, .cols = cols});
  }
}

void Pass::run(const LatentAttend& step) {
  const std::size_t heads = step.heads, row = step.rank + step.rotary, query = step.plain + step.rotary;
  multiply_heads(step.key_up, heads, q_.data(), query, latent_.data(), row);
  for (const PlaceGroup& group : groups_) {
    const TokenPlaces places = places_of(places_, group);
    float* const latent = latent_.data() + group.first * heads * row;
    const kernels::CacheShape shape = group.shape_in(*sizes_);
    kernels::cuda::place_latent({.rows = k_.data() + group.first * row,
                                 .q = q_.data() + group.first * heads * query,
                                 .latent = latent,
                                 .heads = heads,
                                 .plain = step.plain,
                                 .rotary = step.rotary,
                                 .rank = step.rank,
                                 .norm = part_.vector(step.norm),
                                 .eps = step.eps,
                                 .rope = ropes_[0].table.data(),
                                 .pairs = step.pairs,
                                 .shape = shape,
                                 .caches = places_.caches(index_),
                                 .paged = group.paged},
                                places, stream_);
    kernels::cuda::attention({.q = latent,
                              .y = latent,
                              .heads = heads,
                              .options = {.scale = step.scale},
                              .shape = shape,
                              .caches = places_.caches(index_),
                              .paged = group.paged,
                              .scratch = attention_scratch_.data(),
                              .exact = !part_.options.fast,
                              .shared_values = step.rank},
                             places, stream_);
  }
  multiply_heads(step.value_up, heads, latent_.data(), row, attended_.data(), step.values);
  attention_ = {.x = attended_.data(), .count = tokens_, .cols = heads * step.values};
}

}  // namespace imago::backend::cuda
