#include "worker/collective/schedule.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::collective {
namespace {

using Values = std::vector<float>;

bool SameBits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// All members of a group, step by step. Each of them runs a step whose dependencies are met and, if it takes something,
// whose message is there: the first such of a random member, or a random one.
class Play {
 public:
  Play(std::vector<Steps> steps, std::vector<Values> work, std::vector<Values> input = {})
      : steps_(std::move(steps)), work(std::move(work)), input_(std::move(input)) {
    for (const Steps& steps : steps_) {
      dependencies_.push_back(Dependencies(steps));
      done_.emplace_back(steps.size(), false);
      std::vector<uint32_t> index;
      std::map<std::pair<uint32_t, bool>, uint32_t> count;
      for (const Step& step : steps) index.push_back(count[{step.peer, step.kind == Step::Kind::kSend}]++);
      index_.push_back(std::move(index));
    }
  }

  // False: it stands still before its end.
  bool Run(PhiloxRandom* random) {
    for (;;) {
      std::vector<std::pair<uint32_t, uint32_t>> ready;
      size_t left = 0;
      for (uint32_t m = 0; m < steps_.size(); ++m)
        for (uint32_t i = 0; i < steps_[m].size(); ++i) {
          left += !done_[m][i];
          if (!done_[m][i] && Ready(m, i)) ready.push_back({m, i});
        }
      if (ready.empty()) return left == 0 && messages_.empty();
      const auto [m, i] = ready[random == nullptr ? 0 : random->Below(static_cast<uint32_t>(ready.size()))];
      Do(m, i);
    }
  }

  std::vector<Values> work;

 private:
  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;   // from, to, which

  bool Ready(uint32_t m, uint32_t i) const {
    for (const uint32_t before : dependencies_[m][i])
      if (!done_[m][before]) return false;
    const Step& step = steps_[m][i];
    return step.kind == Step::Kind::kSend || messages_.contains({step.peer, m, index_[m][i]});
  }
  void Do(uint32_t m, uint32_t i) {
    const Step& step = steps_[m][i];
    done_[m][i] = true;
    if (step.kind == Step::Kind::kSend) {
      const Values& from = step.from_input ? input_[m] : work[m];
      messages_[{m, step.peer, index_[m][i]}] = Values(from.begin() + static_cast<ptrdiff_t>(step.offset),
                                                       from.begin() + static_cast<ptrdiff_t>(step.offset + step.count));
      return;
    }
    const auto it = messages_.find({step.peer, m, index_[m][i]});
    ASSERT_EQ(it->second.size(), step.count);
    for (uint64_t e = 0; e < step.count; ++e) {
      float& value = work[m][step.offset + e];
      value = step.kind == Step::Kind::kCopy ? it->second[e] : value + it->second[e];
    }
    messages_.erase(it);
  }

