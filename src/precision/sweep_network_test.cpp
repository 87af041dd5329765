// A network in 21 types: sizes as files have them, scores as of a network that was morphed.

#include <gtest/gtest.h>

#include <algorithm>

#include "imago/error.h"
#include "imago/models.h"
#include "imago/precision.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

Network small_network() {
  return Network(layer_list(dense(6, 64, Activation::relu), sequential(layer_list(dense(64, 32), dense(32, 3)))), 5);
}

Dataset small_data() {
  Tensor<float> x(Shape{20, 6}), y(Shape{20});
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i * 37 % 23) - 11) / 4;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(i % 3);
  return {std::move(x), std::move(y)};
}

TEST(SweepNetwork, SizesAreThoseOfFiles) {
  const testing::TempDir folder;
  const std::string path = folder.path() / "net.json";
  Network network = small_network();
  save_network(network, path);
  for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::group}) {
    const SweepReport report = sweep_network(network, nullptr, std::nullopt, {.granularity = granularity});
    ASSERT_EQ(report.points.size(), static_cast<std::size_t>(kDTypeCount));
    for (const SweepPoint& point : report.points) {
      const Format type = parse_format(point.name);
      ConvertOptions wanted{.type = type, .dry_run = true};
      if (is_scaled(type.dtype())) wanted.granularity = granularity;
      EXPECT_EQ(point.bytes, convert_model(path, folder.path() / "out.json", wanted).to_bytes) << point.name;
    }
  }
}

TEST(SweepNetwork, ScoresAreThoseOfAMorphedNetwork) {
  Network network = small_network();
  const Dataset data = small_data();
  const double before = score_network(network, data).loss;
  const SweepReport report = sweep_network(network, &data);
  EXPECT_EQ(report.score.value().loss, before);
  EXPECT_EQ(score_network(network, data).loss, before) << "the network is as it was";
  EXPECT_EQ(report.type, "float32");
  for (const SweepPoint& point : report.points) {
    Network morphed = small_network();
    morph_network(morphed, parse_dtype(point.name));
    const NetworkScore score = score_network(morphed, data);
    EXPECT_EQ(point.score.value().loss, score.loss) << point.name;
    EXPECT_EQ(point.score.value().accuracy, score.accuracy) << point.name;
    EXPECT_EQ(point.cost(), score.loss);
  }
  EXPECT_GT(std::ranges::count_if(report.points, &SweepPoint::on_front), 0);
}

TEST(SweepNetwork, BlocksWhereTheyFit) {
  const testing::TempDir folder;
  const std::string path = folder.path() / "net.json";
  Network network = small_network();
  save_network(network, path);
  const Dataset data = small_data();
  const SweepReport report =
      sweep_network(network, &data, std::nullopt, {.types = {BlockFormat::q4_k, BlockFormat::q8_0}});
  ASSERT_EQ(report.points.size(), 2u);
  for (const SweepPoint& point : report.points) {
    const Format type = parse_format(point.name);
    ConvertOptions morph;
    morph.type = type;
    EXPECT_EQ(point.bytes, convert_model(path, folder.path() / "out.json", morph).to_bytes) << point.name;
    Network morphed = small_network();
    EXPECT_FALSE(morph_network(morphed, Scheme(type)).empty()) << "rows of 6 fit no block";
    EXPECT_EQ(point.score.value().loss, score_network(morphed, data).loss) << point.name;
  }
}

TEST(SweepNetwork, RefusesANetworkWithoutWeights) {
  Network nothing(layer_list(softmax()), 0);
  EXPECT_THROW(sweep_network(nothing, nullptr), UnsupportedError);
}

}  // namespace
}  // namespace imago
