// Activation-aware scaling (AWQ): columns that matter are made larger before they are rounded, and what feeds them
// smaller, so that the function stays the same and their error shrinks.
//
// | what feeds | the matrices | exceptions |
// |---|---|---|
// | the norm before attention | query, key, value; gate, up or a scan that share it | not where others read it |
// | the norm before the feed-forward layer | gate, up | not with experts, whose router reads it too |
// | the rows of up | down | gated layers without experts |
// | the rows of value | attention_output | heads that share values share factors |
//
// Norms alone after a layer (olmo2) feed nothing of this, and norms that folders store minus one cannot be divided.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "convert/guidance.h"
#include "guided/encode_matrix.h"
#include "imago/error.h"
#include "imago/numeric.h"
#include "models/architectures.h"
#include "models/tensor_layout.h"

namespace imago::convert {

namespace {

using guided::InputStatistics;
using models::Role;

/// Exponents of the root mean square to try; 0 changes nothing.
constexpr int kExponents = 10;
/// Rows of a matrix that the search reads: the best exponent is a property of columns.
constexpr std::size_t kSearchRows = 512;

/// Rows of a role inside a tensor of the plan.
struct Place {
  std::size_t tensor = 0, first_row = 0, rows = 0;
};

class ColumnScaler {
 public:
  ColumnScaler(const Source& source, std::span<const PlannedTensor> plan, std::span<TensorGuide> guides)
      : traits_(*source.traits), naming_(source.naming), plan_(plan), guides_(guides) {
    for (std::size_t i = 0; i < plan.size(); ++i) tensors_[plan[i].recipe->name] = i;
  }

  /// Returns how many groups were scaled.
  std::size_t run() {
    const models::ArchitectureFacts& row = models::facts(traits_.architecture);
    // Folders of gemma store norm weights minus one, which multiplication does not preserve; those with the rows of
    // queries, keys and values mixed have no rows of one role to be divided.
    const bool around_zero = row.norms_around_zero || row.mixer_prefix == "linear_attn";
    const bool has_norms = traits_.pre_norms && (naming_.gguf || !(around_zero || row.grouped_qkv));
    // Compressed keys, a gate in the rows of the queries, a narrow layer beside attention.
    const bool others_read = traits_.latent != 0 || traits_.attention_gate || traits_.laurel_rank != 0;
    const std::vector first = traits_.gated ? std::vector{Role::gate, Role::up} : std::vector{Role::up};
    std::size_t scaled = 0;
    for (std::size_t block = 0; block < traits_.blocks; ++block) {
      find_places(block);
      if (has_norms && !others_read && models::has_attention(traits_.block[block].mixer)) {
        std::vector consumers = {Role::query, Role::key, Role::value};
        if (traits_.block[block].mixer == models::Mixer::mamba2_beside_attention)
          consumers.push_back(Role::output_gate);
        if (traits_.shared_norm) consumers.insert(consumers.end(), first.begin(), first.end());
        scaled += scale_group(consumers, {Role::attention_norm, Role::attention_norm_bias}, identity(traits_.width));
      }
      // A norm of values would take back what their rows are divided by.
      if (!row.value_norm) {
        scaled += scale_group({Role::attention_output}, {Role::value, Role::value_bias}, value_columns());
      }
      if (traits_.block[block].experts) continue;
      if (has_norms) {
        scaled += scale_group(first, {Role::feed_forward_norm, Role::feed_forward_norm_bias}, identity(traits_.width));
      }
      if (traits_.gated)
        scaled += scale_group({Role::down}, {Role::up, Role::up_bias}, identity(traits_.block[block].feed_forward));
    }
    return scaled;
  }

 private:
  /// For each column of the consumers, the value of the producer that feeds it.
  using Sources = std::vector<std::size_t>;

