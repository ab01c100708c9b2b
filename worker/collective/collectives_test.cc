#include "worker/collective/collectives.h"

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/collective/testing/nodes.h"

namespace sluice::collective {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<float>;
using Outcomes = std::vector<std::shared_ptr<Node::Outcome>>;

Values Draw(size_t elements, uint64_t seed, bool whole = true) {
  PhiloxRandom random(seed, 3);
  Values values;
  for (size_t i = 0; i < elements; ++i) {
    const float drawn = random.Uniform() - 0.5f;
    values.push_back(whole ? static_cast<float>(static_cast<int>(drawn * 2000)) : drawn * static_cast<float>(1u << random.Below(20)));
  }
  return values;
}

transport::SimFaults Rough() {
  transport::SimFaults faults;
  faults.drop = 0.02;
  faults.duplicate = 0.02;
  faults.reorder = 0.1;
  faults.reset = 0.001;
  faults.connect_failure = 0.1;
  faults.slow_write = 0.05;
  return faults;
}

// What all members of a group call, and what must come of it.
struct Case {
  Kind kind;
  size_t elements;   // of a member's own part
  Algorithm algorithm = Algorithm::kAuto;
  uint32_t root = 0;
  bool in_place = false;
};

class Job {
 public:
  Job(const Case& c, uint32_t n, uint64_t seed) : case_(c), n_(n) {
    const size_t e = c.elements;
    const bool many_in = c.kind == Kind::kReduceScatter || c.kind == Kind::kAllToAll;
    const bool many_out = c.kind == Kind::kAllGather || c.kind == Kind::kAllToAll;
    for (uint32_t m = 0; m < n; ++m) {
      inputs.push_back(c.kind == Kind::kBarrier ? Values() : Draw(many_in ? e * n : e, seed * 100 + m));
      outputs.emplace_back(c.kind == Kind::kBarrier ? 0 : many_out ? e * n : e, -1.0f);
      if (c.kind == Kind::kBroadcast && m == c.root) outputs[m] = inputs[m];
    }
    before = inputs;
  }
  Request Of(uint32_t m) {
    Request request;
    request.kind = case_.kind;
    request.input = inputs[m];
    request.output = case_.in_place ? std::span<float>(inputs[m]) : std::span<float>(outputs[m]);
    if (case_.kind == Kind::kBroadcast) request.input = {};
    request.root = case_.root;
    request.algorithm = case_.algorithm;
    return request;
  }
  void Check() {
    const size_t e = case_.elements;
    Values sum = before[0];
    for (uint32_t m = 1; m < n_; ++m)
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += before[m][i];
    for (uint32_t m = 0; m < n_; ++m) {
      const Values& out = case_.in_place ? inputs[m] : outputs[m];
      const auto part = [&](const Values& values, size_t b) { return Values(values.begin() + b * e, values.begin() + (b + 1) * e); };
      switch (case_.kind) {
        case Kind::kAllReduce: EXPECT_EQ(out, sum); break;
        case Kind::kReduce:
          if (m == case_.root) {
            EXPECT_EQ(out, sum);
          }
          break;
        case Kind::kBroadcast: EXPECT_EQ(out, before[case_.root]); break;
        case Kind::kAllGather:
          for (uint32_t b = 0; b < n_; ++b) EXPECT_EQ(part(out, b), before[b]);
          break;
        case Kind::kReduceScatter: EXPECT_EQ(out, part(sum, m)); break;
        case Kind::kAllToAll:
          for (uint32_t b = 0; b < n_; ++b) EXPECT_EQ(part(out, b), part(before[b], m));
          break;
        default: break;
      }
      if (!case_.in_place) {
        EXPECT_EQ(inputs[m], before[m]);
      }
    }
  }
  std::vector<Values> inputs, outputs, before;

