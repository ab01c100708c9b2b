#include "ctl/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace sluice::ctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A scheduler that knows of probes and nothing else.
class FakeScheduler final : public AdminClient {
 public:
  absl::StatusOr<proto::EventList> ListEvents(uint64_t after, uint32_t) override {
    proto::EventList list;
    for (const proto::Event& event : events)
      if (event.number() > after) *list.add_events() = event;
    return list;
  }
  absl::StatusOr<proto::ProbeLinksAnswer> ProbeLinks(const proto::ProbeLinksRequest& request) override {
    asked = request;
    return answer;
  }
  absl::StatusOr<proto::LinkList> ListLinks() override {
    proto::LinkList list;
    proto::LinkEstimate* estimate = list.add_estimates();
    estimate->set_from("r1");
    estimate->set_to("core");
    estimate->set_source("measured");
    return list;
  }
  void Note(const std::string& kind, const std::string& text) {
    events.emplace_back();
    events.back().set_number(events.size());
    events.back().set_kind(kind);
    events.back().set_text(text);
  }

  absl::StatusOr<proto::Cluster> GetCluster() override { return No(); }
  absl::StatusOr<proto::ShardList> ListShards(const std::string&) override { return No(); }
  absl::StatusOr<proto::WorkerList> ListWorkers(const std::string&) override { return No(); }
  absl::StatusOr<proto::TensorList> ListTensors(const std::string&) override { return No(); }
  absl::StatusOr<proto::TableList> ListTables(const std::string&) override { return No(); }
  absl::StatusOr<proto::Plan> GetPlan(const std::string&) override { return No(); }
  absl::StatusOr<proto::Explanation> ExplainPlan(const std::string&) override { return No(); }
  absl::StatusOr<proto::EffectiveConfig> GetConfig(const std::string&) override { return No(); }
  absl::StatusOr<proto::JobStatus> AbortJob(const std::string&, const std::string&) override { return No(); }
  absl::StatusOr<proto::MoveList> MoveShard(const std::string&, uint32_t, const std::string&) override { return No(); }
  absl::StatusOr<proto::RebalanceAnswer> Rebalance(const std::string&, bool) override { return No(); }
  absl::StatusOr<proto::MoveList> ListMoves(const std::string&) override { return No(); }
  absl::StatusOr<proto::MoveList> PauseMoves(const std::string&) override { return No(); }
  absl::StatusOr<proto::MoveList> ResumeMoves(const std::string&) override { return No(); }
  absl::StatusOr<proto::MoveList> CancelMoves(const std::string&) override { return No(); }
  absl::StatusOr<proto::DrainStatus> Drain(const std::string&) override { return No(); }
  absl::StatusOr<proto::DrainStatus> Undrain(const std::string&) override { return No(); }
  absl::StatusOr<proto::DrainStatus> GetDrain(const std::string&) override { return No(); }
  absl::Status WatchEvents(uint64_t, const std::function<bool(const proto::Event&)>&) override { return No(); }

  std::vector<proto::Event> events;
  proto::ProbeLinksRequest asked;
  absl::StatusOr<proto::ProbeLinksAnswer> answer = proto::ProbeLinksAnswer();

 private:
  static absl::Status No() { return absl::UnimplementedError("not asked for"); }
};

class ProbeTest : public ::testing::Test {
 protected:
  ProbeTest() {
    scheduler_.Note("probe_done", "request 7: an older one with the same number");
    scheduler_.answer->set_request(7);
    scheduler_.answer->set_pairs(2);
    scheduler_.answer->set_bytes(16 << 20);
  }
  absl::StatusOr<Probing> Probe(const std::function<void(int)>& meanwhile) {
    int pauses = 0;
    return ProbeAndWait({}, &scheduler_, &clock_, [&](TimeNs time) {
      clock_.Advance(time);
      meanwhile(++pauses);
    });
  }
  ManualClock clock_;
  FakeScheduler scheduler_;
};

TEST_F(ProbeTest, WaitsForTheEndOfItsOwnRequest) {
  const auto probing = Probe([&](int pauses) {
    if (pauses == 1) scheduler_.Note("probe_done", "request 6: probed 1 pair");
    if (pauses == 2) scheduler_.Note("probe_failed", "request 7: server a -> server b: gone");
    if (pauses == 3) scheduler_.Note("probe_done", "request 7: probed 1 pair in 0.4 s; 1 failed");
    ASSERT_LT(pauses, 4);
  });
  ASSERT_TRUE(probing.ok()) << probing.status();
  EXPECT_EQ(probing->summary, "probed 1 pair in 0.4 s; 1 failed");
  EXPECT_THAT(probing->failures, ElementsAre("server a -> server b: gone"));
  const std::string text = RenderProbing(*probing);
  EXPECT_THAT(text, HasSubstr("probed 1 pair in 0.4 s; 1 failed\nfailed: server a -> server b: gone\n\n"));
  EXPECT_THAT(text, HasSubstr("1 of 1 measured"));
  const nlohmann::json json = nlohmann::json::parse(ProbingJson(*probing));
  EXPECT_EQ(json["probe"]["answer"]["pairs"], 2);
  EXPECT_EQ(json["probe"]["failures"].size(), 1u);
  EXPECT_EQ(json["estimates"][0]["from"], "r1");
}

TEST_F(ProbeTest, WaitsForSoLongOnly) {
  int pauses = 0;
  const auto probing = Probe([&](int n) { pauses = n; });
  EXPECT_EQ(probing.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(probing.status().message(), HasSubstr("request 7: no end of the probes within 57 s"));
  EXPECT_LT(pauses, 600);
}

TEST_F(ProbeTest, NothingToProbeIsSaidAtOnceWithWhatIsOutOfReach) {
  scheduler_.answer->set_pairs(0);
  for (int i = 0; i < 21; ++i) scheduler_.answer->add_unreachable(absl::StrCat("n", i, " -> r3"));
  const auto probing = Probe([](int) { FAIL() << "nothing to wait for"; });
  ASSERT_TRUE(probing.ok()) << probing.status();
  EXPECT_THAT(RenderProbing(*probing), HasSubstr("nothing to probe"));
  EXPECT_THAT(RenderProbing(*probing), HasSubstr("n19 -> r3, … (21)"));
}

TEST_F(ProbeTest, ARefusalIsHandedOn) {
  scheduler_.answer = absl::FailedPreconditionError("links are being probed already");
  EXPECT_THAT(Probe([](int) {}).status().message(), HasSubstr("already"));
}

}  // namespace
}  // namespace sluice::ctl