  Sources value_columns() const {
    const std::size_t per_group = traits_.heads / traits_.kv_heads;
    Sources sources(traits_.heads * traits_.head_values);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const std::size_t head = i / traits_.head_values;
      sources[i] = head / per_group * traits_.head_values + i % traits_.head_values;
    }
    return sources;
  }
  static Sources identity(std::size_t count) {
    Sources sources(count);
    std::iota(sources.begin(), sources.end(), std::size_t{0});
    return sources;
  }

  void find_places(std::size_t block) {
    places_.clear();
    for (const models::LayoutTensor& tensor : models::block_layout(traits_, naming_, block)) {
      const auto found = tensors_.find(tensor.name);
      if (found == tensors_.end() || tensor.experts != 1 || tensor.groups != 1) continue;
      std::size_t row = 0;
      for (const Role role : tensor.roles) {
        const std::size_t rows = models::extent_of(traits_, role, block).rows;
        places_[role] = {found->second, row, rows};
        row += rows;
      }
    }
  }

  bool scale_group(std::vector<Role> consumers, const std::vector<Role>& producers, const Sources& sources) {
    std::erase_if(consumers, [&](Role role) { return !places_.contains(role); });
    std::vector<std::size_t> tensors;
    for (const Role role : consumers) {
      const std::size_t tensor = places_[role].tensor;
      if (std::ranges::find(tensors, tensor) == tensors.end()) tensors.push_back(tensor);
    }
    // Every consumer must be scaled, and the producer must exist to be divided.
    if (tensors.empty() || !places_.contains(producers.front())) return false;
    for (const std::size_t tensor : tensors) {
      if (guides_[tensor].inputs.size() != 1 || !guides_[tensor].column_factors.empty()) return false;
    }
    std::vector<float> factors = search(tensors, sources);
    if (factors.empty()) return false;
    make_exact(places_[producers.front()], factors);
    for (const std::size_t tensor : tensors) {
      TensorGuide& guide = guides_[tensor];
      guide.column_factors.resize(sources.size());
      for (std::size_t i = 0; i < sources.size(); ++i) guide.column_factors[i] = factors[sources[i]];
      guide.inputs.front() = scaled_statistics(*guide.inputs.front(), guide.column_factors);
    }
    for (const Role role : producers) divide(role, factors);
    return true;
  }

  /// A divided norm is rounded to the type it is stored in: replaces the factors by what it was really divided by.
  void make_exact(const Place& place, std::span<float> factors) const {
    const PlannedTensor& planned = plan_[place.tensor];
    const models::TensorRecipe& recipe = *planned.recipe;
    if (recipe.shape.rank() > 1 || !planned.type.format || planned.type.format->block_values() != 1) return;
    std::vector<float> norm(recipe.shape.elements());
    models::apply_recipe(recipe, norm);
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const float divided = simulate_precision(norm[i] / factors[i], planned.type.format->dtype(), 1);
      if (divided != 0 && std::isfinite(norm[i] / divided)) factors[i] = norm[i] / divided;
    }
  }

  void divide(Role role, std::span<const float> factors) {
    const auto found = places_.find(role);
    if (found == places_.end()) return;  // an optional bias
    const Place& place = found->second;
    const models::TensorRecipe& recipe = *plan_[place.tensor].recipe;
    const std::size_t rows =
        recipe.shape.rank() < 2 ? recipe.shape.elements() : recipe.shape.elements() / recipe.shape.last();
    std::vector<float>& row_factors = guides_[place.tensor].row_factors;
    row_factors.resize(rows, 1.0f);
    for (std::size_t i = 0; i < place.rows; ++i) row_factors[place.first_row + i] /= factors[i];
  }

  static std::shared_ptr<const InputStatistics> scaled_statistics(const InputStatistics& from,
                                                                  std::span<const float> factors) {
    auto scaled = std::make_shared<InputStatistics>();
    scaled->rows = from.rows;
    scaled->second_moments = from.second_moments;
    for (std::size_t i = 0; i < factors.size(); ++i) scaled->second_moments[i] /= factors[i] * factors[i];
    return scaled;
  }

