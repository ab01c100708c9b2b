#include "worker/train/options.h"

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

}  // namespace
}  // namespace sluice::worker
