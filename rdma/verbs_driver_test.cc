// Faults of devices, rails and peers while two ends talk (rdma/testing/talk.h, which checks every frame).
#include "rdma/verbs_driver.h"

#include <gtest/gtest.h>

#include "rdma/testing/talk.h"

namespace sluice::rdma {
namespace {

using fake::Cut;
using testing::SmallTimes;
using testing::World;
using testing::WorldOptions;

WorldOptions Rails(int rails) {
  WorldOptions options;
  options.rails = rails;
  options.driver = SmallTimes();
  return options;
}

// For tests in which no path may break: a sanitizer on a busy machine takes longer than the small watchdog allows.
WorldOptions Patient(WorldOptions options) {
  options.driver.watchdog = 60 * kSecond;
  return options;
}

class VerbsDriverTest : public ::testing::Test {
 protected:
  // Both ends, with two queue pairs a rail, have begun to talk.
  void Talk(const WorldOptions& options, size_t paths) {
    world_ = std::make_unique<World>(options);
    ASSERT_TRUE(world_->UntilPaths(paths)) << world_->a().log() << world_->b().log();
    GoOn();
  }
  // Until there has been more talk, in both directions.
  void GoOn(uint64_t frames = 60) {
    const uint64_t a = world_->a().received() + frames, b = world_->b().received() + frames;
    world_->Begin(frames);
    ASSERT_TRUE(world_->Until([&] { return world_->a().received() >= a && world_->b().received() >= b; }));
  }
  void End() {
    ASSERT_TRUE(world_->Finish());
    EXPECT_TRUE(world_->a().up() && world_->b().up());
    world_->Close();
  }
  testing::End& a() { return world_->a(); }
  testing::End& b() { return world_->b(); }
  fake::Fabric& fabric() { return world_->fabric; }
  void CutRail(int rail, Cut cut) { fabric().CutPath(a().port(rail), b().port(rail), cut); }
  void MendRail(int rail) { fabric().MendPath(a().port(rail), b().port(rail)); }