 private:
  const Case case_;
  const uint32_t n_;
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {Kind::kAllReduce, 3000, Algorithm::kRing},
      {Kind::kAllReduce, 40000, Algorithm::kRing, 0, true},
      {Kind::kAllReduce, 3000, Algorithm::kHalvingDoubling},
      {Kind::kAllReduce, 20001, Algorithm::kDoubleTree},
      {Kind::kAllReduce, 5, Algorithm::kAuto},
      {Kind::kReduce, 9000, Algorithm::kTree, 1},
      {Kind::kReduce, 9000, Algorithm::kChain, 0},
      {Kind::kBroadcast, 9000, Algorithm::kAuto, 2},
      {Kind::kAllGather, 6001},
      {Kind::kReduceScatter, 6001},
      {Kind::kAllToAll, 6001},
      {Kind::kBarrier, 0},
  };
  return cases;
}

TEST(Collectives, EachOfThemGivesWhatItsReferenceGives) {
  for (const uint32_t n : {1u, 2u, 3u, 5u, 8u}) {
    Nodes nodes(n);
    for (Case c : Cases()) {
      SCOPED_TRACE(::testing::Message() << KindName(c.kind) << " n " << n);
      c.root = std::min(c.root, n - 1);
      Job run(c, n, n);
      Outcomes outcomes;
      for (uint32_t m = 0; m < n; ++m) outcomes.push_back(nodes.nodes[m]->Call(run.Of(m)));
      ASSERT_TRUE(nodes.Await(outcomes));
      for (const auto& outcome : outcomes) ASSERT_TRUE(outcome->status.ok()) << outcome->status;
      run.Check();
    }
    EXPECT_EQ(nodes.network.stats().changed_while_lent, 0u);
    for (auto& node : nodes.nodes) {
      EXPECT_EQ(node->endpoint->open_slots(), 0u);
      EXPECT_EQ(node->core->pool().used(), 0u);
    }
  }
}

// Links that lose, repeat, reorder and break, and members that come to a call at different times.
TEST(Collectives, ARoughNetworkChangesNothing) {
  uint64_t resent = 0, reconnects = 0;
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    SCOPED_TRACE(seed);
    const uint32_t n = 2 + static_cast<uint32_t>(seed % 4);
    transport::SimFaults faults = Rough();
    faults.by_reference = seed % 5 == 0;
    Nodes nodes(n, seed, faults);
    PhiloxRandom random(seed, 9);
    std::vector<std::unique_ptr<Job>> runs;
    Outcomes outcomes;
    for (size_t i = 0; i < Cases().size(); ++i) {
      Case c = Cases()[i];
      c.root = std::min(c.root, n - 1);
      runs.push_back(std::make_unique<Job>(c, n, seed + i));
    }
    for (uint32_t m = 0; m < n; ++m) {
      TimeNs at = 0;
      for (auto& run : runs) {
        at += random.Below(100) * kMillisecond;
        outcomes.push_back(nullptr);
        nodes.network.Schedule(at, [&, m, run = run.get(), slot = outcomes.size() - 1] { outcomes[slot] = nodes.nodes[m]->Call(run->Of(m)); });
      }
    }
    nodes.network.RunFor(2 * kSecond);
    ASSERT_TRUE(nodes.Await(outcomes, 300 * kSecond)) << nodes.nodes[0]->core->Waiting();
    for (const auto& outcome : outcomes) {
      ASSERT_NE(outcome, nullptr);
      ASSERT_TRUE(outcome->status.ok()) << outcome->status;
    }
    for (auto& run : runs) run->Check();
    EXPECT_EQ(nodes.network.stats().changed_while_lent, 0u);
    for (auto& node : nodes.nodes) {
      resent += node->core->stats().resent;
      reconnects += node->core->stats().reconnects;
      EXPECT_EQ(node->core->pool().used(), 0u);
      EXPECT_EQ(node->core->unfinished(), 0u);
    }
  }
  EXPECT_GT(resent, 100u);
  EXPECT_GT(reconnects, 10u);
}

