#include "worker/model/model.h"

#include <chrono>
#include <cmath>
#include <cstring>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

using ::testing::ElementsAre;

// A model with parameters and gradients of its own.
struct Subject {
  std::unique_ptr<Model> model;
  std::vector<std::vector<float>> values, gradients;
  std::vector<std::span<float>> value_spans, gradient_spans;
  std::vector<std::span<const float>> const_spans;

  explicit Subject(const ModelSpec& spec, uint64_t seed = 1) : model(*MakeModel(spec)) {
    for (const ParameterSpec& p : model->parameters()) {
      values.emplace_back(p.size());
      gradients.emplace_back(p.size(), 1e30f);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      value_spans.emplace_back(values[i]);
      const_spans.emplace_back(values[i]);
      gradient_spans.emplace_back(gradients[i]);
    }
    model->Initialize(seed, value_spans);
  }
  BatchScore Step(const Batch& batch, const StepHooks& hooks = {}) {
    return model->LossAndGradient(batch, const_spans, gradient_spans, hooks);
  }
};

// Points around one centre a class.
Dataset Clusters(size_t rows, size_t features, size_t classes, uint64_t seed) {
  Dataset data{.rows = rows, .features = features, .classes = classes, .x = {}, .y = {}};
  PhiloxRandom random(seed);
  std::vector<float> centres(features * classes);
  for (float& c : centres) c = 2 * random.Uniform() - 1;
  for (size_t r = 0; r < rows; ++r) {
    data.y.push_back(static_cast<int32_t>(random.Below(static_cast<uint32_t>(classes))));
    for (size_t f = 0; f < features; ++f) {
      data.x.push_back(centres[static_cast<size_t>(data.y.back()) * features + f] + 0.6f * (random.Uniform() - 0.5f));
    }
  }
  return data;
}

Batch All(const Dataset& data) { return {.rows = data.rows, .x = data.x, .y = data.y}; }

// Slow, obvious, in fp64.
double ReferenceLoss(const Subject& s, const std::vector<size_t>& widths, const Batch& batch) {
  double loss = 0;
  for (size_t r = 0; r < batch.rows; ++r) {
    std::vector<double> a(batch.x.begin() + static_cast<ptrdiff_t>(r * widths[0]),
                          batch.x.begin() + static_cast<ptrdiff_t>((r + 1) * widths[0]));
    for (size_t l = 0; l + 1 < widths.size(); ++l) {
      std::vector<double> next(widths[l + 1]);
      for (size_t o = 0; o < next.size(); ++o) {
        next[o] = s.values[2 * l + 1][o];
        for (size_t i = 0; i < a.size(); ++i) next[o] += a[i] * s.values[2 * l][i * next.size() + o];
        if (l + 2 < widths.size()) next[o] = std::max(next[o], 0.0);
      }
      a = next;
    }
    double sum = 0;
    for (const double v : a) sum += std::exp(v);
    loss += std::log(sum) - a[static_cast<size_t>(batch.y[r])];
  }
  return loss / static_cast<double>(batch.rows);
}

class GradientTest : public ::testing::TestWithParam<std::vector<size_t>> {};

