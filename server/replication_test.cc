// An owner, its backup, and what is left when the owner goes: docs/replication.md between two cores, with the test as the wire.

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "compression/row_payload.h"
#include "server/replica_message.h"
#include "server/testing/core_harness.h"

namespace sluice::server {
namespace {

constexpr LinkId kToOwner = 500;   // at the backup: the link that the owner made

// An owner and its copy whose messages pass at once.
struct Pair {
  Pair() { owner.endpoint.by_reference = true; }
  // Until nothing is under way, and some rounds more.
  void Exchange() {
    for (int i = 0; i < 50; ++i) {
      owner.core->OnTurnEnd();
      if (link == 0 && !owner.endpoint.connects.empty()) {
        link = owner.endpoint.connects.back().link;
        transport::Hello hello;
        hello.role = transport::PeerRole::kServer;
        owner.core->OnUp(link, hello);
        copy.core->OnUp(kToOwner, hello);
        owner.core->OnTurnEnd();
      }
      for (const SentFrame& f : owner.endpoint.Take(link)) copy.Deliver(kToOwner, f.header, f.payload);
      owner.endpoint.ReleaseAll();
      copy.core->OnTurnEnd();
      for (const SentFrame& f : copy.endpoint.Take(kToOwner)) owner.Deliver(link, f.header, f.payload);
    }
  }

  CoreHarness owner{"s0"}, copy{"s1"};
  LinkId link = 0;
};

// Servers s0 (owner of all shards at first), s1, s2; workers of s0 are links 1, 2, … of whichever core they talk to.
class ReplicationTest : public ::testing::Test {
 protected:
  static proto::Plan TwoServers(const std::string& job, std::vector<uint64_t> partitions = {4}) {
    PlanBuilder builder(job);
    builder.Server("s0").Server("s1");
    builder.plan.mutable_shards()->DeleteSubrange(1, 1);
    AddBackup(&builder.plan, 1, /*in_sync=*/true, 1);
    builder.Tensor("w", std::move(partitions));
    return builder.plan;
  }
  static void AddBackup(proto::Plan* plan, uint32_t server, bool in_sync, uint64_t since) {
    for (proto::ShardInfo& shard : *plan->mutable_shards()) {
      proto::BackupInfo* backup = shard.add_backups();
      backup->set_server(server);
      backup->set_in_sync(in_sync);
      backup->set_since(since);
    }
  }
  // s1 owns everything, alone.
  static proto::Plan Promoted(proto::Plan plan) {
    plan.set_version(plan.version() + 1);
    plan.mutable_servers(0)->set_alive(false);
    for (proto::ShardInfo& shard : *plan.mutable_shards()) {
      shard.set_server(1);
      shard.set_term(shard.term() + 1);
      shard.clear_backups();
    }
    return plan;
  }

  void Start(const proto::Plan& plan) {
    owner_.endpoint.by_reference = backup_.endpoint.by_reference = true;
    owner_.Start(plan);
    backup_.core->OnPlan(plan);
    Connect();
  }
  void Connect() {
    ASSERT_FALSE(owner_.endpoint.connects.empty());
    link_ = owner_.endpoint.connects.back().link;
    transport::Hello hello;
    hello.role = transport::PeerRole::kServer;
    hello.name = "s1";
    owner_.core->OnUp(link_, hello);
    hello.name = "s0";
    backup_.core->OnUp(kToOwner, hello);
    owner_.core->OnTurnEnd();
  }
  // What the owner has sent to the backup since.
  std::vector<SentFrame> TakeMessages() {
    owner_.core->OnTurnEnd();
    return owner_.endpoint.Take(link_);
  }
  void Deliver(const std::vector<SentFrame>& messages) {
    for (const SentFrame& frame : messages) backup_.Deliver(kToOwner, frame.header, frame.payload);
    owner_.endpoint.ReleaseAll();
  }
  void DeliverAnswers() {
    backup_.core->OnTurnEnd();
    for (const SentFrame& frame : backup_.endpoint.Take(kToOwner)) owner_.Deliver(link_, frame.header, frame.payload);
  }
  // Until nothing is under way.
  void Exchange() {
    for (int i = 0; i < 100; ++i) {
      const std::vector<SentFrame> messages = TakeMessages();
      if (messages.empty()) return;
      Deliver(messages);
      DeliverAnswers();
    }
    FAIL() << "the owner goes on sending";
  }
  void Promote(const proto::Plan& plan) {
    backup_.core->OnPlan(plan);
    for (const auto& worker : plan.workers()) backup_.WorkerUp(worker.rank());
    backup_.core->OnTurnEnd();
  }

