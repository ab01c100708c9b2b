// Bugs of tables, planted into the history of a good run, must be found and named.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/sim/planted.h"
#include "tests/sim/slow_math.h"
#include "tests/sim/trainer.h"

namespace sluice::sim {
namespace {

constexpr uint32_t kDim = 2;

// As Plain, and a table of two segments whose rows begin as zeros and go when a round did not push them.
Scenario WithTable() {
  Scenario s = Plain();
  s.steps = 12;
  proto::TensorSpec spec;
  spec.set_name("rows");
  spec.mutable_table()->set_dim(kDim);
  spec.mutable_table()->set_dtype("fp32");
  spec.mutable_table()->set_initializer("zero");
  spec.mutable_table()->mutable_optimizer()->set_kind("sgd");
  spec.mutable_table()->mutable_optimizer()->set_rate(0.1);
  spec.mutable_table()->set_max_age_rounds(1);
  spec.mutable_table()->set_segments(2);
  s.tables.push_back(spec);
  return s;
}

class CheckerRowsTest : public CheckerTest {
 protected:
  void SetUp() override {
    Run(WithTable());
    layout_ = LayoutOf(history_.plan);
  }
  bool OfTable(uint32_t partition) const { return layout_[partition].table; }
  static bool SomebodyPushes(uint64_t id, uint64_t round) {
    const Scenario scenario = WithTable();
    for (uint32_t rank = 0; rank < scenario.job.workers(); ++rank)
      if (std::ranges::count(RowIds(scenario, rank, round, 0), id) > 0) return true;
    return false;
  }
  // A push of rank 1 with two rows at least in one segment.
  size_t ThePush() {
    return Find<Contribution>([&](const Contribution& c) {
      return OfTable(c.partition) && c.rank == 1 && !c.payload.empty() && SlowParseRows(c.payload)->ids.size() > 1;
    });
  }
  std::string Where(const Contribution& c) const {
    return "partition " + std::to_string(c.partition) + " round " + std::to_string(c.round);
  }

