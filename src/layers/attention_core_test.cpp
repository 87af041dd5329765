// One head at a time: the blocks of queries, and the reference that has no RoPE.

#include "layers/attention_core.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "imago/error.h"
#include "testing/random_values.h"
#include "testing/torch_layers.h"

namespace imago::layers {
namespace {

using testing::random_values;

struct Plain {
  std::vector<double> out, grad_q, grad_k, grad_v;
};

/// Attention and its gradient as the spec states them, one query at a time.
Plain plain_attention(const HeadTile& head, std::span<const float> grad_out) {
  const std::size_t d = head.width;
  const std::size_t count = head.steps * d;
  Plain plain{std::vector<double>(count), std::vector<double>(count), std::vector<double>(count),
              std::vector<double>(count)};
  const auto at = [d](std::span<const float> tile, std::size_t t, std::size_t i) {
    return static_cast<double>(tile[t * d + i]);
  };
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  for (std::size_t t = 0; t < head.steps; ++t) {
    std::vector<double> p(t + 1), grad_p(t + 1);
    double sum = 0;
    for (std::size_t u = 0; u <= t; ++u) {
      double score = 0;
      for (std::size_t i = 0; i < d; ++i) score += at(head.q, t, i) * at(head.k, u, i);
      sum += p[u] = std::exp(score * scale);
    }
    double mean = 0;
    for (std::size_t u = 0; u <= t; ++u) {
      p[u] /= sum;
      for (std::size_t i = 0; i < d; ++i) {
        plain.out[t * d + i] += p[u] * at(head.v, u, i);
        plain.grad_v[u * d + i] += p[u] * at(grad_out, t, i);
        grad_p[u] += at(grad_out, t, i) * at(head.v, u, i);
      }
      mean += p[u] * grad_p[u];
    }
    for (std::size_t u = 0; u <= t; ++u) {
      const double grad_score = p[u] * (grad_p[u] - mean) * scale;
      for (std::size_t i = 0; i < d; ++i) {
        plain.grad_q[t * d + i] += grad_score * at(head.k, u, i);
        plain.grad_k[u * d + i] += grad_score * at(head.q, t, i);
      }
    }
  }
  return plain;
}

void expect_near(std::span<const float> got, std::span<const double> wanted, const char* what) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), wanted[i], 2e-5) << what << " " << i;
  }
}

TEST(AttentionCore, BlocksOfQueriesGiveTheWhole) {
  for (const std::size_t steps : {std::size_t{1}, std::size_t{2}, kBlockRows - 1, kBlockRows, kBlockRows + 1,
                                  2 * kBlockRows, 2 * kBlockRows + 3}) {
    for (const std::size_t width : {std::size_t{1}, std::size_t{5}, std::size_t{16}}) {
      SCOPED_TRACE(std::to_string(steps) + " steps of " + std::to_string(width));
      const std::size_t count = steps * width;
      const std::vector<float> q = random_values(count, 1), k = random_values(count, 2), v = random_values(count, 3);
      const std::vector<float> grad_out = random_values(count, 4);
      const HeadTile head{steps, width, q, k, v};
      const Plain wanted = plain_attention(head, grad_out);

      std::vector<float> probabilities(probability_count(steps)), scratch(block_probability_count(steps));
      std::vector<float> out(count), out_alone(count);
      attend(head, probabilities, out);
      expect_near(out, wanted.out, "out");
      attend(head, scratch, out_alone);
      EXPECT_EQ(out_alone, out);

      // Keys and values are added to: what was there must stay in.
      std::vector<float> grad_q(count, 9), grad_k(count, 1), grad_v(count, 2);
      attend_backward(head, probabilities, scratch, {grad_out, grad_q, grad_k, grad_v});
      for (float& g : grad_k) g -= 1;
      for (float& g : grad_v) g -= 2;
      expect_near(grad_q, wanted.grad_q, "grad_q");
      expect_near(grad_k, wanted.grad_k, "grad_k");
      expect_near(grad_v, wanted.grad_v, "grad_v");
    }
  }
}

TEST(AttentionCore, LargeScoresDoNotOverflow) {
  const std::vector<float> q = {300, 300}, k = {-300, 300}, v = {5, 7};
  std::vector<float> probabilities(probability_count(2)), out(2);
  attend({2, 1, q, k, v}, probabilities, out);
  EXPECT_EQ(out, (std::vector<float>{5, 7}));
}

TEST(AttentionCore, CountsOverflowAsErrors) {
  EXPECT_EQ(probability_count(2 * kBlockRows), 3 * kBlockRows * kBlockRows);
  EXPECT_EQ(probability_count(3), 9u);
  EXPECT_THROW(probability_count(std::numeric_limits<std::size_t>::max()), ShapeError);
}

