#include "transport/control/member_core.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FakeListener : public MemberCore::Listener {
 public:
  void OnWelcome(const proto::Welcome& welcome) override { welcomes.push_back(welcome); }
  void OnPlan(const proto::Plan& plan) override { plans.push_back(plan.version()); }
  void OnRefused(const absl::Status& status) override { refusals.push_back(status); }
  void OnReport(const proto::ReportState& report) override { reports.push_back(report.request()); }
  void OnShutdown(const std::string& why) override { shutdowns.push_back(why); }
  void OnProbe(const proto::Probe& probe) override { probes.push_back(probe.request()); }
  void FillHeartbeat(proto::Heartbeat* heartbeat) override {
    heartbeat->set_round(42);
    if (!report_ready) heartbeat->set_report_request(0);
  }

  std::vector<proto::Welcome> welcomes;
  std::vector<uint64_t> plans;
  std::vector<absl::Status> refusals;
  std::vector<uint32_t> reports;
  std::vector<std::string> shutdowns;
  std::vector<uint64_t> probes;
  bool report_ready = true;
};

class MemberCoreTest : public testing::Test {
 protected:
  MemberCoreTest() {
    proto::Register identity;
    identity.set_role(proto::ROLE_WORKER);
    identity.set_id("host:17");
    identity.set_incarnation(5);
    identity.set_rank(-1);
    core_ = std::make_unique<MemberCore>(
        identity, "10.0.0.1:7700", 10 * kSecond, &clock_,
        MemberCore::Output{[this](const proto::MemberMessage& m) { sent_.push_back(m); },
                           [this](TimeNs delay) { reconnects_.push_back(delay); }},
        &listener_);
  }

  void Welcome() {
    proto::SchedulerMessage message;
    message.mutable_welcome()->set_rank(3);
    message.mutable_welcome()->set_incarnation(9);
    message.mutable_welcome()->set_heartbeat_ms(200);
    message.mutable_welcome()->set_lease_ms(2000);
    core_->OnMessage(message);
  }
  void Admit() {
    core_->Start();
    core_->OnStreamUp();
    Welcome();
    sent_.clear();
    reconnects_.clear();
  }
  void Plan(uint64_t version, uint32_t term = 1) {
    proto::SchedulerMessage message;
    message.mutable_plan()->set_job(1);
    message.mutable_plan()->set_version(version);
    message.mutable_plan()->add_shards()->set_term(term);
    core_->OnMessage(message);
  }
  void Answer(uint64_t request, int code = 0) {
    proto::SchedulerMessage message;
    message.mutable_done()->set_request(request);
    message.mutable_done()->set_code(code);
    core_->OnMessage(message);
  }
  void Report(uint32_t request) {
    proto::SchedulerMessage message;
    message.mutable_report()->set_request(request);
    message.mutable_report()->set_job(1);
    core_->OnMessage(message);
  }

  ManualClock clock_;
  FakeListener listener_;
  std::vector<proto::MemberMessage> sent_;
  std::vector<TimeNs> reconnects_;
  std::unique_ptr<MemberCore> core_;
};

TEST_F(MemberCoreTest, RegistersFirstAndTakesWhatWelcomeGives) {
  core_->Start();
  EXPECT_THAT(reconnects_, ElementsAre(0));
  EXPECT_THAT(sent_, IsEmpty());
  core_->OnStreamUp();
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].register_().protocol(), kProtocolVersion);
  EXPECT_EQ(sent_[0].register_().version(), kReleaseVersion);
  EXPECT_EQ(sent_[0].register_().incarnation(), 5u);
  EXPECT_EQ(sent_[0].register_().rank(), -1);
  Welcome();
  EXPECT_TRUE(core_->welcomed());
  ASSERT_EQ(listener_.welcomes.size(), 1u);

  Plan(7, 4);
  core_->OnStreamDown(absl::UnavailableError("cut"));
  core_->OnStreamUp();
  const proto::Register& again = sent_.back().register_();
  EXPECT_EQ(again.rank(), 3);
  EXPECT_EQ(again.incarnation(), 9u);
  EXPECT_EQ(again.plan_version(), 7u);
  EXPECT_EQ(again.max_term(), 4u);
}

TEST_F(MemberCoreTest, BackOffDoublesFromFiftyMillisecondsToTwoSecondsAndStartsAnewAfterWelcome) {
  Admit();
  for (int i = 0; i < 8; ++i) core_->OnStreamDown(absl::UnavailableError("refused"));
  EXPECT_THAT(reconnects_, ElementsAre(50 * kMillisecond, 100 * kMillisecond, 200 * kMillisecond, 400 * kMillisecond,
                                       800 * kMillisecond, 1600 * kMillisecond, 2 * kSecond, 2 * kSecond));
  core_->OnStreamUp();
  Welcome();
  reconnects_.clear();
  core_->OnStreamDown(absl::UnavailableError("cut"));
  EXPECT_THAT(reconnects_, ElementsAre(50 * kMillisecond));
}

