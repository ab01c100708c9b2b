// Models, data and metrics together: what is trained on a click log comes near to the planted optimum.
#include "worker/model/local_trainer.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/click_log.h"

namespace sluice::worker {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  double optimum = 0, auc = 0, log_loss_gap = 0;
};

// 60,000 lines: fewer than the default log has, so categories must be more common to be learned.
Outcome Fit(ClickLogSpec spec, const LocalTrainerOptions& options, uint32_t epochs) {
  spec.lines = 60000;
  spec.test_lines = 20000;
  spec.common = 0.02;
  const auto log = ClickLog::Create(spec);
  auto trainer = LocalTrainer::Create(options);
  EXPECT_TRUE(log.ok() && trainer.ok());
  const SparseDataset train = log->Read(0, spec.lines), test = log->Read(spec.lines, spec.lines + spec.test_lines);
  for (uint32_t epoch = 0; epoch < epochs; ++epoch) trainer->Epoch(train, epoch);
  const auto best = log->Optimum();
  const auto reached = trainer->Evaluate(test);
  EXPECT_TRUE(best.ok() && reached.ok());
  return {.optimum = best->auc, .auc = reached->auc, .log_loss_gap = reached->log_loss - best->log_loss};
}

TEST(LocalTrainerTest, LogisticRegressionComesNearToThePlantedOptimum) {
  for (const char* optimizer : {"rowwise_adagrad", "adagrad"}) {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      const Outcome outcome = Fit({.seed = seed, .largest_vocabulary = 1000},
                                  {.optimizer = optimizer, .batch = 512}, 2);
      EXPECT_GT(outcome.optimum, 0.77);
      EXPECT_NEAR(outcome.auc, outcome.optimum, 0.01) << optimizer << " " << seed;
      EXPECT_LT(outcome.log_loss_gap, 0.01);
    }
  }
}

TEST(LocalTrainerTest, FactorizationMachineFindsPairsThatLogisticRegressionCannot) {
  const ClickLogSpec spec{.columns = 4, .largest_vocabulary = 100, .factors = 2, .factor_deviation = 0.6};
  const Outcome linear = Fit(spec, {.batch = 512}, 4);
  const Outcome pairs = Fit(spec, {.model = {.kind = "fm", .factors = 4}, .init_deviation = 0.05, .batch = 512}, 4);
  EXPECT_LT(linear.auc, linear.optimum - 0.03);
  EXPECT_NEAR(pairs.auc, pairs.optimum, 0.015);
}

TEST(LocalTrainerTest, SameOptionsGiveSameRows) {
  const auto log = ClickLog::Create({.lines = 3000, .largest_vocabulary = 100});
  const SparseDataset data = log->Read(0, 3000);
  std::vector<double> losses[2];
  for (auto& out : losses) {
    auto trainer = LocalTrainer::Create({.model = {.kind = "fm"}, .init_deviation = 0.01, .batch = 100});
    for (uint32_t epoch = 0; epoch < 3; ++epoch) out.push_back(trainer->Epoch(data, epoch));
    out.push_back(trainer->bias());
    out.push_back(trainer->Evaluate(data)->auc);
  }
  EXPECT_EQ(losses[0], losses[1]);
}

// One step by hand: x = {1, 2} with labels 1 and 0 from zero, so errors are -1/2 and 1/2 over two examples.
TEST(LocalTrainerTest, StepsAreThoseOfTheFormulas) {
  SparseDataset data;
  data.row_begin = {0, 1, 2};
  data.ids = {10, 20};
  data.values = {1, 2};
  data.labels = {1, 0};
  const uint32_t rows[] = {0, 1};
  const auto outputs = [&](LocalTrainer& trainer) {  // by the bias, which stays 0
    EXPECT_EQ(trainer.bias(), 0);
    EXPECT_EQ(trainer.rows(), 2);
    return *trainer.Evaluate(data);
  };
  auto sgd = *LocalTrainer::Create({.optimizer = "sgd", .rate = 4});
  EXPECT_NEAR(sgd.Step(data, rows), std::log(2.0), 1e-7);
  // w10 = 4 * 1/4, w20 = -4 * 2/4; outputs 1 and -4.
  EXPECT_NEAR(outputs(sgd).log_loss, (std::log1p(std::exp(-1.0)) + std::log1p(std::exp(-4.0))) / 2, 1e-6);
  auto adagrad = *LocalTrainer::Create({.rate = 1, .epsilon = 0, .initial_accumulator = 0});
  adagrad.Step(data, rows);
  // w10 = 1, w20 = -1; outputs 1 and -2.
  EXPECT_NEAR(outputs(adagrad).log_loss, (std::log1p(std::exp(-1.0)) + std::log1p(std::exp(-2.0))) / 2, 1e-6);
  EXPECT_EQ(outputs(adagrad).auc, 1);
}

TEST(LocalTrainerTest, ImpossibleOptionsAreErrors) {
  EXPECT_THAT(std::string(LocalTrainer::Create({.optimizer = "lamb"}).status().message()), HasSubstr("lamb"));
  EXPECT_FALSE(LocalTrainer::Create({.batch = 0}).ok());
  EXPECT_FALSE(LocalTrainer::Create({.model = {.kind = "x"}}).ok());
  SparseDataset one;
  one.row_begin = {0, 0};
  one.labels = {1};
  EXPECT_FALSE(LocalTrainer::Create({})->Evaluate(one).ok());
}

}  // namespace
}  // namespace sluice::worker
