#include "bench/training/models.h"

#include <cmath>
#include <fstream>

#include "gtest/gtest.h"

#include "base/philox.h"
#include "bench/training/text.h"

namespace sluice::bench {
namespace {

// A model with parameters and gradients of its own.
struct Subject {
  explicit Subject(std::unique_ptr<worker::Model> made) : model(std::move(made)) {
    for (const worker::ParameterSpec& p : model->parameters()) {
      values.emplace_back(p.size());
      gradients.emplace_back(p.size(), 1e30f);   // all of it is to be overwritten
    }
    for (size_t i = 0; i < values.size(); ++i) {
      value_spans.emplace_back(values[i]);
      const_spans.emplace_back(values[i]);
      gradient_spans.emplace_back(gradients[i]);
    }
    model->Initialize(1, value_spans);
  }
  std::unique_ptr<worker::Model> model;
  std::vector<std::vector<float>> values, gradients;
  std::vector<std::span<float>> value_spans, gradient_spans;
  std::vector<std::span<const float>> const_spans;
};

// Each gradient against the slope of the loss between two points beside the value; a few values of each parameter.
void ExpectGradientsAreSlopes(Subject* s, const worker::Dataset& data) {
  s->model->LossAndGradient({.rows = data.rows, .x = data.x, .y = data.y}, s->const_spans, s->gradient_spans, {});
  PhiloxRandom random(9);
  for (size_t p = 0; p < s->values.size(); ++p) {
    double most = 0;
    for (const float g : s->gradients[p]) most = std::max(most, std::abs(double{g}));
    EXPECT_GT(most, 0) << s->model->parameters()[p].name;
    for (int i = 0; i < 20; ++i) {
      float& v = s->values[p][random.Below(static_cast<uint32_t>(s->values[p].size()))];
      const auto at = static_cast<size_t>(&v - s->values[p].data());
      const float old = v, step = 1e-3f;
      v = old + step;
      const double above = s->model->Evaluate(data, s->const_spans)->loss;
      v = old - step;
      const double below = s->model->Evaluate(data, s->const_spans)->loss;
      v = old;
      EXPECT_NEAR((above - below) / (2 * step), s->gradients[p][at], 0.02 * most + 1e-4)
          << s->model->parameters()[p].name << " at " << at;
    }
  }
}

worker::Dataset Random(size_t rows, size_t features, size_t classes, bool whole) {
  worker::Dataset data{.rows = rows, .features = features, .classes = classes, .x = {}, .y = {}};
  PhiloxRandom random(3);
  for (size_t i = 0; i < rows * features; ++i) {
    data.x.push_back(whole ? static_cast<float>(random.Below(static_cast<uint32_t>(classes))) : random.Uniform());
  }
  for (size_t i = 0; i < rows; ++i) data.y.push_back(static_cast<int32_t>(random.Below(static_cast<uint32_t>(classes))));
  return data;
}

TEST(ConvNet, GradientsAreSlopes) {
  Subject subject(MakeConvNet(15, 4));
  ExpectGradientsAreSlopes(&subject, Random(7, 15 * 15, 4, /*whole=*/false));
}

TEST(CharModel, GradientsAreSlopes) {
  Subject subject(MakeCharModel(11, 5));
  ExpectGradientsAreSlopes(&subject, Random(9, 5, 11, /*whole=*/true));
}

TEST(CharModel, WhatIsNoCharacterReadsAsTheFirst) {
  Subject subject(MakeCharModel(3, 2));
  const worker::Dataset odd{.rows = 1, .features = 2, .classes = 3, .x = {-1, NAN}, .y = {1}};
  const worker::Dataset first{.rows = 1, .features = 2, .classes = 3, .x = {0, 0}, .y = {1}};
  EXPECT_EQ(subject.model->Evaluate(odd, subject.const_spans)->loss, subject.model->Evaluate(first, subject.const_spans)->loss);
}

TEST(Text, EachExampleIsItsCharactersAndTheNext) {
  const std::string path = testing::TempDir() + "/text";
  std::ofstream(path) << std::string("abcabdabc") + std::string(91, 'a');
  const auto data = ReadText(path, 3, 1000, 1000);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->alphabet, 4u);
  ASSERT_EQ(data->train.rows, 92u);   // 95 characters, less the first three
  EXPECT_EQ(std::vector<float>(data->train.x.begin() + 6, data->train.x.begin() + 9), (std::vector<float>{2, 0, 1}));
  EXPECT_EQ(data->train.y[2], 3);
  EXPECT_EQ(data->test.rows, 2u);
  EXPECT_EQ(ReadText(path, 3, 10, 1)->train.rows, 10u);
  EXPECT_TRUE(absl::IsNotFound(ReadText(path + ".none", 3, 1, 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadText(path, 5, 1, 1).status()));
}

}  // namespace
}  // namespace sluice::bench