  std::vector<PartitionLayout> layout_;
};

TEST_F(CheckerRowsTest, ARowUpdateAppliedTwice) {
  // A row that this round has created: from zeros, one step; it gets another.
  Round& round = At<Round>(
      Find<Round>([&](const Round& r) { return OfTable(r.partition) && r.round == 0 && r.value.size() > kDim; }));
  for (uint32_t d = 0; d < kDim; ++d) round.value[d] *= 2;
  Finds("round 0: the server's value differs from the reference: element 0");
}

TEST_F(CheckerRowsTest, APushOfRowsTakenTwice) {
  const Contribution taken = At<Contribution>(ThePush());
  Insert(ThePush(), taken);
  Finds(Where(taken) + " of rank 1: the push was taken twice");
}

TEST_F(CheckerRowsTest, APartOfAPushThatNeverCame) {
  // One segment has nothing of the rank; the other one has its part.
  const Contribution taken = At<Contribution>(ThePush());
  Erase(ThePush());
  Erase(Find<Encoded>([&](const Encoded& e) {
    return e.partition == taken.partition && e.round == taken.round && e.rank == taken.rank;
  }));
  Round& round =
      At<Round>(Find<Round>([&](const Round& r) { return r.partition == taken.partition && r.round == taken.round; }));
  std::erase(round.contributors, 1u);
  Finds(Where(taken) + " has nothing of rank 1");
}

TEST_F(CheckerRowsTest, ARowLostBeforeItWasSent) {
  // What was sent, taken and applied agrees; the trainer handed over a row more.
  PushedRows& pushed = At<PushedRows>(Find<PushedRows>([](const PushedRows& p) { return p.round == 3; }));
  pushed.ids.push_back(987654321);
  pushed.gradients.resize(pushed.ids.size() * kDim, 0.5f);
  Finds("row 987654321 was pushed, and is not in it");
}

TEST_F(CheckerRowsTest, ADuplicateLostBeforeItWasSent) {
  PushedRows& pushed = At<PushedRows>(Find<PushedRows>([](const PushedRows& p) { return !p.ids.empty(); }));
  pushed.ids.push_back(pushed.ids[0]);
  pushed.gradients.resize(pushed.ids.size() * kDim, 0.5f);
  Finds("row " + std::to_string(pushed.ids[0]) + " has another gradient than was pushed");
}

TEST_F(CheckerRowsTest, ARowThatNobodyPushed) {
  PushedRows& pushed = At<PushedRows>(Find<PushedRows>([](const PushedRows& p) { return p.ids.size() == 1; }));
  pushed.ids.clear();
  pushed.gradients.clear();
  Finds("has rows that were not pushed");
}

TEST_F(CheckerRowsTest, APullThatShowsARoundTooFew) {
  // Its ids are pushed by the same worker in the round that follows it.
  PulledRows& pulled = At<PulledRows>(
      Find<PulledRows>([](const PulledRows& p) { return p.round == 4 && p.rank == 0 && !p.ids.empty(); }));
  ++pulled.round;
  Finds("rank 0 pulled rows of table " + std::to_string(pulled.tensor) + " after 5 rounds: element");
}

TEST_F(CheckerRowsTest, APullThatShowsARoundTooMany) {
  PulledRows& pulled = At<PulledRows>(Find<PulledRows>([](const PulledRows& p) {
    return p.round > 1 && std::ranges::any_of(p.ids, [&](uint64_t id) { return SomebodyPushes(id, p.round - 1); });
  }));
  --pulled.round;
  Finds("pulled rows of table " + std::to_string(pulled.tensor) + " after " + std::to_string(pulled.round) +
        " rounds: element");
}

TEST_F(CheckerRowsTest, AnEvictedRowPulledWithItsOldValues) {
  std::map<uint64_t, std::vector<float>> old;  // rows as they were read when they were there
  for (Event& event : history_.events) {
    auto* const pulled = std::get_if<PulledRows>(&event);
    for (size_t i = 0; pulled != nullptr && i < pulled->ids.size(); ++i) {
      float* const row = &pulled->values[i * kDim];
      if (row[0] != 0 || row[1] != 0) {
        old[pulled->ids[i]] = {row, row + kDim};
      } else if (const auto before = old.find(pulled->ids[i]); before != old.end()) {
        std::ranges::copy(before->second, row);
        Finds("pulled rows of table " + std::to_string(pulled->tensor) + " after " + std::to_string(pulled->round) +
              " rounds: element " + std::to_string(i * kDim));
        return;
      }
    }
  }
  FAIL() << "no row was evicted";
}

TEST_F(CheckerRowsTest, AnEvictedRowThatAPushBroughtBackWithItsOldValues) {
  struct Last {
    uint64_t round;
    std::vector<float> value;
  };
  std::map<uint64_t, Last> last;                                          // by id
  std::map<std::pair<uint32_t, uint64_t>, std::vector<uint64_t>> ids_of;  // partition, round: in order of coming
  std::map<std::tuple<uint32_t, uint64_t, uint32_t>, std::vector<uint64_t>> parts;  // of a rank
  for (Event& event : history_.events) {
    if (const auto* c = std::get_if<Contribution>(&event); c != nullptr && OfTable(c->partition) && !c->payload.empty())
      parts[{c->partition, c->round, c->rank}] = SlowParseRows(c->payload)->ids;
    auto* const round = std::get_if<Round>(&event);
    if (round == nullptr || !OfTable(round->partition)) continue;
    std::vector<uint64_t>& ids = ids_of[{round->partition, round->round}];
    for (const uint32_t rank : round->contributors)
      for (const uint64_t id : parts[{round->partition, round->round, rank}])
        if (std::ranges::count(ids, id) == 0) ids.push_back(id);
    ASSERT_EQ(round->value.size(), ids.size() * kDim);
    for (size_t i = 0; i < ids.size(); ++i) {
      float* const row = &round->value[i * kDim];
      if (const auto before = last.find(ids[i]); before != last.end() && before->second.round + 1 < round->round) {
        for (uint32_t d = 0; d < kDim; ++d) row[d] += before->second.value[d];  // the step from there, not from zeros
        Finds("round " + std::to_string(round->round) + ": the server's value differs from the reference: element " +
              std::to_string(i * kDim));
        return;
      }
      last[ids[i]] = {round->round, {row, row + kDim}};
    }
  }
  FAIL() << "no row came back";
}

}  // namespace
}  // namespace sluice::sim