  /// The factors of the producer's values that minimise the error of the consumers' outputs; empty if none helps.
  std::vector<float> search(std::span<const std::size_t> tensors, const Sources& sources) {
    const InputStatistics& inputs = *guides_[tensors.front()].inputs.front();
    const std::size_t values = *std::ranges::max_element(sources) + 1;
    std::vector<double> moments(values);
    std::vector<std::size_t> counts(values);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      moments[sources[i]] += static_cast<double>(inputs.second_moments[i]);
      ++counts[sources[i]];
    }
    double log_sum = 0;
    for (std::size_t i = 0; i < values; ++i) {
      moments[i] = std::max(moments[i] / static_cast<double>(counts[i]), 1e-12);
      log_sum += std::log(moments[i]) / 2;
    }
    const double centre = std::exp(log_sum / static_cast<double>(values));  // so that factors are 1 on average
    std::vector<Matrix> matrices;
    for (const std::size_t tensor : tensors) matrices.push_back(read(tensor));

    std::vector<float> best;
    double least = std::numeric_limits<double>::infinity();
    for (int step = 0; step <= kExponents; ++step) {
      const double exponent = static_cast<double>(step) / kExponents;
      std::vector<float> factors(values);
      for (std::size_t i = 0; i < values; ++i) {
        factors[i] = static_cast<float>(std::clamp(std::pow(std::sqrt(moments[i]) / centre, exponent), 1e-2, 1e2));
      }
      double error = 0;
      for (const Matrix& matrix : matrices) error += output_error(matrix, factors, sources);
      if (error >= least) continue;
      least = error;
      best = step == 0 ? std::vector<float>() : factors;
    }
    return best;
  }

  struct Matrix {
    std::size_t tensor, cols;
    std::vector<float> weights;
  };

  /// A sample of the rows of a tensor, with the factors that it already has as a producer.
  Matrix read(std::size_t tensor) const {
    const models::TensorRecipe& recipe = *plan_[tensor].recipe;
    std::vector<float> all(recipe.shape.elements());
    models::apply_recipe(recipe, all);
    guides_[tensor].apply(0, all, recipe.shape);
    return {tensor, recipe.shape.last(), guided::sample_rows(all, recipe.shape.last(), kSearchRows)};
  }

  double output_error(const Matrix& matrix, std::span<const float> factors, const Sources& sources) const {
    const InputStatistics& inputs = *guides_[matrix.tensor].inputs.front();
    std::vector<float> column(matrix.cols), scaled = matrix.weights;
    for (std::size_t i = 0; i < matrix.cols; ++i) column[i] = factors[sources[i]];
    for (std::size_t i = 0; i < scaled.size(); ++i) scaled[i] *= column[i % matrix.cols];
    const Scheme& scheme = plan_[matrix.tensor].scheme;
    const auto seen = scaled_statistics(inputs, column);
    const std::size_t rows = scaled.size() / matrix.cols;
    const std::vector<float> got =
        guided::decode_matrix(guided::encode_matrix(scaled, rows, matrix.cols, scheme, Rounding::nearest, seen.get()),
                              scheme, rows, matrix.cols);
    double sum = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double error = static_cast<double>(scaled[i]) - static_cast<double>(got[i]);
      sum += error * error * static_cast<double>(seen->second_moments[i % matrix.cols]);
    }
    return sum;
  }

  const models::Traits& traits_;
  const models::Naming& naming_;
  std::span<const PlannedTensor> plan_;
  std::span<TensorGuide> guides_;
  std::map<std::string, std::size_t> tensors_;  // index in the plan by name
  std::map<Role, Place> places_;                // of the current block
};

}  // namespace

void scale_columns(const Source& source, std::span<const PlannedTensor> plan, std::span<TensorGuide> guides,
                   std::vector<std::string>& notes) {
  if (!source.traits) {
    throw UnsupportedError(fmt::format("{}: activation-aware scaling works on language models only", source.path));
  }
  const std::size_t scaled = ColumnScaler(source, plan, guides).run();
  notes.push_back(fmt::format("columns were scaled in {} groups of matrices", scaled));
}

}  // namespace imago::convert
