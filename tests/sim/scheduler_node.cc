#include "absl/strings/str_cat.h"
#include "tests/sim/nodes.h"

namespace sluice::sim {
namespace {

constexpr TimeNs kTick = 50 * kMillisecond;

}  // namespace

void SchedulerNode::Start() {
  scheduler::SchedulerOutput output;
  output.send = [this](scheduler::SessionId session, const proto::SchedulerMessage& message) {
    world_->network->SendMessage(session, message.SerializeAsString());
  };
  output.close = [this](scheduler::SessionId session, const absl::Status& status) {
    world_->note(absl::StrCat("scheduler ends a stream: ", status.ToString()));
    world_->network->CloseChannel(session, status);
  };
  auto core = scheduler::SchedulerCore::Create(
      world_->scenario->node, &store_, world_->clock, [this] { return world_->clock->Now() / kMillisecond; },
      world_->scenario->seed, std::move(output));
  if (!core.ok()) {
    world_->fail(core.status());
    return;
  }
  core_ = *std::move(core);
  core_->set_rack_trees(world_->scenario->hosts > 0);
  ticks_ = std::make_unique<Turn>(world_, [] {});
  ticks_->Every(kTick, [this] { core_->OnTick(); });
  world_->network->Serve(kSchedulerName, this);
}

void SchedulerNode::Crash() {
  world_->network->Crash(kSchedulerName);
  ticks_.reset();
  core_.reset();
}

std::optional<proto::Plan> SchedulerNode::Plan() const {
  if (core_ == nullptr) return std::nullopt;
  absl::StatusOr<proto::Plan> plan = core_->GetPlan(world_->scenario->job.name());
  if (!plan.ok()) return std::nullopt;
  return *std::move(plan);
}

void SchedulerNode::OnChannelUp(transport::ChannelEnd end, const std::string& peer) {
  core_->OnSessionOpen(end, peer);
}

void SchedulerNode::OnChannelDown(transport::ChannelEnd end, const absl::Status& status) {
  (void)status;
  core_->OnSessionClosed(end);
}

void SchedulerNode::OnChannelMessage(transport::ChannelEnd end, std::string message) {
  proto::MemberMessage parsed;
  if (!parsed.ParseFromString(message)) {
    world_->fail(absl::InternalError("a member sent what is no message"));
    return;
  }
  core_->OnMessage(end, parsed);
}

}  // namespace sluice::sim