TEST(Collectives, TheSameBitsAtAllMembersAndInEachRun) {
  const uint32_t n = 5;
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kDoubleTree, Algorithm::kHierarchical}) {
    std::vector<Values> first;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      Nodes nodes(n, seed, Rough());
      std::vector<Values> inputs, outputs(n, Values(10000));
      Outcomes outcomes;
      for (uint32_t m = 0; m < n; ++m) inputs.push_back(Draw(10000, m, false));
      for (uint32_t m = 0; m < n; ++m)
        outcomes.push_back(nodes.nodes[m]->Call({.input = inputs[m], .output = outputs[m], .algorithm = algorithm}));
      ASSERT_TRUE(nodes.Await(outcomes, 300 * kSecond));
      if (first.empty()) first = outputs;
      for (uint32_t m = 0; m < n; ++m) EXPECT_EQ(std::memcmp(outputs[m].data(), first[0].data(), 10000 * sizeof(float)), 0);
    }
  }
}

TEST(Collectives, GroupsRunBesideEachOther) {
  Nodes nodes(6, 3, Rough(), "tensor:2,data:3");
  std::vector<Values> along_tensor(6, Values(5000)), along_data(6, Values(7000)), in_tensor, in_data;
  Outcomes outcomes;
  for (uint32_t r = 0; r < 6; ++r) {
    in_tensor.push_back(Values(5000, static_cast<float>(1 << r)));
    in_data.push_back(Values(7000, static_cast<float>(1 << r)));
  }
  for (uint32_t r = 0; r < 6; ++r) {
    const auto tensor = [&] { outcomes.push_back(nodes.nodes[r]->Call({.group = "tensor", .input = in_tensor[r], .output = along_tensor[r]})); };
    const auto data = [&] {
      outcomes.push_back(nodes.nodes[r]->Call({.group = "data", .input = in_data[r], .output = along_data[r], .reduction = Reduction::kMean}));
    };
    if (r % 3 == 0) tensor(), data();   // the order between groups is nobody's business
    else data(), tensor();
  }
  ASSERT_TRUE(nodes.Await(outcomes, 300 * kSecond));
  for (uint32_t r = 0; r < 6; ++r) {
    EXPECT_EQ(along_tensor[r], Values(5000, static_cast<float>((1 << (r / 2 * 2)) + (1 << (r / 2 * 2 + 1)))));
    const float sum = r % 2 == 0 ? 1 + 4 + 16 : 2 + 8 + 32;
    EXPECT_EQ(along_data[r], Values(7000, sum / 3));
  }
}

TEST(Collectives, MessagesByTagComeInOrderAndFindTheirTag) {
  Nodes nodes(2, 4, Rough());
  std::vector<Values> out, in(20);
  Outcomes outcomes;
  for (uint32_t i = 0; i < 20; ++i) out.push_back(Draw(i % 3 == 0 ? 20000 : 50, i));
  for (uint32_t i = 0; i < 20; ++i) outcomes.push_back(nodes.nodes[0]->Call({.kind = Kind::kSend, .input = out[i], .peer = 1, .tag = i % 4}));
  for (const uint32_t tag : {3u, 0u, 2u, 1u})
    for (uint32_t i = tag; i < 20; i += 4) {
      in[i].resize(out[i].size());
      outcomes.push_back(nodes.nodes[1]->Call({.kind = Kind::kReceive, .output = in[i], .peer = 0, .tag = tag}));
    }
  Values there(10, 1.0f), back(10);   // the same tag the other way counts apart
  outcomes.push_back(nodes.nodes[1]->Call({.kind = Kind::kSend, .input = there, .peer = 0, .tag = 0}));
  outcomes.push_back(nodes.nodes[0]->Call({.kind = Kind::kReceive, .output = back, .peer = 1, .tag = 0}));
  ASSERT_TRUE(nodes.Await(outcomes, 300 * kSecond));
  EXPECT_EQ(in, out);
  EXPECT_EQ(back, there);
}