TEST_F(MemberCoreTest, GivesUpAfterConnectTimeoutNamingAddressTimeAndWhatToCheck) {
  core_->Start();
  core_->OnStreamDown(absl::UnavailableError("connection refused"));
  clock_.Advance(4 * kSecond);
  EXPECT_THAT(core_->Waiting(), HasSubstr("10.0.0.1:7700: no answer for 4.0 s of 10.0 s"));
  EXPECT_THAT(core_->Waiting(), HasSubstr("connection refused"));
  core_->OnTick();
  EXPECT_THAT(listener_.refusals, IsEmpty());
  clock_.Advance(6 * kSecond);
  core_->OnTick();
  ASSERT_EQ(listener_.refusals.size(), 1u);
  EXPECT_EQ(listener_.refusals[0].code(), absl::StatusCode::kDeadlineExceeded);
  for (const char* part : {"10.0.0.1:7700", "10.0 s", "connection refused", "doctor"})
    EXPECT_THAT(std::string(listener_.refusals[0].message()), HasSubstr(part));
  core_->OnStreamUp();
  core_->OnTick();
  EXPECT_THAT(sent_, IsEmpty());
  EXPECT_EQ(listener_.refusals.size(), 1u);
}

TEST_F(MemberCoreTest, AStreamThatAdmitsNobodyEndsAtConnectTimeoutToo) {
  core_->Start();
  core_->OnStreamUp();
  clock_.Advance(10 * kSecond);
  EXPECT_THAT(core_->Waiting(), HasSubstr("not admitted"));
  core_->OnTick();
  ASSERT_EQ(listener_.refusals.size(), 1u);
  EXPECT_THAT(std::string(listener_.refusals[0].message()), HasSubstr("not admitted"));
}

TEST_F(MemberCoreTest, TriesForEverOnceItWasWelcome) {
  Admit();
  for (int i = 0; i < 1000; ++i) {
    clock_.Advance(kSecond);
    core_->OnStreamDown(absl::UnavailableError("gone"));
    core_->OnTick();
  }
  EXPECT_THAT(listener_.refusals, IsEmpty());
  EXPECT_EQ(reconnects_.size(), 1000u);
  EXPECT_THAT(core_->Waiting(), HasSubstr("connection lost 999.0 s ago"));
}

TEST_F(MemberCoreTest, PermanentCodesRefuseBeforeAndAfterWelcomeAndAnswerWhatWaits) {
  for (bool admitted : {false, true}) {
    for (absl::StatusCode code :
         {absl::StatusCode::kFailedPrecondition, absl::StatusCode::kAlreadyExists, absl::StatusCode::kInvalidArgument,
          absl::StatusCode::kPermissionDenied, absl::StatusCode::kUnauthenticated}) {
      FakeListener listener;
      int reconnects = 0;
      MemberCore core({}, "s:1", kSecond, &clock_, {[](const auto&) {}, [&](TimeNs) { ++reconnects; }}, &listener);
      core.Start();
      core.OnStreamUp();
      if (admitted) core.OnMessage([] { proto::SchedulerMessage m; m.mutable_welcome(); return m; }());
      int answered = 0;
      core.Barrier("b", 0, [&](const proto::RequestDone& done) { answered = done.code(); });
      core.OnStreamDown(absl::Status(code, "no"));
      ASSERT_EQ(listener.refusals.size(), 1u);
      EXPECT_EQ(listener.refusals[0], absl::Status(code, "no"));
      EXPECT_EQ(answered, static_cast<int>(code));
      EXPECT_EQ(reconnects, 1);  // that of Start
      int late = 0;
      core.Barrier("c", 0, [&](const proto::RequestDone& done) { late = done.code(); });
      EXPECT_EQ(late, static_cast<int>(code));
    }
  }
}

TEST_F(MemberCoreTest, HeartbeatsWhenDueAndOnlyWhenWelcome) {
  core_->Start();
  core_->OnStreamUp();
  clock_.Advance(kSecond);
  core_->OnTick();
  EXPECT_EQ(sent_.size(), 1u);  // Register alone
  Welcome();
  sent_.clear();
  clock_.Advance(199 * kMillisecond);
  core_->OnTick();
  EXPECT_THAT(sent_, IsEmpty());
  clock_.Advance(kMillisecond);
  core_->OnTick();
  core_->OnTick();
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].heartbeat().sequence(), 1u);
  EXPECT_EQ(sent_[0].heartbeat().round(), 42u);
  core_->RequestPlan();
  EXPECT_EQ(sent_.size(), 2u);
}