  CoreHarness owner_{"s0"}, backup_{"s1"};
  LinkId link_ = 0;
};

TEST_F(ReplicationTest, NothingIsAnsweredBeforeTheBackupHasIt) {
  Start(TwoServers("workers: 2"));
  owner_.Send({.rank = 0, .values = {1, 2, 3, 4}});
  owner_.Send({.rank = 1, .values = {3, 2, 1, 0}});
  EXPECT_TRUE(owner_.Take(0).empty());
  const std::vector<SentFrame> messages = TakeMessages();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_TRUE(messages[0].header.has(transport::kFlagReplica));
  // Asked again meanwhile: received, and no more.
  owner_.Send({.rank = 0, .values = {1, 2, 3, 4}, .attempt = 2});
  EXPECT_EQ(owner_.TakeOne(0).header.type, FrameType::kState);
  Deliver(messages);
  EXPECT_TRUE(owner_.Take(1).empty());
  DeliverAnswers();
  for (uint32_t rank : {0u, 1u}) {
    const SentFrame reply = owner_.TakeOne(rank);
    EXPECT_EQ(reply.header.type, FrameType::kReply);
    EXPECT_EQ(reply.Floats(), (std::vector<float>{2, 2, 2, 2}));
  }
}

TEST_F(ReplicationTest, PullWaitsForTheBackup) {
  Start(TwoServers("workers: 1"));
  owner_.Send({.rank = 0, .values = {1, 2, 3, 4}});
  FrameHeader pull = CoreHarness::HeaderOf({.rank = 0, .round = 0});
  pull.type = FrameType::kPull;
  pull.aux64 = 9;
  owner_.Deliver(1, pull, {});
  EXPECT_TRUE(owner_.Take(0).empty());
  Exchange();
  const std::vector<SentFrame> frames = owner_.Take(0);
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].header.type, FrameType::kReply);
  EXPECT_EQ(frames[1].header.type, FrameType::kValue);
  EXPECT_EQ(frames[1].Floats(), (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(ReplicationTest, PromotedBackupAnswersRepeatsAndGoesOn) {
  const proto::Plan plan = TwoServers("workers: 2 optimizer { kind: \"momentum\" rate: 0.5 momentum: 0.5 }");
  Start(plan);
  CoreHarness alone;
  alone.Start(OnePartition("workers: 2 optimizer { kind: \"momentum\" rate: 0.5 momentum: 0.5 }"));
  const auto push = [](CoreHarness& to, uint64_t round, uint32_t term) {
    for (uint32_t rank : {0u, 1u}) {
      const float x = static_cast<float>(round + rank);
      to.Send({.rank = rank, .round = round, .values = {x, -x, 2 * x, 1}, .term = term});
    }
  };
  for (uint64_t round = 0; round < 3; ++round) {
    push(owner_, round, 1);
    Exchange();
    push(alone, round, 1);
  }
  const std::vector<SentFrame> expected = alone.Take(0);
  Promote(Promoted(plan));
  // The answer to round 2 was lost: it is given again, bit for bit.
  backup_.Send({.rank = 0, .round = 2, .values = {2, -2, 4, 1}, .term = 2});
  const SentFrame again = backup_.TakeOne(0);
  EXPECT_EQ(again.header.type, FrameType::kReply);
  EXPECT_EQ(again.Floats(), expected.back().Floats());
  push(backup_, 3, 2);
  push(alone, 3, 1);
  EXPECT_EQ(backup_.TakeOne(1).Floats(), alone.TakeOne(0).Floats());
}

TEST_F(ReplicationTest, RoundThatTheBackupLacksIsPushedAgain) {
  const proto::Plan plan = TwoServers("workers: 2");
  Start(plan);
  owner_.Send({.rank = 0, .values = {1, 2, 3, 4}});
  owner_.Send({.rank = 1, .values = {3, 2, 1, 0}});   // closed, and never heard of again
  Promote(Promoted(plan));
  backup_.Send({.rank = 1, .values = {3, 2, 1, 0}, .term = 2});
  EXPECT_TRUE(backup_.Take(1).empty());
  backup_.Send({.rank = 0, .values = {1, 2, 3, 4}, .term = 2});
  EXPECT_EQ(backup_.TakeOne(0).Floats(), (std::vector<float>{2, 2, 2, 2}));
}

TEST_F(ReplicationTest, FormerOwnerThatStaysAsACopyTakesOverAgain) {
  const std::string job = "workers: 2 optimizer { kind: \"momentum\" rate: 0.5 momentum: 0.5 }";
  const proto::Plan plan = TwoServers(job);
  Start(plan);
  CoreHarness alone;
  alone.Start(OnePartition(job));
  const auto push = [](CoreHarness& to, uint32_t rank, uint64_t round, uint32_t term) {
    const float x = static_cast<float>(round + rank);
    to.Send({.rank = rank, .round = round, .values = {x, -x, 2 * x, 1}, .term = term});
  };
  for (uint64_t round = 0; round < 3; ++round) {
    for (uint32_t rank : {0u, 1u}) push(owner_, rank, round, 1), push(alone, rank, round, 1);
    Exchange();
  }
  push(owner_, 0, 3, 1);   // of a round that is open when the shard moves
  proto::Plan moved = Promoted(plan);
  moved.mutable_servers(0)->set_alive(true);
  for (proto::ShardInfo& shard : *moved.mutable_shards()) {
    proto::BackupInfo* backup = shard.add_backups();
    backup->set_server(0);
    backup->set_in_sync(true);
    backup->set_since(2);
  }
  owner_.core->OnPlan(moved);
  EXPECT_EQ(owner_.core->stats().copies, 1u);
  proto::Plan back = moved;   // the new owner is lost before it has said a word
  back.set_version(3);
  for (proto::ShardInfo& shard : *back.mutable_shards()) {
    shard.set_server(0);
    shard.set_term(3);
    shard.clear_backups();
  }
  owner_.core->OnPlan(back);
  (void)owner_.Take(0), (void)owner_.Take(1);
  push(owner_, 1, 2, 3);   // its answer was lost
  const std::vector<SentFrame> expected = alone.Take(1);
  EXPECT_EQ(owner_.TakeOne(1).Floats(), expected.back().Floats());
  for (uint32_t rank : {0u, 1u}) push(owner_, rank, 3, 3), push(alone, rank, 3, 1);
  EXPECT_EQ(owner_.TakeOne(0).Floats(), alone.TakeOne(1).Floats());
}

TEST_F(ReplicationTest, FormerOwnerIsToldItsTerm) {
  const proto::Plan plan = TwoServers("workers: 1");
  Start(plan);
  owner_.Send({.rank = 0, .values = {1, 2, 3, 4}});
  proto::Plan moved = Promoted(plan);
  for (proto::ShardInfo& shard : *moved.mutable_shards()) {
    proto::BackupInfo* backup = shard.add_backups();
    backup->set_server(2);
    backup->set_since(5);
  }
  moved.add_servers()->set_server(2);
  Promote(moved);
  Deliver(TakeMessages());
  backup_.core->OnTurnEnd();
  const std::vector<SentFrame> answers = backup_.endpoint.Take(kToOwner);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].header.type, FrameType::kRetry);
  owner_.Deliver(link_, answers[0].header, {});
  EXPECT_TRUE(owner_.Take(0).empty()) << "an owner whose backup has left must not answer";
  EXPECT_NE(owner_.core->stats().waiting_for.find("waits for its copy"), std::string::npos)
      << owner_.core->stats().waiting_for;
}

TEST_F(ReplicationTest, WorkerThatComesToACopyIsSentAway) {
  const proto::Plan plan = TwoServers("workers: 1");
  Start(plan);
  backup_.WorkerUp(0);
  backup_.Send({.rank = 0, .values = {1, 2, 3, 4}});
  EXPECT_EQ(backup_.TakeOne(0).header.type, FrameType::kRetry);
  EXPECT_EQ(backup_.core->stats().contributions, 0u);
}

// A copy that joins late, every kind of answer and optimizer state, against one core that lived through it all.
TEST_F(ReplicationTest, CopyFilledInMidTrainingGoesOnWithTheSameBits) {
  for (const std::string& job :
       {std::string("workers: 2"), std::string("workers: 2 optimizer { kind: \"adam\" rate: 0.1 }"),
        std::string("workers: 2 optimizer { kind: \"adam\" rate: 0.1 clip_norm: 0.5 }"),
        std::string("workers: 2 optimizer { kind: \"lamb\" rate: 0.1 }"),
        std::string("workers: 2 reply: REPLY_CHANGE reply_codec: \"int8\" optimizer { kind: \"momentum\" rate: 0.1 }"),
        std::string("workers: 2 reply: REPLY_AGGREGATE optimizer { kind: \"adagrad\" rate: 0.1 }"),
        std::string("workers: 2 mode: MODE_ASP optimizer { kind: \"adam\" rate: 0.1 }"),
        std::string("workers: 2 mode: MODE_SSP staleness: 1 optimizer { kind: \"adagrad\" rate: 0.1 }")}) {
    SCOPED_TRACE(job);
    Pair pair;
    CoreHarness &owner = pair.owner, &copy = pair.copy;
    CoreHarness alone;
    PlanBuilder builder(job);
    builder.Server("s0").Server("s1");
    builder.plan.mutable_shards()->DeleteSubrange(1, 1);
    builder.Tensor("w", {40, 24});
    proto::Plan plan = builder.plan;
    owner.Start(plan);
    copy.core->OnPlan(plan);
    PlanBuilder single(job);
    single.Server("s0").Tensor("w", {40, 24});
    alone.Start(single.plan);

    PhiloxRandom random(7);
    const auto gradients = [&](uint64_t round, uint32_t partition, uint32_t rank) {
      PhiloxRandom values(round * 100 + partition * 10 + rank + 1);
      std::vector<float> out(partition == 0 ? 40 : 24);
      for (float& v : out) v = static_cast<float>(values.Uniform() - 0.5);
      return out;
    };
    const auto round = [&](CoreHarness& to, uint64_t r, uint32_t term) {
      for (uint32_t p : {0u, 1u})
        for (uint32_t rank : {0u, 1u})
          to.Send({.rank = rank, .partition = p, .round = r, .values = gradients(r, p, rank), .term = term});
    };
    const auto answers = [](CoreHarness& from, uint32_t rank) {
      std::map<std::pair<uint32_t, uint64_t>, std::vector<std::byte>> payloads;
      for (const SentFrame& f : from.Take(rank))
        if (f.header.type == FrameType::kReply) payloads[{f.header.partition, f.header.round}] = f.payload;
      return payloads;
    };
    for (uint64_t r = 0; r < 6; ++r) {
      if (r == 3) {
        plan.set_version(2);
        AddBackup(&plan, 1, /*in_sync=*/false, 3);
        copy.core->OnPlan(plan);
        owner.core->OnPlan(plan);
      }
      round(owner, r, 1);
      pair.Exchange();
      round(alone, r, 1);
      EXPECT_EQ(answers(owner, 0), answers(alone, 0)) << "round " << r;
    }
    const std::vector<proto::ReplicaState> states = owner.core->ReplicaStates();
    ASSERT_EQ(states.size(), 1u);
    EXPECT_TRUE(states[0].in_sync());
    EXPECT_EQ(states[0].since(), 3u);
    EXPECT_EQ(states[0].bytes_left(), 0u);
    proto::Plan promoted = Promoted(plan);
    promoted.set_coordinator_server(1);
    copy.core->OnPlan(promoted);
    for (uint32_t rank : {0u, 1u}) copy.WorkerUp(rank);
    (void)answers(owner, 1);
    (void)answers(alone, 1);
    for (uint64_t r = 6; r < 9; ++r) {
      round(copy, r, 2);
      round(alone, r, 1);
      EXPECT_EQ(answers(copy, 1), answers(alone, 1)) << "round " << r << " after the promotion";
    }
  }
}

TEST_F(ReplicationTest, LostLinkAndLostFramesAreMadeUpFor) {
  Start(TwoServers("workers: 1"));
  owner_.Send({.rank = 0, .values = {1, 2, 3, 4}});
  (void)TakeMessages();                                        // lost with the link
  owner_.core->OnDown(link_, absl::UnavailableError("cut"));
  owner_.endpoint.ReleaseAll();
  backup_.core->OnDown(kToOwner, absl::UnavailableError("cut"));
  for (int i = 0; i < 20 && owner_.endpoint.connects.size() < 2; ++i) {
    owner_.clock.Advance(100 * kMillisecond);
    owner_.core->OnTick();
  }
  Connect();
  Deliver(TakeMessages());
  backup_.core->OnTurnEnd();
  (void)backup_.endpoint.Take(kToOwner);                       // the acknowledgement is lost
  EXPECT_TRUE(owner_.Take(0).empty());
  for (int i = 0; i < 20; ++i) {
    owner_.clock.Advance(kSecond);
    owner_.core->OnTick();
    Exchange();
  }
  EXPECT_EQ(owner_.TakeOne(0).Floats(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(backup_.observed.rounds.size(), 0u) << "the first message is a state: nothing was applied twice";
}

TEST_F(ReplicationTest, CopyThatDiffersIsFoundByADigestAndMadeAnew) {
  const proto::Plan plan = TwoServers("workers: 1 optimizer { kind: \"sgd\" rate: 0.5 }");
  Start(plan);
  std::vector<float> last;
  for (uint64_t round = 0; round <= 70; ++round) {
    owner_.Send({.rank = 0, .round = round, .values = {1, 2, 3, 4}});
    for (int i = 0; i < 20; ++i) {
      std::vector<SentFrame> messages = TakeMessages();
      for (SentFrame& message : messages) {
        if (round == 5) message.payload.back() ^= std::byte{1};   // a bit of the last value: memory that fails
      }
      Deliver(messages);
      DeliverAnswers();
      owner_.clock.Advance(200 * kMillisecond);
      owner_.core->OnTick();
    }
    const std::vector<SentFrame> replies = owner_.Take(0);
    ASSERT_FALSE(replies.empty()) << "round " << round;
    last = replies.back().Floats();
  }
  EXPECT_EQ(backup_.core->stats().copies_that_differed, 1u);
  Promote(Promoted(plan));
  backup_.Send({.rank = 0, .round = 70, .values = {1, 2, 3, 4}, .term = 2});
  EXPECT_EQ(backup_.TakeOne(0).Floats(), last);
}

TEST_F(ReplicationTest, MessagesInPiecesAreOneMessage) {
  const proto::Plan plan = TwoServers("workers: 1 optimizer { kind: \"adam\" rate: 0.1 }", {3 << 20});   // 36 MiB of state
  Start(plan);
  const std::vector<float> gradient(3 << 20, 0.25f);
  for (uint64_t round = 0; round < 2; ++round) {
    owner_.Send({.rank = 0, .round = round, .values = gradient});
    Exchange();
    EXPECT_EQ(owner_.Take(0).size(), 1u);
  }
  Promote(Promoted(plan));
  backup_.Send({.rank = 0, .round = 1, .values = gradient, .term = 2});
  const std::vector<float> values = backup_.TakeOne(0).Floats();
  ASSERT_EQ(values.size(), gradient.size());
  EXPECT_TRUE(std::ranges::all_of(values, [&](float v) { return v == values[0]; }));
}

// Rounds of all shapes: mostly zeros in two forms, then dense. What the copy holds and would answer is compared after each.
TEST_F(ReplicationTest, SparseRoundsAreSmallAndTheirCopiesEqualBitForBit) {
  for (const char* job : {"workers: 2 optimizer { kind: \"sgd\" rate: 0.5 }",
                          "workers: 2 optimizer { kind: \"adam\" rate: 0.1 weight_decay: 0.01 clip_norm: 0.5 }",
                          "workers: 2 reduction: REDUCTION_SUM",
                          "workers: 2 mode: MODE_ASP optimizer { kind: \"momentum\" rate: 0.1 }"}) {
    SCOPED_TRACE(job);
    constexpr size_t kElements = 6000;
    const proto::Plan plan = TwoServers(job, {kElements});
    Pair pair;
    pair.owner.Start(plan);
    pair.copy.core->OnPlan(plan);
    pair.Exchange();
    PhiloxRandom random(3);
    std::vector<uint64_t> sent;
    const std::vector<float> densities = {1.0f, 0.01f, 0.2f, 1.0f, 0.01f, 0.0f, 0.2f};
    for (uint64_t round = 0; round < densities.size(); ++round) {
      const uint64_t before = pair.owner.core->stats().copied_out;
      for (uint32_t rank : {0u, 1u}) {
        std::vector<float> values(kElements);
        for (float& v : values) v = random.Chance(densities[round]) ? random.Uniform() - 0.5f : 0.0f;
        values[rank] = -0.0f;
        pair.owner.Send({.rank = rank, .round = round, .values = values});
        pair.Exchange();
      }
      sent.push_back(pair.owner.core->stats().copied_out - before);
      const auto& owners = pair.owner.observed.rounds;
      const auto& copies = pair.copy.observed.rounds;
      if (round == 0) continue;   // the first message is the state
      ASSERT_FALSE(copies.empty());
      ASSERT_EQ(copies.back().record.round, round);
      EXPECT_EQ(std::memcmp(copies.back().value.data(), owners.back().value.data(), kElements * sizeof(float)), 0)
          << "round " << round;
      EXPECT_EQ(copies.back().reply, owners.back().reply);
    }
    const size_t dense = kElements * sizeof(float);
    EXPECT_LT(sent[1], dense / 5);
    EXPECT_LT(sent[2], dense);      // of two messages under ASP
    EXPECT_GE(sent[3], dense);
    EXPECT_LT(sent[5], 400u);
  }
}

TEST_F(ReplicationTest, BackupOfATableReadsAdmitsAndEvictsAsItsOwner) {
  for (const std::string& job : {std::string("workers: 2"), std::string("workers: 2 mode: MODE_ASP optimizer { kind: \"sgd\" rate: 0.1 }")}) {
    SCOPED_TRACE(job);
    Pair pair;
    CoreHarness &owner = pair.owner, &copy = pair.copy;
    CoreHarness alone;
    copy.endpoint.by_reference = alone.endpoint.by_reference = true;
    const std::string spec = "optimizer { kind: \"adagrad\" rate: 0.1 } admit_after: 2 max_rows: 12 max_age_rounds: 5";
    PlanBuilder builder(job);
    builder.Server("s0").Server("s1");
    builder.plan.mutable_shards()->DeleteSubrange(1, 1);
    builder.Table("rows", 2, 1, spec);
    proto::Plan plan = builder.plan;
    owner.Start(plan);
    copy.core->OnPlan(plan);
    PlanBuilder single(job);
    single.Server("s0").Table("rows", 2, 1, spec);
    alone.Start(single.plan);
    const auto push = [&](CoreHarness& to, uint64_t r, uint32_t rank, uint32_t term) {
      PhiloxRandom random(r * 2 + rank + 1);
      std::set<uint64_t> ids;
      while (ids.size() < 6) ids.insert(random.Below(40));
      const std::vector<uint64_t> list(ids.begin(), ids.end());
      std::vector<std::byte> payload;
      ASSERT_TRUE(compression::PackIds(list, &payload).ok());
      std::vector<float> values(list.size() * 2);
      for (float& v : values) v = static_cast<float>(random.Uniform());
      const ConstBytes raw = std::as_bytes(std::span<const float>(values));
      payload.insert(payload.end(), raw.begin(), raw.end());
      FrameHeader h = CoreHarness::HeaderOf({.rank = rank, .round = r, .term = term});
      h.elements = static_cast<uint32_t>(list.size());
      h.total_bytes = payload.size();
      h.payload_bytes = static_cast<uint32_t>(payload.size());
      to.Deliver(rank + 1, h, payload);
    };
    const auto read = [&](CoreHarness& from, uint64_t r, uint32_t term) {
      std::vector<uint64_t> ids(40);
      for (uint64_t i = 0; i < ids.size(); ++i) ids[i] = i;
      FrameHeader h = CoreHarness::HeaderOf({.rank = 0, .round = r, .term = term});
      h.type = FrameType::kPull;
      h.codec = transport::kPlainIds;
      h.elements = 40;
      h.aux64 = 1000 + r;
      const ConstBytes raw = std::as_bytes(std::span<const uint64_t>(ids));
      h.total_bytes = raw.size();
      h.payload_bytes = static_cast<uint32_t>(raw.size());
      (void)from.Take(0);
      from.Deliver(1, h, raw);
      for (const SentFrame& f : from.Take(0)) {
        if (f.header.type == FrameType::kValue) return f.Floats();
        ADD_FAILURE() << transport::DebugString(f.header) << " " << f.Text();
      }
      return std::vector<float>();
    };
    for (uint64_t r = 0; r < 12; ++r) {
      if (r == 5) {
        plan.set_version(2);
        AddBackup(&plan, 1, /*in_sync=*/false, 3);
        copy.core->OnPlan(plan);
        owner.core->OnPlan(plan);
      }
      for (uint32_t rank : {0u, 1u}) {
        push(owner, r, rank, 1);
        pair.Exchange();
        push(alone, r, rank, 1);
      }
      const std::vector<float> expected = read(alone, r + 1, 1);
      ASSERT_EQ(expected.size(), 80u);
      EXPECT_EQ(read(owner, r + 1, 1), expected) << "round " << r;
    }
    const proto::Plan promoted = Promoted(plan);
    copy.core->OnPlan(promoted);
    for (uint32_t rank : {0u, 1u}) copy.WorkerUp(rank);
    for (uint64_t r = 12; r < 22; ++r) {
      for (uint32_t rank : {0u, 1u}) {
        push(copy, r, rank, 2);
        push(alone, r, rank, 1);
      }
      EXPECT_EQ(read(copy, r + 1, 2), read(alone, r + 1, 1)) << "round " << r << " after the promotion";
    }
  }
}

TEST_F(ReplicationTest, MalformedMessagesAreRefusedAndChangeNothing) {
  const proto::Plan plan = TwoServers("workers: 1");
  Start(plan);
  const auto send = [&](std::vector<std::byte> payload) {
    FrameHeader h;
    h.type = FrameType::kPush;
    h.flags = transport::kFlagReplica;
    h.job = 1;
    h.rank = kReplicaRank;
    h.term = 1;
    h.aux64 = 1;
    h.attempt = 1;
    h.payload_bytes = static_cast<uint32_t>(payload.size());
    h.total_bytes = payload.size();
    backup_.Deliver(kToOwner, h, payload);
    backup_.core->OnTurnEnd();
    const std::vector<SentFrame> answers = backup_.endpoint.Take(kToOwner);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].header.type, FrameType::kError) << transport::DebugString(answers[0].header);
  };
  const auto bytes = [](const proto::ReplicaHead& head, size_t bulk) {
    const std::vector<std::byte> zeros(bulk);
    const auto message = MakeReplicaMessage(head, {zeros}, nullptr);
    return std::vector<std::byte>(message->bytes.begin(), message->bytes.end());
  };
  send({std::byte{1}});
  send(std::vector<std::byte>(16, std::byte{0xFF}));
  proto::ReplicaHead head;
  head.mutable_round()->set_round(3);
  send(bytes(head, 16));                              // of a round that is not next
  head.mutable_round()->set_round(0);
  send(bytes(head, 12));                              // too little
  head.mutable_round()->set_form(2);
  send(bytes(head, 0));                               // no bitmap
  send(bytes(head, 8));                               // too long
  head.mutable_round()->set_nonzero(1);
  send(bytes(head, 5));                               // none of its bits is set
  head.mutable_round()->set_nonzero(UINT64_MAX);
  send(bytes(head, 16));
  head.mutable_round()->set_form(1);
  send(bytes(head, 16));
  head.mutable_round()->set_form(UINT32_MAX);
  send(bytes(head, 16));
  head.mutable_round()->clear_form();
  head.mutable_round()->add_contributors(7);
  send(bytes(head, 16));                              // no such rank
  head.mutable_rows()->set_rows(UINT64_MAX);
  send(bytes(head, 16));                              // of a table
  head.mutable_dense()->set_state_floats(UINT64_MAX);
  send(bytes(head, 16));
  head.mutable_dense()->set_state_floats(0);
  head.mutable_dense()->set_last_source(3);
  head.mutable_dense()->set_last_bytes(UINT64_MAX);
  send(bytes(head, 16));
  EXPECT_TRUE(backup_.observed.rounds.empty());
}

}  // namespace
}  // namespace sluice::server
