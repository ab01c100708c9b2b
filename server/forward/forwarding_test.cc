// Aggregators, owners and scripted workers, with the test as the wire: docs/wire.md, "A push through a tree".

#include <bit>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "server/forward/forward_message.h"
#include "server/testing/core_harness.h"
#include "transport/control/tree_way.h"

namespace sluice::server {
namespace {

using transport::PushState;
using transport::RetryReason;

// Servers whose links to each other work at once. Link rank + 1 is a worker's, at every server.
class ForwardingTest : public ::testing::Test {
 protected:
  // s0 owns the one shard; the others own none.
  void Start(const std::string& job, uint32_t servers, const std::vector<std::tuple<uint32_t, int32_t, std::vector<uint32_t>>>& nodes,
             std::vector<uint64_t> partitions = {4}) {
    PlanBuilder builder(job);
    for (uint32_t s = 0; s < servers; ++s) builder.Server(absl::StrCat("s", s));
    builder.plan.mutable_shards()->DeleteSubrange(1, static_cast<int>(servers) - 1);
    builder.Tensor("w", std::move(partitions));
    plan = builder.plan;
    proto::Tree* tree = plan.add_trees();
    tree->set_tree(1);
    tree->set_epoch(3);
    for (const auto& [server, parent, ranks] : nodes) {
      proto::TreeNode* node = tree->add_nodes();
      node->set_server(server);
      node->set_parent(parent);
      node->mutable_ranks()->Assign(ranks.begin(), ranks.end());
    }
    plan.mutable_shards(0)->set_tree(1);
    for (uint32_t s = 0; s < servers; ++s) {
      cores.push_back(std::make_unique<CoreHarness>(absl::StrCat("s", s)));
      cores.back()->Start(plan);
    }
  }
  void NewPlan() {
    plan.set_version(plan.version() + 1);
    for (const auto& core : cores) {
      if (core != nullptr) core->core->OnPlan(plan);
    }
    Exchange();
  }
  void NextEpoch() {
    plan.mutable_trees(0)->set_epoch(plan.trees(0).epoch() + 1);
    NewPlan();
  }
  uint64_t Stamp() const { return control::TreeStamp(plan.trees(0)); }

  // Until nothing is under way between servers.
  void Exchange() {
    for (int i = 0; i < 20; ++i) {
      for (size_t s = 0; s < cores.size(); ++s) {
        if (cores[s] == nullptr) continue;
        cores[s]->core->OnTurnEnd();
        for (; connected[s] < cores[s]->endpoint.connects.size(); ++connected[s]) {
          const auto& connect = cores[s]->endpoint.connects[connected[s]];
          const auto to = static_cast<size_t>(connect.address.host[1] - '0');
          if (cores[to] == nullptr) continue;
          transport::Hello hello;
          hello.role = transport::PeerRole::kServer;
          const LinkId far = next_link++;
          ends[{s, connect.link}] = {to, far};
          ends[{to, far}] = {s, connect.link};
          cores[s]->core->OnUp(connect.link, hello);
          cores[to]->core->OnUp(far, hello);
        }
        for (const auto& [from, end] : ends) {
          if (from.first != s || cores[end.first] == nullptr) continue;
          for (const SentFrame& f : cores[s]->endpoint.Take(from.second)) {
            if (lose) continue;
            cores[end.first]->Deliver(end.second, f.header, f.payload);
          }
        }
        cores[s]->endpoint.ReleaseAll();
      }
    }
  }

  FrameHeader Header(uint32_t rank, uint64_t round, std::vector<float> values, uint16_t flags = 0, uint32_t attempt = 1) const {
    CoreHarness::Push push{.rank = rank, .round = round, .values = std::move(values), .flags = flags};
    push.attempt = attempt;
    FrameHeader h = CoreHarness::HeaderOf(push);
    h.elements = 4;
    h.aux64 = Stamp();
    h.term = plan.shards(0).term();
    h.plan_version = plan.version();
    return h;
  }
  void Push(size_t server, uint32_t rank, uint64_t round, const std::vector<float>& values, uint16_t flags = 0, uint32_t attempt = 1) {
    FrameHeader h = Header(rank, round, values, flags, attempt);
    std::vector<std::byte> bytes;
    if (!values.empty()) bytes = CoreHarness::Encode("none", values);
    h.payload_bytes = static_cast<uint32_t>(bytes.size());
    h.total_bytes = bytes.size();
    cores[server]->Deliver(rank + 1, h, bytes);
    Exchange();
  }
  std::vector<SentFrame> Take(size_t server, uint32_t rank) { return cores[server]->Take(rank); }
  SentFrame One(size_t server, uint32_t rank) { return cores[server]->TakeOne(rank); }

