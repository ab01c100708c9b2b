#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/nodes.h"

namespace sluice::sim {
namespace {

constexpr TimeNs kTick = 20 * kMillisecond;
constexpr uint64_t kLinkBytes = 20000;
constexpr TimeNs kPost = 10 * kMicrosecond;  // from the stream's loop to the lanes'

}  // namespace

std::string ServerNode::NodeName(uint32_t number) { return absl::StrCat("s", number); }

ServerNode::ServerNode(World* world, uint32_t number) : world_(world), number_(number), name_(NodeName(number)) {}

ServerNode::~ServerNode() {
  if (alive()) Crash();
}

void ServerNode::Start() {
  ++lives_;
  world_->note(absl::StrCat(name_, " starts its life ", lives_));
  life_ = std::make_shared<bool>(true);
  report_ = {};
  probes_.clear();
  proto::Register identity;
  identity.set_role(proto::ROLE_SERVER);
  identity.set_id(name_);
  identity.set_incarnation(lives_);
  if (world_->scenario->hosts > 0) identity.set_host(absl::StrCat("h", number_ % world_->scenario->hosts));
  for (uint32_t i = 0; i < world_->scenario->lanes; ++i) {
    auto lane = std::make_unique<Lane>();
    lane->recorder = std::make_unique<ServerRecorder>(number_, i, world_->history);
    lane->endpoint =
        world_->network->CreateEndpoint(absl::StrCat(name_, "/", i, ".", lives_), world_->scenario->limits);
    server::ServerCoreOptions options;
    options.id = name_;
    options.lane = i;
    options.incarnation = lives_;
    options.data = world_->scenario->server_data;
    options.request_plan = [this](uint32_t) { member_->RequestPlan(); };
    options.probed = [this](const proto::ProbeResult& result) {
      probes_.push_back(result);
      member_->RequestPlan();
    };
    options.observer = lane->recorder.get();
    lane->core = server::ServerCore::Create(std::move(options), lane->endpoint.get(), world_->clock);
    lane->turn = std::make_unique<Turn>(world_, [core = lane->core.get()] { core->OnTurnEnd(); });
    lane->tap = std::make_unique<Tap>(lane->core.get(), lane->turn.get());
    lane->liar = std::make_unique<LyingCopies>(lane->endpoint.get(), lane->tap.get());
    lane->endpoint->SetHandler(world_->lying_copies ? static_cast<transport::Handler*>(lane->liar.get()) : lane->tap.get());
    transport::Hello self;
    self.role = transport::PeerRole::kServer;
    self.index = number_;
    self.lane = i;
    self.name = name_;
    lane->endpoint->Listen(self);
    lane->turn->Every(kTick, [core = lane->core.get()] { core->OnTick(); });
    proto::Address* address = identity.add_lanes();
    address->set_host(lane->endpoint->name());
    address->set_port(1);  // means nothing here; the scheduler wants one
    lanes_.push_back(std::move(lane));
  }
  stream_ = std::make_unique<MemberStream>(world_, name_, [] {});
  member_ = std::make_unique<control::MemberCore>(identity, kSchedulerName, 60 * kSecond, world_->clock,
                                                  stream_->output(), this);
  stream_->Bind(member_.get());
  ticks_ = std::make_unique<Turn>(world_, [] {});
  ticks_->Every(kTick, [this] { member_->OnTick(); });
  member_->Start();
}

void ServerNode::Crash() {
  world_->network->Crash(name_);
  life_.reset();
  ticks_.reset();
  member_.reset();
  stream_.reset();
  for (const auto& lane : lanes_) {
    lane->endpoint.reset();
    lane->core.reset();
  }
  lanes_.clear();
}

std::string ServerNode::Waiting() const {
  std::string text;
  for (const auto& lane : lanes_) {
    if (const std::string waits = lane->core->stats().waiting_for; !waits.empty())
      absl::StrAppend(&text, text.empty() ? "" : ", ", name_, ": ", waits);
  }
  return text;
}

void ServerNode::OnPlan(const proto::Plan& plan) {
  for (const auto& lane : lanes_) {
    world_->network->Schedule(kPost, [core = lane->core.get(), turn = lane->turn.get(), plan,
                                      life = std::weak_ptr<bool>(life_)] {
      if (life.expired()) return;
      core->OnPlan(plan);
      turn->Touch();
    });
  }
}

void ServerNode::OnRefused(const absl::Status& status) {
  world_->fail(absl::Status(status.code(), absl::StrCat(name_, " was refused: ", std::string(status.message()))));
}

// The question follows a plan on the way to the lanes, and the answer comes when all have given theirs.
void ServerNode::OnReport(const proto::ReportState& report) {
  report_ = {report.request(), false, {}};
  world_->network->Schedule(kPost, [this, request = report.request(), job = report.job(),
                                    life = std::weak_ptr<bool>(life_)] {
    if (life.expired() || request != report_.request) return;
    for (const auto& lane : lanes_) lane->core->ReportState(job, &report_.states);
    report_.ready = true;
    member_->RequestPlan();  // a heartbeat at once
  });
}

void ServerNode::OnProbe(const proto::Probe& probe) {
  world_->network->Schedule(kPost, [this, probe, life = std::weak_ptr<bool>(life_)] {
    if (!life.expired()) lanes_.front()->core->OnProbe(probe);
  });
}

void ServerNode::FillHeartbeat(proto::Heartbeat* heartbeat) {
  for (proto::ProbeResult& result : probes_) *heartbeat->add_probes() = std::move(result);
  probes_.clear();
  for (const auto& lane : lanes_) {
    heartbeat->set_round(std::max(heartbeat->round(), lane->core->stats().max_round));
    for (const proto::ReplicaState& state : lane->core->ReplicaStates()) *heartbeat->add_replicas() = state;
    // Nobody's CPU time is known here: what payload takes of a slow link is the load.
    proto::ServerCost* cost = heartbeat->mutable_cost();
    for (const proto::ShardCost& shard : lane->core->costs()) {
      cost->set_net_bytes_in(cost->net_bytes_in() + shard.bytes_in());
      cost->set_net_bytes_out(cost->net_bytes_out() + shard.bytes_out());
      *cost->add_shards() = shard;
    }
    cost->set_link_bytes(kLinkBytes);
  }
  if (!report_.ready || report_.request != heartbeat->report_request()) {
    heartbeat->set_report_request(0);  // it comes with a later one
    return;
  }
  *heartbeat->mutable_partitions() = report_.states.partitions();
  report_ = {};
}

absl::Status ServerNode::CheckIdle() const {
  if (!alive()) return absl::OkStatus();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const server::ServerCoreStats stats = lanes_[i]->core->stats();
    if (stats.pool_used != 0 || stats.oversize_used != 0 || stats.waiting != 0)
      return absl::InternalError(absl::StrCat(name_, " lane ", i, " still holds ", stats.pool_used,
                                              " bytes of its pool and ", stats.waiting, " announcements at the end"));
    if (stats.oversize_peak > world_->scenario->server_data.pool_bytes())
      return absl::InternalError(absl::StrCat(name_, " lane ", i, " took ", stats.oversize_peak, " bytes beside its pool"));
    if (stats.pool_peak > world_->scenario->server_data.pool_bytes())
      return absl::InternalError(absl::StrCat(name_, " lane ", i, " held ", stats.pool_peak, " bytes of a pool of ",
                                              world_->scenario->server_data.pool_bytes()));
  }
  return absl::OkStatus();
}

}  // namespace sluice::sim
