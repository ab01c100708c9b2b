#include "worker/train/options.h"

#include <functional>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

TEST(TrainOptions, StepsAloneAreNotCutByEpochs) {
  TrainOptions options;
  EXPECT_EQ(TotalSteps(options, 937), 937u);
  options.steps = 1200;
  EXPECT_EQ(TotalSteps(options, 937), 1200u);
  options.epochs = 1;
  EXPECT_EQ(TotalSteps(options, 937), 937u);
  options.epochs = 2;
  EXPECT_EQ(TotalSteps(options, 937), 1200u);
  options.steps = 0;
  EXPECT_EQ(TotalSteps(options, 937), 1874u);
}

TrainOptions Sparse() {
  TrainOptions options;
  options.model = "fm";
  options.data = "clicks.tsv";
  return options;
}

TEST(TrainOptions, SparseModelsHaveDefaultsAndFormatsOfTheirOwn) {
  TrainOptions options = Sparse();
  options.format = "clicks";
  EXPECT_TRUE(FinishTrainOptions(&options).ok());
  EXPECT_EQ(options.batch, 1024);
  options.format = "csv";
  EXPECT_THAT(FinishTrainOptions(&options).message(), testing::HasSubstr("--format=csv"));
  TrainOptions dense;
  dense.data = "x.csv";
  EXPECT_TRUE(FinishTrainOptions(&dense).ok());
  EXPECT_EQ(dense.batch, 32);
  dense.format = "clicks";
  EXPECT_FALSE(FinishTrainOptions(&dense).ok());
}

TEST(TrainOptions, RefusalsNameTheFlag) {
  const std::pair<const char*, std::function<void(SparseTrainOptions*)>> cases[] = {
      {"--factors=0", [](auto* o) { o->factors = 0; }},
      {"--prefetch=2", [](auto* o) { o->prefetch = 2; }},
      {"--row_init=ones", [](auto* o) { o->row_init = "ones"; }},
      {"--row_admit_after=0", [](auto* o) { o->row_admit_after = 0; }},
      {"--row_codec=topk:0.1", [](auto* o) { o->row_codec = "topk:0.1"; }},
      {"--row_codec=int9", [](auto* o) { o->row_codec = "int9"; }},
      {"--row_residual_rows=-1", [](auto* o) { o->row_residual_rows = -1; }},
      {"--max_rows=-1", [](auto* o) { o->max_rows = -1; }},
      {"--max_malformed=-1", [](auto* o) { o->max_malformed = -1; }},
      {"--numeric=log", [](auto* o) { o->numeric = "log"; }},
      {"--loss=hinge", [](auto* o) { o->loss = "hinge"; }},
  };
  for (const auto& [text, change] : cases) {
    TrainOptions options = Sparse();
    change(&options.sparse);
    EXPECT_THAT(FinishTrainOptions(&options).message(), testing::HasSubstr(text));
  }
}

TEST(TrainOptions, SparseJobsGoWithoutWhatDecidesOnWholeSteps) {
  proto::JobConfig job;
  EXPECT_TRUE(CheckSparseJob(job).ok());
  job.mutable_optimizer()->set_clip_norm(1);
  EXPECT_THAT(CheckSparseJob(job).message(), testing::HasSubstr("job.optimizer.clip_norm"));
  job.Clear();
  job.set_on_nonfinite(proto::NONFINITE_SKIP);
  EXPECT_THAT(CheckSparseJob(job).message(), testing::HasSubstr("job.on_nonfinite"));
}

TEST(TrainOptions, FactorsDoNotBeginAtZero) {
  const SparseTrainOptions options;
  EXPECT_EQ(WeightsTable(options, "lr", 1, 5).initializer, "zero");
  const TableSpec table = WeightsTable(options, "fm", 9, 5);
  EXPECT_EQ(table.initializer, "normal");
  EXPECT_EQ(table.dim, 9u);
  EXPECT_EQ(table.seed, 5u);
}

}  // namespace
}  // namespace sluice::worker