  proto::Plan plan;
  std::vector<std::unique_ptr<CoreHarness>> cores;
  std::map<size_t, size_t> connected;
  std::map<std::pair<size_t, LinkId>, std::pair<size_t, LinkId>> ends;
  LinkId next_link = 5000;
  bool lose = false;
};

constexpr char kSum[] = "workers: 4 reduction: REDUCTION_SUM reply: REPLY_AGGREGATE";

TEST_F(ForwardingTest, SumsGoUpOnceAndTheAnswerComesBackToAll) {
  Start(kSum, 2, {{1, -1, {1, 3}}});
  Push(0, 2, 0, {100, 0, 0, 0});
  Push(1, 3, 0, {3, 3, 3, 3});
  Push(1, 1, 0, {1, 1, 1, 1});
  EXPECT_TRUE(Take(1, 1).empty());   // it acknowledges nothing by itself
  Push(0, 0, 0, {0, 0, 7, 0});
  for (const uint32_t rank : {0u, 1u, 2u, 3u}) {
    const SentFrame reply = One(rank == 1 || rank == 3 ? 1 : 0, rank);
    EXPECT_EQ(reply.header.type, FrameType::kReply);
    EXPECT_EQ(reply.header.rank, rank);
    EXPECT_EQ(reply.header.aux, 4u);
    EXPECT_EQ(reply.Floats(), (std::vector<float>{104, 4, 11, 4}));
  }
  ASSERT_EQ(cores[0]->observed.rounds.size(), 1u);
  const RoundRecord& round = cores[0]->observed.rounds[0].record;
  EXPECT_EQ(round.contributors, (std::vector<uint32_t>{0, 1, 3, 2}));
  EXPECT_EQ(round.nesting, (std::vector<int32_t>{0, -2, 1, 3, kNestingEnd, 2}));
  EXPECT_EQ(cores[1]->core->stats().forwards, 1u);
  EXPECT_EQ(cores[1]->core->stats().forwarded, 24u + 16u);
  EXPECT_EQ(cores[0]->core->stats().contributions, 4u);
}

// The daemon's lanes are not told their server's incarnation: forwards had none, and were refused for ever.
TEST_F(ForwardingTest, AForwardHasTheIncarnationThatThePlanHasOfItsServer) {
  Start(kSum, 2, {{1, -1, {0, 1, 2, 3}}});
  plan.mutable_servers(1)->set_incarnation(71);
  NewPlan();
  for (const uint32_t rank : {0u, 1u, 2u, 3u}) Push(1, rank, 0, {1, 1, 1, 1});
  EXPECT_EQ(One(1, 0).Floats()[0], 4.0f);
}

TEST_F(ForwardingTest, TwoLevelsAddInAFixedOrder) {
  Start("workers: 5 reduction: REDUCTION_MEAN reply: REPLY_AGGREGATE", 3, {{1, 1, {2, 4}}, {2, -1, {1, 3}}});
  const std::vector<float> v = {1e8f, 1.0f, -1e8f, 0.5f, 3.0f};
  for (const uint32_t rank : {4u, 3u, 2u, 1u, 0u}) {
    const size_t server = rank == 0 ? 0 : rank % 2 == 0 ? 1 : 2;
    Push(server, rank, 0, {v[rank], v[rank], v[rank], v[rank]});
  }
  const float sum = v[0] + ((v[1] + (v[2] + v[4])) + v[3]);
  EXPECT_EQ(One(1, 4).Floats()[0], sum / 5);
  EXPECT_EQ(One(0, 0).Floats()[0], sum / 5);
  EXPECT_EQ(cores[0]->observed.rounds[0].record.nesting,
            (std::vector<int32_t>{0, -3, 1, -2, 2, 4, kNestingEnd, 3, kNestingEnd}));
}

TEST_F(ForwardingTest, OrderExactHasTheBitsOfTheFlatSum) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    PhiloxRandom random(seed);
    std::vector<std::vector<float>> values(4);
    for (auto& v : values)
      for (int i = 0; i < 4; ++i) v.push_back(std::ldexp(random.Uniform() - 0.5f, static_cast<int>(random.Below(60)) - 30));
    std::vector<float> results[2];
    for (const bool tree : {false, true}) {
      cores.clear(), connected.clear(), ends.clear();
      using Nodes = std::vector<std::tuple<uint32_t, int32_t, std::vector<uint32_t>>>;
      Start(absl::StrCat(kSum, " order: ORDER_EXACT"), 3, tree ? Nodes{{1, 1, {0, 3}}, {2, -1, {1}}} : Nodes{});
      for (uint32_t rank = 0; rank < 4; ++rank) Push(!tree || rank == 2 ? 0 : rank == 1 ? 2 : 1, rank, 0, values[rank]);
      results[tree] = One(0, 2).Floats();
    }
    for (int i = 0; i < 4; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(results[0][i]), std::bit_cast<uint32_t>(results[1][i])) << seed;
  }
}