TEST(Collectives, TensorsCountApartSoTheirOrderIsFree) {
  Nodes nodes(2);
  Values a = Draw(10, 1), b = Draw(10, 2), sum_a[2], sum_b[2];
  Outcomes outcomes;
  for (uint32_t r = 0; r < 2; ++r) {
    sum_a[r].resize(10);
    sum_b[r].resize(10);
    const auto call = [&](uint32_t tensor, Values& in, Values& out) { outcomes.push_back(nodes.nodes[r]->Call({.input = in, .output = out, .tensor = tensor})); };
    if (r == 0) call(1, a, sum_a[r]), call(2, b, sum_b[r]);
    else call(2, b, sum_b[r]), call(1, a, sum_a[r]);
  }
  ASSERT_TRUE(nodes.Await(outcomes));
  for (uint32_t r = 0; r < 2; ++r)
    for (size_t i = 0; i < 10; ++i) {
      EXPECT_EQ(sum_a[r][i], 2 * a[i]);
      EXPECT_EQ(sum_b[r][i], 2 * b[i]);
    }
}

TEST(Collectives, AnotherCallAtAPeerFailsBothInWords) {
  Nodes nodes(3);
  std::vector<Values> in(3, Values(10, 1.0f)), out(3, Values(10));
  Outcomes outcomes;
  for (uint32_t m = 0; m < 3; ++m)
    outcomes.push_back(nodes.nodes[m]->Call({.input = {in[m].data(), m == 1 ? 9u : 10u}, .output = {out[m].data(), m == 1 ? 9u : 10u}}));
  ASSERT_TRUE(nodes.Await(outcomes));
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome->status.code(), absl::StatusCode::kInvalidArgument) << outcome->status;
    EXPECT_THAT(outcome->status.ToString(), HasSubstr("the same calls in the same order"));
  }
  Outcomes after;   // and the next call goes on
  for (uint32_t m = 0; m < 3; ++m) after.push_back(nodes.nodes[m]->Call({.input = in[m], .output = out[m]}));
  ASSERT_TRUE(nodes.Await(after));
  for (const auto& outcome : after) EXPECT_TRUE(outcome->status.ok()) << outcome->status;
  EXPECT_EQ(out[2], Values(10, 3.0f));
}

TEST(Collectives, SizesThatDoNotFitFailAtAllMembers) {
  Nodes nodes(2);
  Values in(9), out(18), short_out(4);
  const auto bad = nodes.nodes[0]->Call({.kind = Kind::kAllGather, .input = in, .output = short_out});
  const auto good = nodes.nodes[1]->Call({.kind = Kind::kAllGather, .input = in, .output = out});
  ASSERT_TRUE(nodes.Await({bad, good}));
  EXPECT_THAT(bad->status.ToString(), HasSubstr("out must be in times the members"));
  EXPECT_THAT(good->status.ToString(), HasSubstr("out must be in times the members"));
}

