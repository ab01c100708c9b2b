#include "scheduler/fabric/simulation.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice::fabric {
namespace {

using Use = Simulation::Use;

TEST(SimulationTest, TransfersShareAnArcAndTheRestSpeedsUp) {
  Simulation sim({10});
  const Use way[] = {{0, 1}};
  const uint32_t small = sim.Transfer(10, way, 0, {}), large = sim.Transfer(30, way, 0.5, {});
  const auto result = sim.Run();
  EXPECT_DOUBLE_EQ(result.finish[small], 2);         // at 5 each
  EXPECT_DOUBLE_EQ(result.finish[large], 4.5);       // 20 more at 10, and the latency
  EXPECT_DOUBLE_EQ(result.end, 4.5);
  EXPECT_DOUBLE_EQ(result.arc_bytes[0], 40);
}

TEST(SimulationTest, DependenciesOnArrivalAndOnLeaving) {
  Simulation sim({10, 20});
  const Use way[] = {{0, 1}}, spread[] = {{0, 0.5}, {1, 0.5}};
  const uint32_t compute = sim.Compute(3, {});
  const uint32_t first = sim.Transfer(10, way, 2, {{compute, Simulation::Sent(compute)}});
  const uint32_t behind = sim.Transfer(20, spread, 0, {{Simulation::Sent(first)}});
  const uint32_t answer = sim.Transfer(0, {}, 1, {{first, behind}});
  const uint32_t last = sim.Compute(1, {{Simulation::Sent(answer)}});
  const auto result = sim.Run();
  EXPECT_DOUBLE_EQ(result.finish[first], 6);
  EXPECT_DOUBLE_EQ(result.finish[behind], 5);    // 4 + 20/20: arc 0 gives 10 for a half
  EXPECT_DOUBLE_EQ(result.finish[answer], 7);
  EXPECT_DOUBLE_EQ(result.finish[last], 7);
  EXPECT_DOUBLE_EQ(result.arc_bytes[1], 10);
}

TEST(SimulationTest, WhatHasNoWayNeverEndsAndNeitherDoesWhatWaitsForIt) {
  Simulation sim({0, 10});
  const Use down[] = {{0, 1}, {1, 1}}, up[] = {{1, 1}};
  const uint32_t stuck = sim.Transfer(1, down, 0, {}), fine = sim.Transfer(10, up, 0, {});
  const uint32_t waits = sim.Compute(1, {{stuck}});
  const auto result = sim.Run();
  EXPECT_TRUE(std::isinf(result.finish[stuck]));
  EXPECT_TRUE(std::isinf(result.finish[waits]));
  EXPECT_DOUBLE_EQ(result.finish[fine], 1);
  EXPECT_EQ(Simulation({}).Run().end, 0);
}

}  // namespace
}  // namespace sluice::fabric