TEST_F(ForwardingTest, RepeatsAreAnsweredAndNeverCountTwice) {
  Start(kSum, 2, {{1, -1, {0, 1, 2, 3}}});
  Push(1, 0, 0, {1, 1, 1, 1});
  Push(1, 0, 0, {1, 1, 1, 1}, 0, 2);
  const SentFrame received = One(1, 0);
  EXPECT_EQ(received.header.type, FrameType::kState);
  EXPECT_EQ(received.header.aux, static_cast<uint32_t>(PushState::kReceived));
  for (const uint32_t rank : {1u, 2u, 3u}) Push(1, rank, 0, {1, 1, 1, 1});
  EXPECT_EQ(One(1, 0).Floats()[0], 4.0f);
  cores[1]->clock.Advance(10 * kSecond);
  Push(1, 0, 0, {1, 1, 1, 1}, 0, 3);   // its answer was lost
  EXPECT_EQ(One(1, 0).Floats()[0], 4.0f);
  EXPECT_EQ(cores[0]->observed.rounds.size(), 1u);
}

TEST_F(ForwardingTest, ARankThatIsBehindIsSentToTheOwner) {
  Start(kSum, 2, {{1, -1, {0, 1, 2, 3}}});
  for (const uint32_t rank : {0u, 1u, 2u, 3u}) Push(1, rank, 0, {1, 1, 1, 1});
  NextEpoch();
  cores[1] = nullptr;   // a new process has nothing of what was answered
  cores[1] = std::make_unique<CoreHarness>("s1");
  connected[1] = 0;
  cores[1]->Start(plan);
  Push(1, 0, 0, {1, 1, 1, 1}, 0, 2);        // it had no answer; gathered for now
  EXPECT_TRUE(Take(1, 0).empty());
  Push(1, 1, 1, {2, 2, 2, 2});              // whose sender has the answer of round 0: so that is closed
  SentFrame direct = One(1, 0);
  EXPECT_EQ(direct.header.type, FrameType::kRetry);
  EXPECT_EQ(direct.header.aux, static_cast<uint32_t>(RetryReason::kDirect));
  Push(1, 2, 0, {1, 1, 1, 1}, 0, 2);
  EXPECT_EQ(One(1, 2).header.aux, static_cast<uint32_t>(RetryReason::kDirect));
  Push(0, 0, 0, {1, 1, 1, 1}, 0, 3);        // the owner has it
  EXPECT_EQ(One(0, 0).Floats()[0], 4.0f);
  Push(0, 0, 1, {1, 1, 1, 1});              // but takes the open round by the tree alone
  EXPECT_EQ(One(0, 0).header.aux, static_cast<uint32_t>(RetryReason::kBusy));
  for (const uint32_t rank : {0u, 2u, 3u}) Push(1, rank, 1, {2, 2, 2, 2});
  EXPECT_EQ(One(1, 3).Floats()[0], 8.0f);
}

