#include "lm/forward.h"

namespace imago::lm {

namespace {

RowRange rows_read(const Wanted& wanted, std::size_t tokens) {
  if (wanted.output_rows) return {0, tokens};
  if (wanted.logits.empty()) return {};
  return {wanted.first_row, wanted.rows};
}

}  // namespace

TokenId run_model(const LoadedModel& model, std::span<const TokenId> ids, std::span<const Segment> segments,
                  std::size_t positions, Workspace& work, const Wanted& wanted) {
  const DecoderWeights& weights = model.weights;
  const std::size_t width = weights.traits.width;
  const auto rope = model.rope_table(positions);
  Accelerator* const accelerator = model.accelerator();
  if (accelerator == nullptr) {
    const RowRange read = rows_read(wanted, ids.size());
    run_blocks(weights, ids, read, segments, rope.get(), work);
    if (!wanted.logits.empty()) compute_logits(weights, work, wanted.first_row, wanted.rows, wanted.logits);
    return -1;
  }
  AcceleratorBatch batch{.ids = ids,
                         .x = {},
                         .segments = segments,
                         .rope = rope.get(),
                         .first_row = wanted.first_row,
                         .rows = wanted.rows,
                         .logits = wanted.logits,
                         .choice = wanted.choice};
  if (!accelerator->embeds()) {
    embed_tokens(weights, ids, segments, work);
    run_blocks(weights, {0, accelerator->first_block()}, ids.size(), segments, rope.get(), work);
    batch.x = std::span(work.x).first(ids.size() * width);
  }
  if (wanted.output_rows) batch.output_rows = sized(work.branch, ids.size() * width);
  const TokenId chosen = accelerator->run(batch);
  if (wanted.output_rows) std::swap(work.x, work.branch);
  return chosen;
}

void model_logits(const LoadedModel& model, Workspace& work, std::size_t first, std::size_t rows,
                  std::span<float> logits) {
  if (Accelerator* const accelerator = model.accelerator()) {
    const std::size_t width = model.weights.traits.width;
    accelerator->compute_logits(std::span(work.x).subspan(first * width, rows * width), logits);
  } else {
    compute_logits(model.weights, work, first, rows, logits);
  }
}

}  // namespace imago::lm