TEST_P(GradientTest, MatchesFiniteDifferencesOfTheReference) {
  const std::vector<size_t>& widths = GetParam();
  ModelSpec spec{.kind = widths.size() == 2 ? "softmax" : "mlp", .features = widths.front(), .classes = widths.back(),
                 .hidden = {widths.begin() + 1, widths.end() - 1}};
  Subject s(spec);
  PhiloxRandom random(5);
  for (size_t i = 1; i < s.values.size(); i += 2) {
    for (float& b : s.values[i]) b = random.Uniform() - 0.5f;  // biases begin at 0; let them count
  }
  const Dataset data = Clusters(9, widths.front(), widths.back(), 3);
  const BatchScore score = s.Step(All(data));
  EXPECT_NEAR(score.loss, ReferenceLoss(s, widths, All(data)), 1e-5);
  constexpr float kStep = 1e-3f;
  for (size_t p = 0; p < s.values.size(); ++p) {
    for (size_t i = 0; i < s.values[p].size(); ++i) {
      const float old = s.values[p][i];
      s.values[p][i] = old + kStep;
      const double up = ReferenceLoss(s, widths, All(data));
      s.values[p][i] = old - kStep;
      const double down = ReferenceLoss(s, widths, All(data));
      s.values[p][i] = old;
      // A step across a kink of ReLU would differ; the seeds are such that none is.
      ASSERT_NEAR(s.gradients[p][i], (up - down) / (2 * kStep), 2e-3) << "parameter " << p << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GradientTest,
                         ::testing::Values(std::vector<size_t>{5, 3}, std::vector<size_t>{1, 2},
                                           std::vector<size_t>{6, 7, 4}, std::vector<size_t>{4, 9, 5, 3}));

TEST(ModelTest, TellsItsParameters) {
  const auto mlp = *MakeModel({.kind = "mlp", .features = 784, .classes = 10, .hidden = {256}});
  ASSERT_EQ(mlp->parameters().size(), 4);
  EXPECT_EQ(mlp->parameters()[0].name, "layer0.weight");
  EXPECT_THAT(mlp->parameters()[0].shape, ElementsAre(784, 256));
  EXPECT_EQ(mlp->parameters()[3].name, "layer1.bias");
  EXPECT_THAT(mlp->parameters()[3].shape, ElementsAre(10));
  EXPECT_EQ(mlp->parameters()[3].kind, ParameterKind::kBias);
  EXPECT_EQ((*MakeModel({.features = 5, .classes = 2}))->parameters().size(), 2);
}

TEST(ModelTest, ImpossibleModelsAreErrors) {
  EXPECT_FALSE(MakeModel({.kind = "cnn", .features = 5, .classes = 2}).ok());
  EXPECT_FALSE(MakeModel({.kind = "mlp", .features = 5, .classes = 2}).ok());
  EXPECT_FALSE(MakeModel({.kind = "mlp", .features = 5, .classes = 2, .hidden = {0}}).ok());
  EXPECT_FALSE(MakeModel({.features = 0, .classes = 2}).ok());
  EXPECT_FALSE(MakeModel({.features = 5, .classes = 1}).ok());
  EXPECT_FALSE(MakeModel({.kind = "mlp", .features = 1 << 20, .classes = 2, .hidden = {1 << 20}}).ok());
}

TEST(ModelTest, InitialValuesDependOnTheSeedAlone) {
  const ModelSpec spec{.kind = "mlp", .features = 30, .classes = 3, .hidden = {20}};
  Subject a(spec, 7), b(spec, 7), c(spec, 8);
  EXPECT_EQ(a.values, b.values);
  EXPECT_NE(a.values[0], c.values[0]);
  EXPECT_NE(a.values[0][0], a.values[2][0]);
  for (const float w : a.values[0]) EXPECT_LE(std::abs(w), std::sqrt(6.0f / 30));
  for (const float bias : a.values[1]) EXPECT_EQ(bias, 0);
}

// Bits must not depend on what was computed before, nor on where the memory lies.
TEST(ModelTest, SameBatchGivesSameBits) {
  for (const size_t rows : {1, 3, 32, 100}) {
    const ModelSpec spec{.kind = "mlp", .features = 37, .classes = 5, .hidden = {19, 11}};
    Subject a(spec), b(spec);
    const Dataset data = Clusters(rows, 37, 5, 1), other = Clusters(200, 37, 5, 2);
    const BatchScore first = a.Step(All(data));
    b.Step(All(other));
    for (size_t shift = 0; shift < 8; ++shift) {
      std::vector<float> x(data.x.size() + 8);
      std::copy(data.x.begin(), data.x.end(), x.begin() + static_cast<ptrdiff_t>(shift));
      std::vector<std::vector<float>> storage, gradient_storage;
      std::vector<std::span<const float>> values;
      std::vector<std::span<float>> gradients;
      for (const auto& v : b.values) {
        storage.emplace_back(v.size() + 8);
        gradient_storage.emplace_back(v.size() + 8);
        std::copy(v.begin(), v.end(), storage.back().begin() + static_cast<ptrdiff_t>(shift));
        values.emplace_back(storage.back().data() + shift, v.size());
        gradients.emplace_back(gradient_storage.back().data() + shift, v.size());
      }
      const BatchScore again = b.model->LossAndGradient(
          {.rows = rows, .x = std::span(x).subspan(shift, data.x.size()), .y = data.y}, values, gradients);
      ASSERT_EQ(first.loss, again.loss);
      for (size_t i = 0; i < gradients.size(); ++i) {
        ASSERT_EQ(std::memcmp(a.gradients[i].data(), gradients[i].data(), gradients[i].size_bytes()), 0)
            << "parameter " << i << " shift " << shift << " rows " << rows;
      }
    }
  }
}

TEST(ModelTest, HooksComeInOrderAndParametersAreFreeAfterwards) {
  const ModelSpec spec{.kind = "mlp", .features = 6, .classes = 3, .hidden = {5, 4}};
  Subject a(spec), b(spec);
  const Dataset data = Clusters(10, 6, 3, 1);
  a.Step(All(data));
  std::vector<size_t> before, after;
  // What an eager trainer does: each parameter is overwritten as soon as its gradient is there.
  const BatchScore score = b.Step(All(data), {.before_layer = [&](size_t i) { before.push_back(i); },
                                              .on_gradient = [&](size_t i) {
                                                after.push_back(i);
                                                EXPECT_EQ(a.gradients[i], b.gradients[i]);
                                                for (float& v : b.values[i]) v = NAN;
                                                for (float& v : b.gradients[i]) v = NAN;
                                              }});
  EXPECT_TRUE(std::isfinite(score.loss));
  EXPECT_THAT(before, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(after, ElementsAre(4, 5, 2, 3, 0, 1));
}

TEST(ModelTest, EmptyBatchHasNoGradient) {
  Subject s({.features = 4, .classes = 2});
  size_t calls = 0;
  const BatchScore score = s.Step({}, {.before_layer = nullptr, .on_gradient = [&](size_t) { ++calls; }});
  EXPECT_EQ(score.loss, 0);
  EXPECT_EQ(calls, 2);
  for (const float g : s.gradients[0]) EXPECT_EQ(g, 0);
}

TEST(ModelTest, LearnsClustersAndEvaluatesThem) {
  for (const char* kind : {"softmax", "mlp"}) {
    ModelSpec spec{.kind = kind, .features = 10, .classes = 4, .hidden = {}};
    if (spec.kind == "mlp") spec.hidden = {16};
    Subject s(spec);
    const Dataset data = Clusters(700, 10, 4, 9);
    const Evaluation start = *s.model->Evaluate(data, s.const_spans);
    double last = 0;
    for (int step = 0; step < 60; ++step) {
      const BatchScore score = s.Step(All(data));
      last = score.loss;
      for (size_t p = 0; p < s.values.size(); ++p) {
        for (size_t i = 0; i < s.values[p].size(); ++i) s.values[p][i] -= 0.5f * s.gradients[p][i];
      }
    }
    const Evaluation end = *s.model->Evaluate(data, s.const_spans);
    EXPECT_LT(last, start.loss / 2);
    EXPECT_GT(end.accuracy, 0.95) << kind;
    const BatchScore whole = s.Step(All(data));
    EXPECT_NEAR(end.loss, whole.loss, 1e-6);
    EXPECT_EQ(end.accuracy * 700, static_cast<double>(whole.correct));
  }
}

TEST(ModelTest, EvaluationChecksTheData) {
  Subject s({.features = 4, .classes = 2});
  EXPECT_FALSE(s.model->Evaluate(Clusters(5, 3, 2, 1), s.const_spans).ok());
  EXPECT_FALSE(s.model->Evaluate(Clusters(5, 4, 3, 1), s.const_spans).ok());
  EXPECT_FALSE(s.model->Evaluate(Dataset{.features = 4, .classes = 2}, s.const_spans).ok());
}

// The server refuses a step with such gradients; the model must hand them on, not hide them.
TEST(ModelTest, NanInParametersReachesLossAndGradient) {
  Subject s({.kind = "mlp", .features = 6, .classes = 3, .hidden = {5}});
  s.values[0][7] = NAN;
  const Dataset data = Clusters(10, 6, 3, 1);
  const BatchScore score = s.Step(All(data));
  EXPECT_TRUE(std::isnan(score.loss));
  EXPECT_EQ(score.correct, 0);
  EXPECT_TRUE(std::isnan(s.gradients[2][0]));
}

TEST(BatchBufferTest, GathersRows) {
  const Dataset data = Clusters(5, 2, 3, 1);
  BatchBuffer buffer;
  const uint32_t rows[] = {4, 0, 4};
  const Batch batch = buffer.Gather(data, rows);
  EXPECT_EQ(batch.rows, 3);
  EXPECT_THAT(batch.x, ElementsAre(data.x[8], data.x[9], data.x[0], data.x[1], data.x[8], data.x[9]));
  EXPECT_THAT(batch.y, ElementsAre(data.y[4], data.y[0], data.y[4]));
}

}  // namespace
}  // namespace sluice::worker