TEST(Collectives, ADeadlineNamesWhoIsMissingAndEndsItEverywhere) {
  Nodes nodes(3);
  std::vector<Values> in(3, Values(40000, 1.0f)), out(3, Values(40000));
  const auto first = nodes.nodes[0]->Call({.input = in[0], .output = out[0], .algorithm = Algorithm::kRing, .deadline = nodes.clock.Now() + 2 * kSecond});
  const auto second = nodes.nodes[1]->Call({.input = in[1], .output = out[1], .algorithm = Algorithm::kRing});
  nodes.network.RunFor(kSecond);
  EXPECT_THAT(nodes.nodes[0]->core->Waiting(), HasSubstr("all-reduce of 40000 values in group world, call 0, 1."));
  EXPECT_THAT(nodes.nodes[0]->core->Waiting(), HasSubstr("rank 2 (host2:1)"));
  ASSERT_TRUE(nodes.Await({first, second}));
  EXPECT_EQ(first->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(first->status.ToString(), HasSubstr("rank 2"));
  EXPECT_EQ(second->status.code(), absl::StatusCode::kDeadlineExceeded) << second->status;
  EXPECT_THAT(second->status.ToString(), HasSubstr("the deadline of rank 0"));
  const auto third = nodes.nodes[2]->Call({.input = in[2], .output = out[2], .algorithm = Algorithm::kRing});   // comes late, and hears of it
  ASSERT_TRUE(nodes.Await({third}));
  EXPECT_EQ(third->status.code(), absl::StatusCode::kDeadlineExceeded) << third->status;
}

TEST(Collectives, CancellingEndsItEverywhere) {
  Nodes nodes(2);
  Values in(10), out(10);
  const auto first = nodes.nodes[0]->Call({.input = in, .output = out});
  EXPECT_TRUE(nodes.nodes[0]->core->Cancel(nodes.nodes[0]->last_call));
  EXPECT_FALSE(nodes.nodes[0]->core->Cancel(nodes.nodes[0]->last_call));
  const auto second = nodes.nodes[1]->Call({.input = in, .output = out});
  ASSERT_TRUE(nodes.Await({first, second}));
  EXPECT_EQ(first->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(second->status.code(), absl::StatusCode::kCancelled);
}

TEST(Collectives, ALostMemberFailsTheOthersAndItsNewLifeGoesOnWithThem) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    Nodes nodes(4, seed, Rough());
    std::vector<Values> in(4, Values(60000, 1.0f)), out(4, Values(60000));
    Outcomes outcomes;
    for (uint32_t m = 0; m < 4; ++m) outcomes.push_back(nodes.nodes[m]->Call({.input = in[m], .output = out[m]}));
    nodes.network.RunFor(static_cast<TimeNs>(seed) * kMillisecond);
    nodes.Crash(2);
    outcomes[2] = nullptr;
    nodes.network.RunFor(kSecond);
    nodes.Info(2)->set_alive(false);
    nodes.Publish();
    ASSERT_TRUE(nodes.Await(outcomes));
    int failed = 0;
    for (const auto& outcome : outcomes) {
      if (outcome == nullptr || outcome->status.ok()) continue;
      ++failed;
      EXPECT_EQ(outcome->status.code(), absl::StatusCode::kUnavailable) << outcome->status;
      EXPECT_THAT(outcome->status.ToString(), HasSubstr("rank 2 (host2:1) was lost"));
    }
    EXPECT_GT(failed, 0);
    const auto at_once = nodes.nodes[0]->Call({.input = in[0], .output = out[0]});
    ASSERT_TRUE(nodes.Await({at_once}));
    EXPECT_THAT(at_once->status.ToString(), HasSubstr("is lost; start it again"));

    nodes.Restart(2, 5);
    for (Values& values : in) values.assign(values.size(), 1.0f);
    for (uint32_t m = 0; m < 4; ++m) outcomes[m] = nodes.nodes[m]->Call({.input = in[m], .output = out[m]});
    nodes.network.RunFor(kSecond);
    for (uint32_t m = 0; m < 4; ++m) {   // whose call had finished before the loss is told of it now, and calls again
      if (!outcomes[m]->done || outcomes[m]->status.ok()) continue;
      EXPECT_THAT(outcomes[m]->status.ToString(), HasSubstr("was started again"));
      outcomes[m] = nodes.nodes[m]->Call({.input = in[m], .output = out[m]});
    }
    ASSERT_TRUE(nodes.Await(outcomes));
    for (const auto& outcome : outcomes) EXPECT_TRUE(outcome->status.ok()) << outcome->status;
    for (const Values& values : out) EXPECT_EQ(values, Values(60000, 4.0f));
  }
}

