#include "scheduler/fabric/flows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/philox.h"

namespace sluice::fabric {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

TEST(FlowsTest, TheLongFlowYieldsWhereItIsNarrow) {
  Flows flows;   // the book's example: one flow over both links, one over each
  flows.Add();
  flows.Use(0);
  flows.Use(1);
  flows.Add();
  flows.Use(0);
  flows.Add();
  flows.Use(1);
  EXPECT_EQ(MaxMinRates({10, 4}, flows), (std::vector<double>{2, 8, 2}));
}

TEST(FlowsTest, CapsCountsSharesAndWhatCannotFlow) {
  Flows flows;
  flows.Add(3);        // a bundle
  flows.Use(0);
  flows.Add(1, 1);     // capped
  flows.Use(0);
  flows.Add();         // spread
  flows.Use(1, 0.25);
  flows.Use(2, 0.75);
  flows.Add();
  flows.Use(3);        // down
  flows.Use(0);
  flows.Add(1, 7);     // nowhere to go
  flows.Add();
  const std::vector<double> rates = MaxMinRates({10, 100, 6, 0}, flows);
  EXPECT_DOUBLE_EQ(rates[0], 3);
  EXPECT_DOUBLE_EQ(rates[1], 1);
  EXPECT_DOUBLE_EQ(rates[2], 8);
  EXPECT_DOUBLE_EQ(rates[3], 0);
  EXPECT_DOUBLE_EQ(rates[4], 7);
  EXPECT_DOUBLE_EQ(rates[5], kInfinite);
  EXPECT_TRUE(MaxMinRates({1}, Flows()).empty());
}

// Progressive filling taken literally: all that grow, grow by the same amount, as far as the first arc or cap allows.
std::vector<double> Slow(const std::vector<double>& capacity, const Flows& flows) {
  std::vector<double> rates(flows.size(), 0);
  std::vector<bool> grows(flows.size(), true);
  while (std::find(grows.begin(), grows.end(), true) != grows.end()) {
    std::vector<double> left = capacity, weight(capacity.size(), 0);
    double step = kInfinite;
    for (uint32_t f = 0; f < flows.size(); ++f) {
      for (size_t i = 0; i < flows.Arcs(f).size(); ++i) {
        left[flows.Arcs(f)[i]] -= rates[f] * flows.count(f) * flows.Share(f, i);
        if (grows[f]) weight[flows.Arcs(f)[i]] += flows.count(f) * flows.Share(f, i);
      }
      if (grows[f]) step = std::min(step, flows.cap(f) - rates[f]);
    }
    for (size_t a = 0; a < capacity.size(); ++a)
      if (weight[a] > 0) step = std::min(step, std::max(0.0, left[a]) / weight[a]);
    for (uint32_t f = 0; f < flows.size(); ++f) {
      if (!grows[f]) continue;
      rates[f] += step;
      if (rates[f] >= flows.cap(f) * (1 - 1e-12)) grows[f] = false;
      for (const uint32_t a : flows.Arcs(f))
        if (left[a] - step * weight[a] <= 1e-9 * capacity[a]) grows[f] = false;
    }
  }
  return rates;
}

struct Case {
  std::vector<double> capacity;
  Flows flows;
};

Case Random(PhiloxRandom& random, uint32_t arcs, uint32_t flows) {
  Case made;
  for (uint32_t a = 0; a < arcs; ++a) made.capacity.push_back(random.Chance(0.05) ? 0 : 1 + 100 * random.Uniform());
  const bool spread = random.Chance(0.5);
  for (uint32_t f = 0; f < flows; ++f) {
    made.flows.Add(1 + random.Below(3), random.Chance(0.2) ? 20 * random.Uniform() : kInfinite);
    std::vector<uint32_t> used;
    for (uint32_t i = 0; i < 1 + random.Below(5); ++i) {
      const uint32_t arc = random.Below(arcs);
      if (std::find(used.begin(), used.end(), arc) != used.end()) continue;
      used.push_back(arc);
      made.flows.Use(arc, spread && random.Chance(0.5) ? 0.1 + random.Uniform() : 1);
    }
  }
  return made;
}

TEST(FlowsTest, AsSlowFilling) {
  PhiloxRandom random(3);
  for (int round = 0; round < 300; ++round) {
    const Case c = Random(random, 1 + random.Below(12), 1 + random.Below(25));
    const std::vector<double> fast = MaxMinRates(c.capacity, c.flows), slow = Slow(c.capacity, c.flows);
    for (uint32_t f = 0; f < fast.size(); ++f) ASSERT_NEAR(fast[f], slow[f], 1e-6 * (1 + slow[f])) << "round " << round << " flow " << f;
  }
}

// No arc carries more than it can, and every flow has its cap, or a full arc in which none has more than it.
TEST(FlowsTest, RatesAreMaxMinFair) {
  PhiloxRandom random(4);
  for (int round = 0; round < 20; ++round) {
    const Case c = Random(random, 300, 3000);
    const std::vector<double> rates = MaxMinRates(c.capacity, c.flows);
    std::vector<double> load(c.capacity.size(), 0), most(c.capacity.size(), 0);
    for (uint32_t f = 0; f < rates.size(); ++f)
      for (size_t i = 0; i < c.flows.Arcs(f).size(); ++i) {
        const uint32_t a = c.flows.Arcs(f)[i];
        load[a] += rates[f] * c.flows.count(f) * c.flows.Share(f, i);
        most[a] = std::max(most[a], rates[f]);
      }
    for (size_t a = 0; a < load.size(); ++a) EXPECT_LE(load[a], c.capacity[a] * (1 + 1e-6) + 1e-9);
    for (uint32_t f = 0; f < rates.size(); ++f) {
      bool bound = rates[f] >= c.flows.cap(f) * (1 - 1e-9);
      for (const uint32_t a : c.flows.Arcs(f))
        bound = bound || (load[a] >= c.capacity[a] * (1 - 1e-6) && rates[f] >= most[a] * (1 - 1e-6));
      EXPECT_TRUE(bound) << "flow " << f;
    }
  }
}

}  // namespace
}  // namespace sluice::fabric