  std::unique_ptr<World> world_;
};

TEST_F(VerbsDriverTest, LargePayloadsAreWrittenIntoSlotsOverAllQueuePairs) {
  Talk(Patient(Rails(2)), 4);
  GoOn(200);
  for (const transport::PathReport& path : a().endpoint().Paths()) {
    if (path.kind != "rdma") continue;
    EXPECT_GT(path.state.chunks, 0u) << path.rail << " path " << path.state.path;
  }
  EXPECT_GT(a().driver().registered_bytes(), 0u);
  EXPECT_EQ(a().driver().queue_pairs_broken(), 0u);
  End();
}

TEST_F(VerbsDriverTest, MemoryThatCannotBeRegisteredGoesWithoutChunksAndMemlockIsNamedOnce) {
  world_ = std::make_unique<World>(Patient(Rails(1)));
  ASSERT_TRUE(world_->UntilPaths(2));
  a().host().LimitRegistrations(0);
  GoOn(200);
  EXPECT_EQ(a().chunks(), 0u);
  EXPECT_EQ(a().Logged("the memlock limit"), 1u) << a().log();
  EXPECT_GT(b().Logged("is up"), 0u);
  End();
}

TEST_F(VerbsDriverTest, NoQueuePairWithoutMemoryForItsPacketsAndTcpGoesOn) {
  world_ = std::make_unique<World>(Patient(Rails(1)));
  b().host().LimitRegistrations(0);
  GoOn(200);
  EXPECT_EQ(a().paths(), 0u);
  EXPECT_EQ(b().Logged("the memlock limit"), 1u) << b().log();
  b().host().LimitRegistrations(std::nullopt);
  ASSERT_TRUE(world_->UntilPaths(2));
  GoOn();
  End();
}

TEST_F(VerbsDriverTest, AQueueThatCannotBeArmedCostsTheRailAndTcpGoesOn) {
  Talk(Rails(1), 2);
  a().host().FailReqNotify(true);
  GoOn(100);
  ASSERT_TRUE(world_->UntilPaths(0));
  EXPECT_EQ(a().Logged("is given up until this process starts again"), 1u) << a().log();
  GoOn();
  End();
}

TEST_F(VerbsDriverTest, LittleInlineRoomIsTakenAsItIs) {
  for (const bool refuse : {false, true}) {
    WorldOptions options = Patient(Rails(1));
    options.device.max_inline = 28;
    options.device.refuse_inline = refuse;
    Talk(options, 2);
    End();
  }
}

TEST_F(VerbsDriverTest, AWorkRequestThatHangsIsGivenUpByTheWatchdogAndNothingIsLost) {
  Talk(Rails(1), 2);
  const uint64_t before = a().driver().queue_pairs_broken();
  a().host().Hang("fake0", 0);
  GoOn();   // over TCP, once the watchdog has spoken
  EXPECT_GT(a().driver().queue_pairs_broken(), before);
  EXPECT_GT(a().Logged("rdma.watchdog_ms"), 0u) << a().log();
  a().host().Hang("fake0", 0, false);
  ASSERT_TRUE(world_->UntilPaths(2));
  GoOn();
  End();
}

TEST_F(VerbsDriverTest, CompletionsThatAreLostMakeNothingComeTwice) {
  Talk(Rails(2), 4);
  b().host().LoseCompletions("fake0", 0);
  GoOn(100);
  ASSERT_TRUE(world_->Until([&] { return b().driver().queue_pairs_broken() > 0; }));
  b().host().LoseCompletions("fake0", 0, false);
  ASSERT_TRUE(world_->UntilPaths(4));
  GoOn();
  End();
}

TEST_F(VerbsDriverTest, OneRailIsCutAndTheOtherCarriesOn) {
  for (const Cut cut : {Cut::kSilent, Cut::kFail}) {
    Talk(Rails(2), 4);
    CutRail(0, cut);
    GoOn(200);
    EXPECT_GT(a().driver().queue_pairs_broken() + b().driver().queue_pairs_broken(), 0u);
    GoOn();
    MendRail(0);
    ASSERT_TRUE(world_->UntilPaths(4));
    GoOn();
    End();
  }
}

TEST_F(VerbsDriverTest, AcknowledgementsThatAreLostMakeNothingComeTwice) {
  for (const Cut cut : {Cut::kSilent, Cut::kFail}) {
    Talk(Rails(1), 2);
    fabric().CutOneWay(b().port(), a().port(), cut);
    GoOn(100);
    MendRail(0);
    ASSERT_TRUE(world_->UntilPaths(2));
    GoOn();
    End();
  }
}

TEST_F(VerbsDriverTest, AllRailsAreCutInTheMiddleOfAMessageAndTcpCarriesTheRest) {
  WorldOptions options = Rails(2);
  options.fabric.mode = fake::Mode::kStepped;
  options.device.bytes_per_step = 1000;   // a message takes many steps
  world_ = std::make_unique<World>(options);
  world_->most_steps = 40;
  ASSERT_TRUE(world_->UntilPaths(4));
  GoOn();
  for (const Cut cut : {Cut::kSilent, Cut::kFail}) {
    world_->Begin(40);
    const uint64_t chunks = a().chunks();
    ASSERT_TRUE(world_->Until([&] { return a().chunks() > chunks + 4; }));
    const uint64_t broken = a().driver().queue_pairs_broken();
    for (const int rail : {0, 1}) {
      for (const int other : {0, 1}) fabric().CutPath(a().port(rail), b().port(other), cut);
    }
    ASSERT_TRUE(world_->Finish());
    EXPECT_GT(a().driver().queue_pairs_broken(), broken);
    for (const int rail : {0, 1}) {
      for (const int other : {0, 1}) fabric().MendPath(a().port(rail), b().port(other));
    }
    ASSERT_TRUE(world_->UntilPaths(4));
    GoOn();
  }
  End();
}

TEST_F(VerbsDriverTest, APortGoesDownAndComesBack) {
  Talk(Rails(1), 2);
  for (fake::PortName port : {a().port(), b().port()}) {
    fabric().PortDown(port);
    ASSERT_TRUE(world_->UntilPaths(0));
    GoOn();
    fabric().PortUp(port);
    ASSERT_TRUE(world_->UntilPaths(2));
    GoOn();
  }
  EXPECT_EQ(a().Logged("can be used again"), 1u) << a().log();
  End();
}

TEST_F(VerbsDriverTest, APortComesBackWithAnotherGid) {
  Talk(Rails(1), 2);
  fabric().PortDown(a().port());
  ASSERT_TRUE(world_->UntilPaths(0));
  fabric().PortUp(a().port(), "10.0.0.101");
  ASSERT_TRUE(world_->UntilPaths(2)) << a().log();
  EXPECT_EQ(GidText(a().driver().rails()[0].gid), "::ffff:10.0.0.101");
  GoOn();
  End();
}

TEST_F(VerbsDriverTest, AnAddressThatChangesWhileThePortIsUpIsTakenUp) {
  Talk(Rails(1), 2);
  fabric().PortUp(b().port(), "10.0.0.102");   // no port event: the GID alone moves
  GoOn();
  ASSERT_TRUE(world_->Until([&] { return b().driver().rails()[0].gid[15] == 102; })) << b().log();
  ASSERT_TRUE(world_->UntilPaths(2)) << a().log() << b().log();
  GoOn();
  End();
}

TEST_F(VerbsDriverTest, RequestsThatTheDeviceDoesNotTakeCostTheQueuePair) {
  Talk(Rails(1), 2);
  b().host().FailPostSendAfter(7);
  GoOn(100);
  EXPECT_GT(b().Logged("the device took"), 0u) << b().log();
  b().host().FailPostSendAfter(std::nullopt);
  ASSERT_TRUE(world_->UntilPaths(2));
  GoOn();
  End();
}

TEST_F(VerbsDriverTest, APeerThatIsGoneWithoutAWordEndsTheLinkAndItsNextLifeTalksAgain) {
  Talk(Rails(2), 4);
  world_->Begin(100);
  const uint64_t so_far = a().received();
  ASSERT_TRUE(world_->Until([&] { return a().received() > so_far + 20; }));
  b().Die();
  ASSERT_TRUE(world_->Until([&] { return a().down().has_value(); }));
  EXPECT_EQ(fabric().live().queue_pairs, 0u);
  world_->Revive();
  ASSERT_TRUE(world_->UntilPaths(4)) << a().log();
  GoOn();
  End();
}

TEST_F(VerbsDriverTest, SlotsAreRevokedWhileTheirWritesHang) {
  WorldOptions options = Rails(2);
  options.revoked = 0.05;
  Talk(options, 4);
  for (int i = 0; i < 3; ++i) {
    a().host().Hang("fake0", 0);
    b().host().Hang("fake1", 0);
    GoOn();
    a().host().Hang("fake0", 0, false);
    b().host().Hang("fake1", 0, false);
    ASSERT_TRUE(world_->UntilPaths(4));
  }
  End();
}

TEST_F(VerbsDriverTest, FewReceivesAreNeverOverrun) {
  WorldOptions options = Patient(Rails(1));
  options.driver.queue_pair.receives = 4;
  options.driver.queue_pair.rnr_retry = 0;   // a peer that is not ready breaks the queue pair
  Talk(options, 2);
  GoOn(300);
  EXPECT_EQ(a().driver().queue_pairs_broken() + b().driver().queue_pairs_broken(), 0u) << a().log() << b().log();
  End();
}

TEST_F(VerbsDriverTest, ACompletionQueueThatIsFullRefusesFurtherQueuePairsWithTheReason) {
  WorldOptions options = Patient(Rails(1));
  options.driver.cq_entries = 200;   // one queue pair needs 128
  Talk(options, 1);
  EXPECT_EQ(a().Logged("completion queue"), 1u) << a().log();
  GoOn(200);
  EXPECT_EQ(a().paths(), 1u);
  EXPECT_EQ(b().Logged("completion queue"), 1u) << b().log();
  End();
}

TEST_F(VerbsDriverTest, HundredsOfQueuePairsComeAndGoAndLeaveNothing) {
  WorldOptions options = Rails(2);
  options.fabric.reuse_qp_numbers = true;
  Talk(options, 4);
  for (int cycle = 0; cycle < 100; ++cycle) {
    const int rail = cycle % 2;
    if (cycle % 4 < 2) {
      fabric().PortDown(a().port(rail));
      fabric().PortUp(a().port(rail));
    } else {
      CutRail(rail, Cut::kFail);
      GoOn(4);
      MendRail(rail);
    }
    GoOn(4);
    ASSERT_TRUE(world_->UntilPaths(4)) << cycle << "\n" << a().log();
    ASSERT_LE(fabric().live().queue_pairs, 8u);
  }
  EXPECT_GE(a().driver().queue_pairs_broken() + b().driver().queue_pairs_broken(), 200u);
  End();
}

}  // namespace
}  // namespace sluice::rdma