/// rows[t] = W · x[t] + b.
std::vector<float> project(std::span<const float> x, std::span<const float> w, std::span<const float> b) {
  const std::size_t rows = b.size();
  const std::size_t cols = w.size() / rows;
  std::vector<float> y;
  for (std::size_t t = 0; t < x.size() / cols; ++t) {
    for (std::size_t r = 0; r < rows; ++r) {
      double sum = static_cast<double>(b[r]);
      for (std::size_t c = 0; c < cols; ++c) {
        sum += static_cast<double>(w[r * cols + c]) * static_cast<double>(x[t * cols + c]);
      }
      y.push_back(static_cast<float>(sum));
    }
  }
  return y;
}

/// grad_x += Wᵀ · grad_y, grad_w += grad_yᵀ · x.
void project_backward(std::span<const float> x, std::span<const float> w, std::size_t rows,
                      std::span<const float> grad_y, std::vector<float>& grad_x, std::vector<float>& grad_w) {
  const std::size_t cols = w.size() / rows;
  grad_w.resize(w.size());
  for (std::size_t t = 0; t < x.size() / cols; ++t) {
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < cols; ++c) {
        grad_x[t * cols + c] += w[r * cols + c] * grad_y[t * rows + r];
        grad_w[r * cols + c] += grad_y[t * rows + r] * x[t * cols + c];
      }
    }
  }
}

// The layer always turns its heads, PyTorch's module does not: its core is compared with projections made here.
TEST(AttentionCore, AsTorchWithoutRope) {
  const auto torch = testing::find_torch_layer("mha_h4kv4d8b0");
  if (!torch) GTEST_SKIP() << testing::missing_torch_layer("mha_h4kv4d8b0");
  const std::size_t sequences = 2, steps = 7, width = 32, heads = 4, d = 8;
  const std::vector<float> x = torch->values("x"), dy = torch->values("dy");
  const std::vector<float> q = project(x, torch->values("w.q"), torch->values("w.b_q"));
  const std::vector<float> k = project(x, torch->values("w.k"), torch->values("w.b_k"));
  const std::vector<float> v = project(x, torch->values("w.v"), torch->values("w.b_v"));
  std::vector<float> attended(x.size()), grad_attended(x.size()), grad_wo;
  project_backward(attended, torch->values("w.o"), width, dy, grad_attended, grad_wo);
  std::vector<float> grad_q(x.size()), grad_k(x.size()), grad_v(x.size());
  for (std::size_t b = 0; b < sequences; ++b) {
    for (std::size_t head = 0; head < heads; ++head) {
      const auto gather = [&](const std::vector<float>& rows) {
        std::vector<float> tile;
        for (std::size_t t = 0; t < steps; ++t) {
          const auto from = rows.begin() + static_cast<std::ptrdiff_t>((b * steps + t) * width + head * d);
          tile.insert(tile.end(), from, from + d);
        }
        return tile;
      };
      const auto scatter = [&](const std::vector<float>& tile, std::vector<float>& rows) {
        for (std::size_t t = 0; t < steps; ++t) {
          for (std::size_t i = 0; i < d; ++i) rows[(b * steps + t) * width + head * d + i] = tile[t * d + i];
        }
      };
      const std::vector<float> head_q = gather(q), head_k = gather(k), head_v = gather(v);
      const std::vector<float> grad_out = gather(grad_attended);
      const HeadTile tile{steps, d, head_q, head_k, head_v};
      std::vector<float> probabilities(probability_count(steps)), scratch(block_probability_count(steps));
      std::vector<float> out(steps * d), dq(steps * d), dk(steps * d), dv(steps * d);
      attend(tile, probabilities, out);
      attend_backward(tile, probabilities, scratch, {grad_out, dq, dk, dv});
      scatter(out, attended);
      scatter(dq, grad_q);
      scatter(dk, grad_k);
      scatter(dv, grad_v);
    }
  }
  testing::expect_close(project(attended, torch->values("w.o"), torch->values("w.b_o")), torch->values("y"), 1e-4, "y");
  std::vector<float> grad_x(x.size()), grad_wq, grad_wk, grad_wv;
  project_backward(x, torch->values("w.q"), width, grad_q, grad_x, grad_wq);
  project_backward(x, torch->values("w.k"), width, grad_k, grad_x, grad_wk);
  project_backward(x, torch->values("w.v"), width, grad_v, grad_x, grad_wv);
  testing::expect_close(grad_x, torch->values("dx"), 1e-4, "dx");
  testing::expect_close(grad_wq, torch->values("dw.q"), 1e-4, "dw.q");
  testing::expect_close(grad_wk, torch->values("dw.k"), 1e-4, "dw.k");
  testing::expect_close(grad_wv, torch->values("dw.v"), 1e-4, "dw.v");
}

}  // namespace
}  // namespace imago::layers