TEST_F(ForwardingTest, AnotherTreeDiscardsWhatIsOpenEverywhere) {
  Start(kSum, 3, {{1, -1, {0, 1}}});
  Push(1, 0, 0, {1, 0, 0, 0});
  Push(1, 1, 0, {1, 0, 0, 0});   // forwarded, and at the owner
  Push(0, 2, 0, {1, 0, 0, 0});
  plan.mutable_trees(0)->mutable_nodes(0)->set_server(2);
  plan.mutable_trees(0)->mutable_nodes(0)->add_ranks(2);
  const uint64_t old = Stamp();
  NextEpoch();
  EXPECT_EQ(cores[0]->core->stats().partials_discarded, 1u);
  EXPECT_EQ(cores[1]->core->stats().partials_discarded, 1u);
  // A late push over the old way.
  FrameHeader late = Header(3, 0, {});
  late.aux64 = old;
  late.flags = transport::kFlagEmpty;
  cores[0]->Deliver(4, late, {});
  EXPECT_EQ(One(0, 3).header.aux, static_cast<uint32_t>(RetryReason::kPlan));
  Push(0, 3, 0, {1, 0, 0, 0});
  for (const uint32_t rank : {2u, 1u, 0u}) Push(2, rank, 0, {1, 0, 0, 0}, 0, 2);
  EXPECT_EQ(One(2, 0).Floats()[0], 4.0f);
  EXPECT_EQ(cores[0]->observed.rounds.size(), 1u);
}

TEST_F(ForwardingTest, ARoundThatIsSummedIsAnsweredOverTheNewWay) {
  Start("workers: 2 reduction: REDUCTION_SUM reply: REPLY_AGGREGATE optimizer { clip_norm: 100 }", 2, {{1, -1, {0, 1}}});
  plan.set_coordinator_server(1);   // whose verdict does not come while frames are lost
  NewPlan();
  Push(1, 0, 0, {1, 1, 1, 1});
  FrameHeader h = Header(1, 0, {1, 1, 1, 1});
  const std::vector<std::byte> bytes = CoreHarness::Encode("none", std::vector<float>{1, 1, 1, 1});
  h.payload_bytes = static_cast<uint32_t>(bytes.size());
  h.total_bytes = bytes.size();
  cores[1]->Deliver(2, h, bytes);
  // By hand: the forward alone reaches the owner.
  for (const auto& [from, end] : ends) {
    if (from.first != 1) continue;
    for (const SentFrame& f : cores[1]->endpoint.Take(from.second)) {
      if (f.header.type == FrameType::kPush) cores[0]->Deliver(end.second, f.header, f.payload);
    }
  }
  EXPECT_EQ(cores[0]->observed.rounds.size(), 0u);
  lose = true;
  plan.mutable_trees(0)->clear_nodes();
  NextEpoch();
  EXPECT_EQ(cores[0]->core->stats().partials_discarded, 0u);   // it waits for the verdict: nothing is open
  Push(0, 0, 0, {1, 1, 1, 1}, 0, 2);
  EXPECT_EQ(One(0, 0).header.aux, static_cast<uint32_t>(PushState::kReceived));
  Push(0, 1, 0, {1, 1, 1, 1}, 0, 2);
  EXPECT_EQ(One(0, 1).header.aux, static_cast<uint32_t>(PushState::kReceived));
  lose = false;
  cores[0]->clock.Advance(10 * kSecond);
  cores[0]->core->OnTick();
  Exchange();
  EXPECT_EQ(One(0, 0).Floats()[0], 2.0f);
  EXPECT_EQ(One(0, 1).Floats()[0], 2.0f);
}

