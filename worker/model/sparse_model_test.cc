#include "worker/model/sparse_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/metrics.h"

namespace sluice::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Examples of 0 to 6 distinct features out of `ids`.
SparseDataset Draw(size_t rows, uint32_t ids, uint64_t seed, bool real_labels = false) {
  PhiloxRandom random(seed);
  SparseDataset data;
  for (size_t row = 0; row < rows; ++row) {
    std::set<uint64_t> features;
    for (uint32_t i = random.Below(7); i > 0; --i) features.insert(uint64_t{random.Below(ids)} * 0x9E3779B97F4A7C15);
    for (const uint64_t id : features) {
      data.ids.push_back(id);
      data.values.push_back(random.Uniform() * 2 - 0.7f);
    }
    data.labels.push_back(real_labels ? random.Uniform() * 4 - 2 : random.Chance(0.4) ? 1 : 0);
    data.row_begin.push_back(data.ids.size());
  }
  return data;
}

std::vector<uint32_t> AllRows(const SparseDataset& data) {
  std::vector<uint32_t> rows(data.rows());
  for (uint32_t i = 0; i < rows.size(); ++i) rows[i] = i;
  return rows;
}

std::vector<float> DrawRows(size_t n, uint64_t seed, float scale) {
  PhiloxRandom random(seed);
  std::vector<float> out(n);
  for (float& v : out) v = (random.Uniform() * 2 - 1) * scale;
  return out;
}

// Rendle's eq. 1 as it stands, over all pairs, in fp64, by id.
double SlowOutput(const SparseDataset& data, size_t row, const std::map<uint64_t, std::vector<double>>& rows,
                  double bias) {
  double z = bias;
  const auto ids = data.row_ids(row);
  const auto x = data.row_values(row);
  for (size_t i = 0; i < ids.size(); ++i) {
    z += rows.at(ids[i])[0] * x[i];
    for (size_t j = i + 1; j < ids.size(); ++j) {
      for (size_t f = 1; f < rows.at(ids[i]).size(); ++f) {
        z += rows.at(ids[i])[f] * rows.at(ids[j])[f] * x[i] * x[j];
      }
    }
  }
  return z;
}

double SlowLoss(const SparseDataset& data, const std::map<uint64_t, std::vector<double>>& rows, double bias,
                bool squared) {
  double loss = 0;
  for (size_t row = 0; row < data.rows(); ++row) {
    const double z = SlowOutput(data, row, rows, bias);
    const double y = data.labels[row];
    loss += squared ? (z - y) * (z - y) / 2 : LogLoss(Sigmoid(z), y == 1);
  }
  return loss / static_cast<double>(data.rows());
}

struct Case {
  SparseModelSpec spec;
  const char* name;
};

class SparseModelTest : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, SparseModelTest,
                         ::testing::Values(Case{{.kind = "lr"}, "lr"}, Case{{.kind = "fm", .factors = 1}, "fm1"},
                                           Case{{.kind = "fm", .factors = 5}, "fm5"},
                                           Case{{.kind = "lr", .loss = "squared"}, "lr_squared"},
                                           Case{{.kind = "fm", .factors = 4, .loss = "squared"}, "fm_squared"}),
                         [](const auto& info) { return info.param.name; });

TEST_P(SparseModelTest, OutputsLossAndGradientsAreThoseOfTheFormula) {
  const bool squared = GetParam().spec.loss == "squared";
  const auto model = *MakeSparseModel(GetParam().spec);
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const SparseDataset data = Draw(40, 25, seed, squared);
    SparseBatchBuffer buffer;
    const SparseBatch batch = buffer.Gather(data, AllRows(data));
    const uint32_t dim = model->dim();
    const std::vector<float> values = DrawRows(batch.ids.size() * dim, seed + 100, 1);
    const float bias = 0.3f;
    std::map<uint64_t, std::vector<double>> rows;
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      rows[batch.ids[i]] = {values.begin() + static_cast<ptrdiff_t>(i * dim),
                            values.begin() + static_cast<ptrdiff_t>((i + 1) * dim)};
    }
    std::vector<float> outputs(batch.rows());
    model->Outputs(batch, values, bias, outputs);
    for (size_t row = 0; row < data.rows(); ++row) {
      ASSERT_NEAR(outputs[row], SlowOutput(data, row, rows, bias), 1e-5) << row;
    }

    std::vector<float> gradients(values.size(), NAN);
    float bias_gradient = NAN;
    const double loss = model->LossAndGradient(batch, values, bias, gradients, &bias_gradient);
    ASSERT_NEAR(loss, SlowLoss(data, rows, bias, squared), 1e-6);
    const double h = 1e-5;
    ASSERT_NEAR(bias_gradient, (SlowLoss(data, rows, bias + h, squared) - SlowLoss(data, rows, bias - h, squared)) / 2 / h,
                1e-6);
    for (size_t i = 0; i < gradients.size(); ++i) {
      double& value = rows[batch.ids[i / dim]][i % dim];
      const double kept = value;
      value = kept + h;
      const double above = SlowLoss(data, rows, bias, squared);
      value = kept - h;
      const double below = SlowLoss(data, rows, bias, squared);
      value = kept;
      ASSERT_NEAR(gradients[i], (above - below) / 2 / h, 1e-6) << "id " << i / dim << " value " << i % dim;
    }
  }
}

