// What members say of their links: shown while they are there, and never more than the bounds.
#include "scheduler/core_harness.h"
#include "transport/control/link_report.h"

namespace sluice::scheduler {
namespace {

class LinksTest : public CoreHarness {
 protected:
  void Say(SessionId session, const std::optional<proto::LinkReport>& report) {
    proto::MemberMessage message;
    message.mutable_heartbeat()->set_sequence(1);
    if (report.has_value()) *message.mutable_heartbeat()->mutable_links() = *report;
    core_->OnMessage(session, message);
  }
  static proto::LinkReport Report(const std::string& peer, int paths) {
    proto::LinkReport report;
    for (int i = 0; i < paths; ++i) {
      report.add_paths()->set_peer(peer);
      report.mutable_paths(i)->set_kind("tcp");
    }
    return report;
  }
};

TEST_F(LinksTest, EachMemberIsShownAsItSpokeLast) {
  StartCore();
  const SessionId server = Connect(ServerReg("s0"));
  const SessionId worker = Connect(WorkerReg("w0", 0));
  EXPECT_EQ(core_->ListLinks().members_size(), 0);
  Say(worker, Report("server s0", 2));
  Say(server, Report("worker 0", 1));
  Say(server, Report("worker 1", 1));
  Say(server, std::nullopt);   // as it was
  const proto::LinkList list = core_->ListLinks();
  ASSERT_EQ(list.members_size(), 2);
  EXPECT_EQ(list.members(0).role(), proto::ROLE_SERVER);
  EXPECT_EQ(list.members(0).id(), "s0");
  EXPECT_EQ(list.members(0).rank(), -1);
  ASSERT_EQ(list.members(0).report().paths_size(), 1);
  EXPECT_EQ(list.members(0).report().paths(0).peer(), "worker 1");
  EXPECT_EQ(list.members(1).job(), "j");
  EXPECT_EQ(list.members(1).rank(), 0);
  EXPECT_EQ(list.members(1).report().paths_size(), 2);
  core_->OnSessionClosed(server);
  EXPECT_EQ(core_->ListLinks().members_size(), 1);
}

TEST_F(LinksTest, NoHeartbeatMakesTheSchedulerKeepMoreThanTheBounds) {
  StartCore();
  const SessionId server = Connect(ServerReg("s0"));
  for (int i = 0; i < 3; ++i) Say(server, Report(std::string(100000, 'p'), 1000));
  const proto::LinkList list = core_->ListLinks();
  ASSERT_EQ(list.members_size(), 1);
  EXPECT_EQ(list.members(0).report().paths_size(), control::kMaxReportedPaths);
  EXPECT_EQ(list.members(0).report().left_out(), 1000u - control::kMaxReportedPaths);
  EXPECT_EQ(list.members(0).report().paths(0).peer().size(), control::kMaxPeerBytes);
}

}  // namespace
}  // namespace sluice::scheduler