TEST_F(ForwardingTest, BroadcastsAndStepsThatAreSkippedComeThrough) {
  Start("workers: 4 optimizer { kind: 'sgd' rate: 1 } reply: REPLY_PARAMETERS on_nonfinite: NONFINITE_SKIP", 2, {{1, -1, {1, 2, 3}}});
  Push(1, 1, 0, {}, transport::kFlagEmpty);
  Push(1, 2, 0, {5, 6, 7, 8}, transport::kFlagAssign);
  Push(1, 3, 0, {}, transport::kFlagEmpty);
  Push(0, 0, 0, {}, transport::kFlagEmpty);
  EXPECT_EQ(One(1, 1).Floats(), (std::vector<float>{5, 6, 7, 8}));
  EXPECT_EQ(One(0, 0).Floats(), (std::vector<float>{5, 6, 7, 8}));
  Take(1, 2), Take(1, 3);
  Push(1, 1, 1, {1, 1, 1, 1});
  Push(1, 2, 1, {}, transport::kFlagNonfinite);
  Push(1, 3, 1, {1, 1, 1, 1});
  Push(0, 0, 1, {1, 1, 1, 1});
  for (const uint32_t rank : {1u, 2u, 3u}) {
    const SentFrame reply = One(1, rank);
    EXPECT_TRUE(reply.header.has(transport::kFlagSkipped)) << rank;
    EXPECT_EQ(reply.Floats(), (std::vector<float>{5, 6, 7, 8}));
  }
  Take(0, 0);
  // Nobody there has a finite gradient.
  for (const uint32_t rank : {1u, 2u, 3u}) Push(1, rank, 2, {}, transport::kFlagNonfinite);
  Push(0, 0, 2, {1, 1, 1, 1});
  EXPECT_TRUE(One(1, 3).header.has(transport::kFlagSkipped));
  EXPECT_TRUE(One(0, 0).header.has(transport::kFlagSkipped));
}

TEST_F(ForwardingTest, WhoWantsNoValueGetsNone) {
  Start("workers: 3 optimizer { kind: 'sgd' rate: 1 } reply: REPLY_PARAMETERS", 2, {{1, -1, {0, 1, 2}}});
  for (const uint32_t rank : {0u, 1u, 2u}) Push(1, rank, 0, {3, 3, 3, 3}, rank == 1 ? 0 : transport::kFlagNoReply);
  EXPECT_EQ(One(1, 0).header.type, FrameType::kApplied);
  EXPECT_EQ(One(1, 1).Floats()[0], -3.0f);
  for (const uint32_t rank : {0u, 1u, 2u}) Push(1, rank, 1, {3, 3, 3, 3}, transport::kFlagNoReply);
  EXPECT_EQ(One(1, 1).header.type, FrameType::kApplied);
  Push(1, 2, 1, {3, 3, 3, 3}, 0, 2);   // another life of it wants the value after all
  std::vector<SentFrame> frames = Take(1, 2);
  EXPECT_EQ(frames.back().header.aux, static_cast<uint32_t>(RetryReason::kDirect));
}

TEST_F(ForwardingTest, TheSameForwardGoesAgainWhenTheLinkIsLost) {
  Start(kSum, 2, {{1, -1, {0, 1, 2, 3}}});
  Push(1, 0, 0, {1, 1, 1, 1});
  lose = true;
  for (const uint32_t rank : {1u, 2u, 3u}) Push(1, rank, 0, {1, 1, 1, 1});
  EXPECT_TRUE(cores[0]->observed.rounds.empty());
  const auto [from, end] = *ends.lower_bound({1, 0});
  cores[1]->core->OnDown(from.second, absl::UnavailableError("cut"));
  cores[0]->core->OnDown(end.second, absl::UnavailableError("cut"));
  ends.clear();
  lose = false;
  cores[1]->clock.Advance(kSecond);
  cores[1]->core->OnTick();
  Exchange();
  for (const uint32_t rank : {0u, 1u, 2u, 3u}) EXPECT_EQ(One(1, rank).Floats()[0], 4.0f);
  EXPECT_EQ(cores[0]->observed.rounds.size(), 1u);
}

TEST_F(ForwardingTest, WhoHasFinishedIsNotWaitedFor) {
  Start(kSum, 2, {{1, -1, {1, 3}}});
  Push(0, 0, 0, {1, 1, 1, 1});
  Push(0, 2, 0, {1, 1, 1, 1});
  Push(1, 1, 0, {1, 1, 1, 1});
  EXPECT_TRUE(Take(1, 1).empty());
  plan.mutable_workers(3)->set_finished(true);
  NewPlan();
  EXPECT_EQ(One(1, 1).Floats()[0], 3.0f);
  EXPECT_EQ(One(0, 0).header.aux, 3u);
}

TEST_F(ForwardingTest, AnErrorOfTheOwnerReachesTheRanks) {
  Start(kSum, 2, {{1, -1, {1, 3}}});
  Push(0, 0, 0, {}, transport::kFlagEmpty);   // rank 0 broadcasts, the others push gradients
  Push(1, 1, 0, {1, 1, 1, 1});
  Push(1, 3, 0, {1, 1, 1, 1});
  const SentFrame error = One(1, 1);
  EXPECT_EQ(error.header.type, FrameType::kError);
  EXPECT_EQ(error.header.status, static_cast<uint16_t>(absl::StatusCode::kFailedPrecondition));
  EXPECT_NE(error.Text().find("same operations"), std::string::npos);
}