// Bits must not depend on what was computed before, nor on where the memory lies.
TEST_P(SparseModelTest, SameBatchGivesSameBits) {
  const auto a = *MakeSparseModel(GetParam().spec), b = *MakeSparseModel(GetParam().spec);
  const SparseDataset data = Draw(64, 30, 1), other = Draw(200, 100, 2);
  SparseBatchBuffer one, two;
  const SparseBatch first = one.Gather(data, AllRows(data));
  const SparseBatch distraction = two.Gather(other, AllRows(other));
  std::vector<float> unused(distraction.ids.size() * b->dim());
  float bias_gradient[2];
  b->LossAndGradient(distraction, DrawRows(unused.size(), 3, 1), 1, unused, bias_gradient);
  const SparseBatch again = two.Gather(data, AllRows(data));
  const std::vector<float> values = DrawRows(first.ids.size() * a->dim(), 4, 1);
  std::vector<float> gradients(values.size());
  const double loss = a->LossAndGradient(first, values, 0.1f, gradients, &bias_gradient[0]);
  for (size_t shift = 0; shift < 8; ++shift) {
    std::vector<float> moved(values.size() + 8), moved_gradients(values.size() + 8);
    std::copy(values.begin(), values.end(), moved.begin() + static_cast<ptrdiff_t>(shift));
    const std::span<float> target = std::span(moved_gradients).subspan(shift, values.size());
    EXPECT_EQ(b->LossAndGradient(again, std::span(moved).subspan(shift, values.size()), 0.1f, target, &bias_gradient[1]),
              loss);
    EXPECT_EQ(std::memcmp(target.data(), gradients.data(), target.size_bytes()), 0) << shift;
    EXPECT_EQ(bias_gradient[0], bias_gradient[1]);
  }
}

TEST_P(SparseModelTest, EmptyBatchHasNoGradient) {
  const auto model = *MakeSparseModel(GetParam().spec);
  SparseBatchBuffer buffer;
  float bias_gradient = NAN;
  EXPECT_EQ(model->LossAndGradient(buffer.Gather({}, {}), {}, 1, {}, &bias_gradient), 0);
  EXPECT_EQ(bias_gradient, 0);
}

// A server refuses such gradients by table and id; the model must hand them on, not hide them.
TEST_P(SparseModelTest, NanInOneRowReachesItsGradient) {
  const auto model = *MakeSparseModel(GetParam().spec);
  const SparseDataset data = Draw(30, 10, 1);
  SparseBatchBuffer buffer;
  const SparseBatch batch = buffer.Gather(data, AllRows(data));
  std::vector<float> values = DrawRows(batch.ids.size() * model->dim(), 4, 1), gradients(values.size());
  values[0] = NAN;
  float bias_gradient = 0;
  EXPECT_TRUE(std::isnan(model->LossAndGradient(batch, values, 0, gradients, &bias_gradient)));
  EXPECT_TRUE(std::isnan(gradients[0]));
  EXPECT_TRUE(std::isnan(bias_gradient));
}

TEST(SparseModelSpecTest, ImpossibleModelsAreErrors) {
  EXPECT_EQ((*MakeSparseModel({.kind = "lr"}))->dim(), 1);
  EXPECT_EQ((*MakeSparseModel({.kind = "fm", .factors = 16}))->dim(), 17);
  EXPECT_THAT(std::string(MakeSparseModel({.kind = "mlp"}).status().message()), HasSubstr("lr and fm"));
  EXPECT_FALSE(MakeSparseModel({.kind = "fm", .factors = 0}).ok());
  EXPECT_FALSE(MakeSparseModel({.kind = "fm", .factors = 65536}).ok());
  EXPECT_FALSE(MakeSparseModel({.loss = "hinge"}).ok());
}

TEST(IdCollectorTest, PositionsLeadBackToTheIds) {
  PhiloxRandom random(1);
  IdCollector collector;
  for (const uint32_t n : {0, 1, 2, 1000, 3, 50}) {
    for (const uint32_t different : {1, 7, 1000000}) {
      std::vector<uint64_t> ids;
      for (uint32_t i = 0; i < n; ++i) {
        const uint64_t id = random.Below(different);
        ids.push_back(random.Chance(0.5) ? id : UINT64_MAX - id);
      }
      collector.Collect(ids);
      ASSERT_TRUE(std::ranges::equal(collector.unique(), std::set<uint64_t>(ids.begin(), ids.end())));
      ASSERT_EQ(collector.positions().size(), n);
      for (uint32_t i = 0; i < n; ++i) ASSERT_EQ(collector.unique()[collector.positions()[i]], ids[i]);
    }
  }
}

TEST(SparseBatchBufferTest, GathersRows) {
  SparseDataset data;
  data.row_begin = {0, 2, 2, 5};
  data.ids = {70, 5, 5, 1, 9};
  data.values = {1, 2, 3, 4, 5};
  data.labels = {1, 0, 1};
  SparseBatchBuffer buffer;
  const uint32_t rows[] = {2, 1, 0};
  const SparseBatch batch = buffer.Gather(data, rows);
  EXPECT_THAT(batch.ids, ElementsAre(1, 5, 9, 70));
  EXPECT_THAT(batch.row_begin, ElementsAre(0, 3, 3, 5));
  EXPECT_THAT(batch.positions, ElementsAre(1, 0, 2, 3, 1));
  EXPECT_THAT(batch.values, ElementsAre(3, 4, 5, 1, 2));
  EXPECT_THAT(batch.labels, ElementsAre(1, 0, 1));
}

}  // namespace
}  // namespace sluice::worker