TEST_F(MemberCoreTest, PlansGoUpwardsOnlyAndEveryOneIsAcknowledged) {
  Admit();
  Plan(5);
  Plan(5);
  Plan(4);
  Plan(6);
  EXPECT_THAT(listener_.plans, ElementsAre(5, 6));
  ASSERT_EQ(sent_.size(), 4u);
  EXPECT_EQ(sent_[0].plan_ack().version(), 5u);
  EXPECT_EQ(sent_[3].plan_ack().version(), 6u);
}

TEST_F(MemberCoreTest, WhoLeavesFirstSaysHowFarItCame) {
  Admit();
  core_->Leave(false, "", [](const auto&) {});
  ASSERT_GE(sent_.size(), 2u);
  EXPECT_EQ(sent_[sent_.size() - 2].heartbeat().round(), 42u);
  EXPECT_TRUE(sent_.back().has_leave());
}

TEST_F(MemberCoreTest, UnansweredRequestsAreRepeatedInOrderAfterReconnectAndAnsweredOnce) {
  std::vector<int> answers;
  core_->RegisterTensors({}, [&](const auto&) { answers.push_back(1); });
  Admit();  // the first goes out with the first welcome
  core_->Barrier("b", 0, [&](const auto&) { answers.push_back(2); });
  core_->Barrier("b", 1, [&](const auto&) { answers.push_back(3); });
  ASSERT_EQ(sent_.size(), 2u);
  Answer(2);
  core_->OnTick();  // nothing is repeated while the stream lives
  EXPECT_EQ(sent_.size(), 2u);
  core_->OnStreamDown(absl::UnavailableError("cut"));
  core_->Leave(false, "", [&](const auto&) { answers.push_back(4); });
  EXPECT_EQ(sent_.size(), 2u);
  core_->OnStreamUp();
  sent_.clear();
  Welcome();
  ASSERT_EQ(sent_.size(), 3u);
  EXPECT_EQ(sent_[0].tensors().request(), 1u);
  EXPECT_EQ(sent_[1].barrier().sequence(), 1u);
  EXPECT_TRUE(sent_[2].has_leave());
  Answer(1);
  Answer(1);
  Answer(2);
  Answer(3);
  Answer(4);
  EXPECT_THAT(answers, ElementsAre(2, 1, 3, 4));
}

TEST_F(MemberCoreTest, SaysWhichRequestWaits) {
  Admit();
  core_->Barrier("epoch", 3, [](const auto&) {});
  EXPECT_EQ(core_->Waiting(), "");
  clock_.Advance(2 * kSecond);
  EXPECT_THAT(core_->Waiting(), HasSubstr("barrier \"epoch\" number 3 unanswered for 2.0 s"));
}

TEST_F(MemberCoreTest, ReportsGoOutWithTheNextHeartbeatThatHasThemOneAfterTheOther) {
  Admit();
  Report(11);
  EXPECT_THAT(listener_.reports, ElementsAre(11));
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].heartbeat().report_request(), 11u);

  listener_.report_ready = false;
  Report(12);
  Report(13);
  EXPECT_THAT(listener_.reports, ElementsAre(11, 12));
  EXPECT_EQ(sent_.back().heartbeat().report_request(), 0u);
  listener_.report_ready = true;
  core_->RequestPlan();
  EXPECT_THAT(listener_.reports, ElementsAre(11, 12, 13));
  ASSERT_EQ(sent_.size(), 4u);
  EXPECT_EQ(sent_[2].heartbeat().report_request(), 12u);
  EXPECT_EQ(sent_[3].heartbeat().report_request(), 13u);
}

TEST_F(MemberCoreTest, AFrozenSchedulerCountsAsABrokenStream) {
  Admit();
  clock_.Advance(6 * kSecond);  // three leases of 2 s
  core_->OnTick();
  EXPECT_THAT(reconnects_, ElementsAre(50 * kMillisecond));
  EXPECT_FALSE(core_->welcomed());
  EXPECT_THAT(core_->Waiting(), HasSubstr("said nothing for 6.0 s"));
}

TEST_F(MemberCoreTest, PassesShutdownOn) {
  Admit();
  proto::SchedulerMessage message;
  message.mutable_shutdown()->set_why("all jobs ended");
  core_->OnMessage(message);
  EXPECT_THAT(listener_.shutdowns, ElementsAre("all jobs ended"));
}

TEST_F(MemberCoreTest, PassesProbesOn) {
  Admit();
  proto::SchedulerMessage message;
  message.mutable_probe()->set_request(7);
  core_->OnMessage(message);
  EXPECT_THAT(listener_.probes, ElementsAre(7u));
  EXPECT_THAT(sent_, IsEmpty());   // what comes of it is told with a heartbeat
}

}  // namespace
}  // namespace sluice::control