// --- what no correct peer sends

class HostileForwardsTest : public ForwardingTest {
 protected:
  // A forward to the owner from whoever is on this link.
  std::pair<FrameHeader, std::vector<std::byte>> Forward(const std::vector<uint32_t>& ranks, uint64_t round = 0, uint32_t server = 1,
                                                         size_t elements = 4) const {
    std::vector<std::byte> payload(ForwardHeadBytes(4) + elements * sizeof(float));
    WriteForwardHead(0, 0, ranks, 4, payload);
    FrameHeader h = Header(0, round, {});
    h.rank = kForwardRank | server;
    h.incarnation = 0;
    h.flags = transport::kFlagForward;
    h.payload_bytes = static_cast<uint32_t>(payload.size());
    h.total_bytes = payload.size();
    return {h, std::move(payload)};
  }
  void StartOwner() {
    Start(kSum, 3, {{1, -1, {1, 3}}, {2, -1, {0}}});
    transport::Hello hello;
    hello.role = transport::PeerRole::kServer;
    cores[0]->core->OnUp(kPeer, hello);
  }
  std::vector<SentFrame> Answers(const std::pair<FrameHeader, std::vector<std::byte>>& forward) {
    cores[0]->endpoint.Take(kPeer);
    cores[0]->Deliver(kPeer, forward.first, forward.second);
    return cores[0]->endpoint.Take(kPeer);
  }
  bool Ended() { return cores[0]->endpoint.closed.contains(kPeer); }
  static constexpr LinkId kPeer = 900;
};