TEST(Collectives, WhoeverWasNotToldOfANewLifeIsToldByItsNextCall) {
  Nodes nodes(2);
  Values in(10, 1.0f), out(10), other(10);
  Outcomes outcomes = {nodes.nodes[0]->Call({.input = in, .output = out}), nodes.nodes[1]->Call({.input = in, .output = other})};
  ASSERT_TRUE(nodes.Await(outcomes));
  nodes.Crash(1);
  nodes.Restart(1, 9);
  const auto told = nodes.nodes[0]->Call({.input = in, .output = out});
  const auto begins = nodes.nodes[1]->Call({.input = in, .output = other});
  ASSERT_TRUE(nodes.Await({told}));
  EXPECT_EQ(told->status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(told->status.ToString(), HasSubstr("go back to a common state"));
  EXPECT_FALSE(begins->done);
  const auto again = nodes.nodes[0]->Call({.input = in, .output = out});
  ASSERT_TRUE(nodes.Await({again, begins}));
  EXPECT_TRUE(again->status.ok()) << again->status;
  EXPECT_TRUE(begins->status.ok()) << begins->status;
  EXPECT_EQ(out, Values(10, 2.0f));
}

TEST(Collectives, AMemberThatHasDoneAllMayLeaveBeforeItsLastAcknowledgementIsThere) {
  Nodes nodes(2);
  Values in(10, 1.0f), got(10);
  const auto received = nodes.nodes[1]->Call({.kind = Kind::kReceive, .output = got, .peer = 0});
  const auto sent = nodes.nodes[0]->Call({.kind = Kind::kSend, .input = in, .peer = 1});
  while (!received->done) nodes.network.RunFor(10 * kMicrosecond);
  nodes.Crash(1);   // at once: its answer may be on the way
  nodes.Info(1)->set_finished(true);
  nodes.Info(1)->set_alive(false);
  nodes.Publish();
  ASSERT_TRUE(nodes.Await({sent}));
  EXPECT_TRUE(sent->status.ok()) << sent->status;
  const auto next = nodes.nodes[0]->Call({.kind = Kind::kSend, .input = in, .peer = 1});
  ASSERT_TRUE(nodes.Await({next}));
  EXPECT_THAT(next->status.ToString(), HasSubstr("has left the job"));
}

TEST(Collectives, WhatComesEarlyIsBounded) {
  Nodes nodes(2);
  std::vector<Values> in(6000, Values(500, 1.0f));
  Outcomes outcomes;
  for (Values& values : in) outcomes.push_back(nodes.nodes[0]->Call({.kind = Kind::kSend, .input = values, .peer = 1}));
  nodes.network.RunFor(200 * kMillisecond);
  // Nobody receives: the lower rank has connected, and the other keeps what it must.
  Values got(500);
  Outcomes received;
  for (size_t i = 0; i < in.size(); ++i) received.push_back(nodes.nodes[1]->Call({.kind = Kind::kReceive, .output = got, .peer = 0}));
  ASSERT_TRUE(nodes.Await(outcomes, 300 * kSecond));
  ASSERT_TRUE(nodes.Await(received, 300 * kSecond));
  for (const auto& outcome : received) EXPECT_TRUE(outcome->status.ok()) << outcome->status;
}

TEST(Collectives, TheEndOfACoreEndsItsCalls) {
  Nodes nodes(2);
  Values in(10), out(10);
  const auto call = nodes.nodes[0]->Call({.input = in, .output = out});
  nodes.nodes[0]->core->Fail(absl::AbortedError("the job has failed"));
  ASSERT_TRUE(nodes.Await({call}));
  EXPECT_THAT(call->status.ToString(), HasSubstr("the job has failed"));
  const auto later = nodes.nodes[0]->Call({.input = in, .output = out});
  ASSERT_TRUE(nodes.Await({later}));
  EXPECT_EQ(later->status.code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace sluice::collective
