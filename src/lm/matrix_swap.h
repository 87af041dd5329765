#pragma once

// Other types for some matrices of a loaded model, for a while: how the effect of a single type is measured without
// loading the model again.

#include <optional>
#include <vector>

#include "backend/runner.h"
#include "imago/lm.h"
#include "kernels/matrix.h"
#include "lm/matrix_encoder.h"
#include "models/matrix_names.h"

namespace imago::lm {

/// Puts matrices into a model, and the old ones back when it goes. Products are exact: float32 activations. The model
/// must outlive it, and nobody may run the model while matrices change. Swaps of one matrix go in the reverse order of
/// their making.
class MatrixSwap {
 public:
  explicit MatrixSwap(LanguageModel& model) : model_(model) {}
  MatrixSwap(const MatrixSwap&) = delete;
  MatrixSwap& operator=(const MatrixSwap&) = delete;
  ~MatrixSwap();

  /// `weights` have the shape of the matrix they replace. The token embedding of a tied output changes in both places.
  /// Throws ShapeError, and as RunMatrix; the model is then as before.
  void put(const models::MatrixKey& key, EncodedWeights weights);

 private:
  struct Kept {
    models::MatrixKey key;
    std::optional<kernels::RunMatrix> matrix;  ///< none for an embedding that is not the output
    std::optional<backend::RowTable> table;    ///< of the token embedding
  };
  void swap(Kept& kept);

  LanguageModel& model_;
  std::vector<Kept> kept_;
};

}  // namespace imago::lm