TEST_F(HostileForwardsTest, RanksThatAreNotTheNodesOrOverlapAreRefused) {
  StartOwner();
  auto frames = Answers(Forward({1, 2}));
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].header.type, FrameType::kError);
  EXPECT_EQ(frames[0].header.status, static_cast<uint16_t>(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(Answers(Forward({1})).empty());   // taken: rank 3 is still missing
  frames = Answers(Forward({1, 3}));
  EXPECT_EQ(frames[0].header.status, static_cast<uint16_t>(absl::StatusCode::kFailedPrecondition));
  EXPECT_NE(frames[0].Text().find("contributed already"), std::string::npos);
  EXPECT_TRUE(Answers(Forward({3})).empty());
  frames = Answers(Forward({1, 3}));            // all of it is there
  EXPECT_EQ(frames[0].header.aux, static_cast<uint32_t>(PushState::kReceived));
  EXPECT_EQ(cores[0]->core->stats().contributions, 2u);
}

TEST_F(HostileForwardsTest, OtherEpochsTermsServersAndSizesAreRefused) {
  StartOwner();
  auto forward = Forward({1, 3});
  const auto retried = [&](auto change, RetryReason reason) {
    auto other = forward;
    change(other.first);
    const auto frames = Answers(other);
    ASSERT_EQ(frames.size(), 1u);
    EXPECT_EQ(frames[0].header.type, FrameType::kRetry);
    EXPECT_EQ(frames[0].header.aux, static_cast<uint32_t>(reason));
  };
  retried([](FrameHeader& h) { h.aux64 -= 1; }, RetryReason::kPlan);
  retried([](FrameHeader& h) { h.aux64 += 1; }, RetryReason::kPlan);
  retried([](FrameHeader& h) { h.aux64 = 0; }, RetryReason::kPlan);
  retried([](FrameHeader& h) { h.term = 0; }, RetryReason::kTerm);
  retried([](FrameHeader& h) { h.incarnation = 5; }, RetryReason::kPlan);
  retried([](FrameHeader& h) { h.rank = kForwardRank | 77; }, RetryReason::kPlan);
  retried([](FrameHeader& h) { h.round = 9; }, RetryReason::kBusy);
  EXPECT_FALSE(Ended());
  EXPECT_EQ(cores[0]->core->stats().contributions, 0u);
  Answers(Forward({1, 3}, 0, 1, 5));   // too long
  EXPECT_TRUE(Ended());
}

TEST_F(HostileForwardsTest, AServerThatIsNoNodeOrAWorkerThatForwardsEndsItsLink) {
  StartOwner();
  Answers(Forward({1, 3}, 0, 0));      // the owner's own index
  EXPECT_TRUE(Ended());
  auto [header, payload] = Forward({1, 3});
  cores[0]->Deliver(1, header, payload);   // a worker
  EXPECT_TRUE(cores[0]->endpoint.closed.contains(1));
  header = Header(0, 0, {});
  header.flags = transport::kFlagForward;
  cores[0]->Deliver(2, header, {});
  EXPECT_TRUE(cores[0]->endpoint.closed.contains(2));
}

TEST_F(HostileForwardsTest, ARankThatPushesToANodeThatIsNotItsOwnEndsItsLink) {
  StartOwner();
  FrameHeader h = Header(0, 0, {});
  h.flags = transport::kFlagEmpty;
  cores[1]->Deliver(1, h, {});
  EXPECT_TRUE(cores[1]->endpoint.closed.contains(1));
}

TEST_F(HostileForwardsTest, BinsThatAreNoneAreRefusedUnderOrderExact) {
  Start(absl::StrCat(kSum, " order: ORDER_EXACT"), 2, {{1, -1, {1, 3}}});
  transport::Hello hello;
  hello.role = transport::PeerRole::kServer;
  cores[0]->core->OnUp(kPeer, hello);
  auto forward = Forward({1, 3});      // plain fp32
  EXPECT_EQ(Answers(forward)[0].header.type, FrameType::kError);
  WriteForwardHead(kForwardBins, 0, std::vector<uint32_t>{1, 3}, 4, forward.second);
  EXPECT_EQ(Answers(forward)[0].header.type, FrameType::kError);
  EXPECT_EQ(cores[0]->core->stats().contributions, 0u);
}

// Whatever bytes come in whatever order: nothing is applied twice, nothing crashes, and memory goes back.
TEST_F(HostileForwardsTest, RandomFramesNeverCrashOwnerOrNode) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    cores.clear(), connected.clear(), ends.clear();
    PhiloxRandom random(seed);
    Start(absl::StrCat(kSum, seed % 2 == 0 ? " order: ORDER_EXACT" : ""), 3, {{1, -1, {1, 3}}, {2, 0, {0}}});
    transport::Hello hello;
    hello.role = transport::PeerRole::kServer;
    for (const auto& core : cores) core->core->OnUp(kPeer, hello);
    for (int i = 0; i < 300; ++i) {
      std::vector<uint32_t> ranks;
      for (uint32_t rank = 0; rank < 4; ++rank)
        if (random.Chance(0.5)) ranks.push_back(rank);
      auto [h, payload] = Forward(ranks, random.Below(3), random.Below(4), random.Below(6));
      h.flags |= static_cast<uint16_t>(random.Chance(0.3) ? 1 << random.Below(13) : 0);
      if (random.Chance(0.2)) h.rank = random.Below(5);
      if (random.Chance(0.1)) h.aux64 += random.Below(3) - 1;
      if (random.Chance(0.1)) h.partition = random.Below(3);
      if (random.Chance(0.1)) h.elements = random.Below(6);
      if (random.Chance(0.3)) h.type = static_cast<FrameType>(3 + random.Below(10));
      for (int k = 0; k < 2 && random.Chance(0.5); ++k) payload[random.Below(static_cast<uint32_t>(payload.size()))] = static_cast<std::byte>(random.Below(256));
      h.attempt = random.Below(4);
      h.payload_bytes = static_cast<uint32_t>(payload.size());
      h.total_bytes = payload.size();
      CoreHarness& core = *cores[random.Below(3)];
      const LinkId link = random.Chance(0.7) ? kPeer : 1 + random.Below(4);
      if (core.endpoint.closed.contains(link)) {
        core.core->OnDown(link, absl::UnavailableError("ended"));
        core.endpoint.closed.erase(link);
        if (link == kPeer) core.core->OnUp(kPeer, hello);
        else core.WorkerUp(static_cast<uint32_t>(link - 1));
      }
      core.Deliver(link, h, payload);
      Exchange();
      if (random.Chance(0.05)) NextEpoch();
    }
    NextEpoch();
    for (const auto& core : cores) EXPECT_EQ(core->core->stats().pool_used, 0u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice::server
