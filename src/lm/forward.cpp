#include "lm/forward.h"

#include <vector>

namespace imago::lm {

TokenId run_model(const LoadedModel& model, std::span<const TokenId> ids, std::span<const Segment> segments,
                  std::size_t positions, backend::Workspace& work, const BatchRequest& request) {
  const auto rope = model.rope_table(positions);
  std::vector<backend::Segment> parts(segments.size());
  TokenId chosen = -1;
  for (std::size_t i = 0; i < model.weights.runners.size(); ++i) {
    for (std::size_t s = 0; s < segments.size(); ++s) {
      parts[s] = {segments[s].cache->parts[i].get(), segments[s].past, segments[s].tokens};
    }
    chosen = model.weights.runners[i]->run({.ids = ids,
                                            .segments = parts,
                                            .rope = rope.get(),
                                            .work = work,
                                            .first_row = request.first_row,
                                            .rows = request.rows,
                                            .logits = request.logits,
                                            .choice = request.choice,
                                            .all_rows = request.all_rows});
  }
  return chosen;
}

void model_logits(const LoadedModel& model, backend::Workspace& work, std::size_t first, std::size_t rows,
                  std::span<float> logits) {
  model.weights.runners.back()->compute_logits(work, first, rows, logits);
}

}  // namespace imago::lm