  const std::vector<Steps> steps_;
  const std::vector<Values> input_;
  std::vector<std::vector<std::vector<uint32_t>>> dependencies_;
  std::vector<std::vector<uint32_t>> index_;
  std::vector<std::vector<bool>> done_;
  std::map<Key, Values> messages_;
};

// Whole numbers, so that any order of additions gives the exact sum, or values of all sizes.
std::vector<Values> Inputs(uint32_t n, uint64_t elements, bool whole, uint64_t seed) {
  PhiloxRandom random(seed, 0);
  std::vector<Values> inputs(n);
  for (Values& values : inputs)
    for (uint64_t e = 0; e < elements; ++e) {
      const float drawn = random.Uniform();
      values.push_back(whole ? static_cast<float>(static_cast<int>(drawn * 2000) - 1000)
                             : (drawn - 0.5f) * static_cast<float>(1u << random.Below(20)));
    }
  return inputs;
}

Values Sum(const std::vector<Values>& inputs) {
  Values sum = inputs[0];
  for (size_t m = 1; m < inputs.size(); ++m)
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += inputs[m][e];
  return sum;
}

// Domains of the members: even ones, uneven ones, and two levels.
std::vector<std::vector<std::vector<uint32_t>>> Places(uint32_t n) {
  std::vector<uint32_t> pairs(n), uneven(n), halves(n), scattered(n);
  for (uint32_t m = 0; m < n; ++m) {
    pairs[m] = m / 2;
    uneven[m] = m < 3 ? 7 : m;
    halves[m] = m < n / 2 ? 0 : 1;
    scattered[m] = m % 3;
  }
  return {{}, {pairs}, {uneven}, {pairs, halves}, {scattered, std::vector<uint32_t>(n, 1)}};
}

constexpr Algorithm kAllReduce[] = {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kDoubleTree,
                                    Algorithm::kHierarchical};
constexpr uint64_t kSizes[] = {1, 7, 33, 100};

void ForEachAllReduce(const std::function<void(uint32_t n, uint64_t elements, const std::vector<Steps>&)>& fn) {
  for (uint32_t n = 1; n <= 17; ++n)
    for (const uint64_t elements : kSizes)
      for (const Algorithm algorithm : kAllReduce)
        for (const auto& domains : Places(n)) {
          if (algorithm != Algorithm::kHierarchical && !domains.empty()) continue;
          SCOPED_TRACE(::testing::Message() << AlgorithmName(algorithm) << " n " << n << " elements " << elements
                                            << " levels " << domains.size());
          std::vector<Steps> steps;
          for (uint32_t m = 0; m < n; ++m)
            steps.push_back(AllReduceSteps(algorithm, {n, m, domains}, elements, elements > 50 ? 9 : 64));
          fn(n, elements, steps);
        }
}

TEST(Schedule, AllReduceIsTheSumWhateverComesFirst) {
  PhiloxRandom random(1, 1);
  ForEachAllReduce([&](uint32_t n, uint64_t elements, const std::vector<Steps>& steps) {
    const std::vector<Values> inputs = Inputs(n, elements, true, n * 1000 + elements);
    Play play(steps, inputs);
    ASSERT_TRUE(play.Run(&random));
    for (const Values& values : play.work) ASSERT_EQ(values, Sum(inputs));
  });
}

TEST(Schedule, AllReduceGivesAllMembersAndAllRunsTheSameBits) {
  PhiloxRandom random(2, 1);
  ForEachAllReduce([&](uint32_t n, uint64_t elements, const std::vector<Steps>& steps) {
    const std::vector<Values> inputs = Inputs(n, elements, false, n * 1000 + elements);
    Play first(steps, inputs), second(steps, inputs);
    ASSERT_TRUE(first.Run(nullptr));
    ASSERT_TRUE(second.Run(&random));
    for (uint32_t m = 0; m < n; ++m) {
      ASSERT_TRUE(SameBits(first.work[m], first.work[0]));
      ASSERT_TRUE(SameBits(second.work[m], first.work[0]));
    }
  });
}

TEST(Schedule, TheRingAddsInTheOrderThatItsPageNames) {
  const uint32_t n = 5;
  const uint64_t elements = 23;
  const std::vector<Values> inputs = Inputs(n, elements, false, 4);
  std::vector<Steps> steps;
  for (uint32_t m = 0; m < n; ++m) steps.push_back(AllReduceSteps(Algorithm::kRing, {n, m, {}}, elements, 3));
  Play play(steps, inputs);
  ASSERT_TRUE(play.Run(nullptr));
  for (uint32_t c = 0; c < n; ++c)
    for (uint64_t e = PartBegin(elements, n, c); e < PartBegin(elements, n, c + 1); ++e) {
      float sum = inputs[(c + 1) % n][e];
      for (uint32_t s = 2; s <= n; ++s) sum = inputs[(c + s) % n][e] + sum;
      EXPECT_EQ(play.work[0][e], sum);
    }
}

TEST(Schedule, ARingSendsNoMoreThanTheBoundAtTheEndpoints) {
  const uint32_t n = 7;
  for (uint32_t m = 0; m < n; ++m) {
    uint64_t sent = 0;
    for (const Step& step : AllReduceSteps(Algorithm::kRing, {n, m, {}}, 7000, 100))
      if (step.kind == Step::Kind::kSend) sent += step.count;
    EXPECT_EQ(sent, 2 * 6000u);
  }
}

TEST(Schedule, ReduceAndBroadcastHaveTheirRoot) {
  PhiloxRandom random(3, 1);
  for (uint32_t n = 1; n <= 17; ++n)
    for (const uint64_t elements : kSizes)
      for (const Algorithm algorithm : {Algorithm::kChain, Algorithm::kTree})
        for (const uint32_t root : {0u, n / 2, n - 1}) {
          const std::vector<Values> inputs = Inputs(n, elements, true, n + elements);
          std::vector<Steps> reduce, broadcast;
          for (uint32_t m = 0; m < n; ++m) {
            reduce.push_back(ReduceSteps(algorithm, {n, m, {}}, root, elements, 5));
            broadcast.push_back(BroadcastSteps(algorithm, {n, m, {}}, root, elements, 5));
          }
          Play sums(reduce, inputs), copies(broadcast, inputs);
          ASSERT_TRUE(sums.Run(&random));
          ASSERT_EQ(sums.work[root], Sum(inputs));
          ASSERT_TRUE(copies.Run(&random));
          for (const Values& values : copies.work) ASSERT_EQ(values, inputs[root]);
        }
}

TEST(Schedule, BlocksGoWhereTheyBelong) {
  PhiloxRandom random(4, 1);
  for (uint32_t n = 1; n <= 17; ++n)
    for (const uint64_t count : {1, 3, 10}) {
      const std::vector<Values> inputs = Inputs(n, count * n, true, n + count);
      std::vector<Steps> gather, scatter, all_to_all;
      for (uint32_t m = 0; m < n; ++m) {
        gather.push_back(AllGatherSteps({n, m, {}}, count, 4));
        scatter.push_back(ReduceScatterSteps({n, m, {}}, count, 4));
        all_to_all.push_back(AllToAllSteps({n, m, {}}, count, 4));
      }
      const auto block = [&](const Values& values, uint32_t b) {
        return Values(values.begin() + static_cast<ptrdiff_t>(b * count), values.begin() + static_cast<ptrdiff_t>((b + 1) * count));
      };
      Play gathered(gather, inputs), scattered(scatter, inputs), changed(all_to_all, inputs, inputs);
      ASSERT_TRUE(gathered.Run(&random));
      ASSERT_TRUE(scattered.Run(&random));
      ASSERT_TRUE(changed.Run(&random));
      for (uint32_t m = 0; m < n; ++m) {
        EXPECT_EQ(block(scattered.work[m], m), block(Sum(inputs), m));
        for (uint32_t b = 0; b < n; ++b) {
          EXPECT_EQ(block(gathered.work[m], b), block(inputs[b], b));
          EXPECT_EQ(block(changed.work[m], b), block(inputs[b], m));
        }
      }
    }
}

TEST(Schedule, DependenciesAreThoseOfASlowReference) {
  PhiloxRandom random(5, 1);
  for (int run = 0; run < 300; ++run) {
    Steps steps;
    for (uint32_t i = 0; i < 20; ++i) {
      const uint64_t offset = random.Below(30);
      steps.push_back({static_cast<Step::Kind>(random.Below(3)), false, 0, offset, 1 + random.Below(10)});
    }
    const auto dependencies = Dependencies(steps);
    // What must come before, directly or through others.
    std::vector<std::set<uint32_t>> all(steps.size());
    for (uint32_t i = 0; i < steps.size(); ++i)
      for (const uint32_t before : dependencies[i]) {
        ASSERT_LT(before, i);
        all[i].insert(before);
        all[i].insert(all[before].begin(), all[before].end());
      }
    for (uint32_t i = 0; i < steps.size(); ++i)
      for (uint32_t j = 0; j < i; ++j) {
        const bool overlap = steps[i].offset < steps[j].offset + steps[j].count && steps[j].offset < steps[i].offset + steps[i].count;
        const bool conflict = overlap && (steps[i].kind != Step::Kind::kSend || steps[j].kind != Step::Kind::kSend);
        if (conflict) EXPECT_TRUE(all[i].contains(j));
        const bool direct = std::find(dependencies[i].begin(), dependencies[i].end(), j) != dependencies[i].end();
        if (direct) EXPECT_TRUE(conflict);
      }
  }
}

TEST(Schedule, NamesOfAlgorithms) {
  for (const Algorithm algorithm : kAllReduce) EXPECT_EQ(*ParseAlgorithm(AlgorithmName(algorithm)), algorithm);
  EXPECT_EQ(*ParseAlgorithm(""), Algorithm::kAuto);
  EXPECT_THAT(ParseAlgorithm("rong").status().ToString(), ::testing::HasSubstr("double_tree"));
}

}  // namespace
}  // namespace sluice::collective
