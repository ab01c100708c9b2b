#include "server/lane.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/cpu_time.h"
#include "base/host.h"
#include "base/status_macros.h"
#include "rdma/configure.h"
#include "transport/auto/auto_endpoint.h"
#include "transport/control/link_report.h"
#include "transport/hello.h"

namespace sluice::server {
namespace {

using transport::FrameHeader;
using transport::FrameType;
using transport::Hello;
using transport::LinkId;
using transport::PeerRole;

constexpr TimeNs kTick = 20 * kMillisecond;
constexpr uint64_t kPublishTicks = 5;
constexpr uint64_t kTableTicks = 25;   // a multiple of it; no more often than heartbeats carry them
constexpr TimeNs kFarewell = 500 * kMillisecond;   // for peers to be told that the links end

transport::AutoOptions EndpointOptions(const LaneOptions& options) {
  const proto::Config& config = *options.config;
  Hello self;
  self.role = PeerRole::kServer;
  self.lane = options.number;
  self.name = options.id;
  transport::AutoOptions result = transport::MakeAutoOptions(self, {});
  // A server always has a TCP port: the plan names it, and workers of other hosts need it. "shm" is what workers choose.
  result.choice = config.data().transport() == "tcp"    ? transport::TransportChoice::kTcp
                  : config.data().transport() == "rdma" ? transport::TransportChoice::kRdma
                                                        : transport::TransportChoice::kAuto;
  result.rails = absl::StrSplit(config.node().rails(), ',', absl::SkipWhitespace());
  result.tcp.bind_host = config.node().listen();
  result.tcp.port = config.node().data_port() == 0 ? 0 : config.node().data_port() + options.number;
  result.tcp.hash = !config.data().no_hash();
  result.advertised_host = AdvertisedHost(config.node());
  return result;
}

}  // namespace

Lane::Lane(LaneOptions options)
    : options_(std::move(options)), log_(absl::StrCat("server ", options_.id, " loop ", options_.number)) {}

Lane::~Lane() {
  Stop(absl::UnavailableError("the server ends"));
  Join();
}

absl::StatusOr<std::unique_ptr<Lane>> Lane::Create(LaneOptions options) {
  std::unique_ptr<Lane> lane(new Lane(std::move(options)));
  SLUICE_RETURN_IF_ERROR(lane->Listen());
  return lane;
}

absl::Status Lane::Listen() {
  SLUICE_ASSIGN_OR_RETURN(loop_, transport::Loop::Create());
  loop_->set_spin(options_.config->data().spin_us() * kMicrosecond);
  transport::AutoOptions endpoint = EndpointOptions(options_);
  endpoint.log = [this](const std::string& text) { log_.Info(text); };
  rdma::Configure(options_.config->rdma(), &endpoint);
  // Whoever connects and does not speak our protocol: said once a second at most, whatever comes.
  const auto refused = [this](const absl::Status& why) {
    ++refused_peers_;
    if (refused_limit_.Allow(options_.clock->Now())) log_.Warn("refused a peer: ", why.message(), refused_limit_.Suffix());
  };
  endpoint.tcp.refused = refused;
  endpoint.shm.refused = refused;
  auto created = transport::AutoEndpoint::Create(loop_.get(), options_.clock, std::move(endpoint));
  if (!created.ok()) {
    return absl::Status(created.status().code(),
                        absl::StrCat("loop ", options_.number, ": ", created.status().message(),
                                     options_.config->node().data_port() != 0
                                         ? "; loop i listens on node.data_port + i (0 = any free port)"
                                         : ""));
  }
  address_ = (*created)->local_address();
  if (options_.config->data().transport() == "shm" && address_.unix_socket.empty()) {
    return absl::FailedPreconditionError("data.transport is shm, and this system does not allow shared memory: see above");
  }
  endpoint_ = *std::move(created);
  endpoint_->SetHandler(this);
  ServerCoreOptions core;
  core.id = options_.id;
  core.lane = options_.number;
  core.data = options_.config->data();
  core.request_plan = options_.request_plan;
  core.probed = options_.probed;
  if (options_.track != nullptr) {
    trace_ = std::make_unique<LaneTrace>(options_.track, options_.clock);
    core.observer = trace_.get();
  }
  core_ = ServerCore::Create(std::move(core), endpoint_.get(), options_.clock);
  loop_->AtTurnEnd([this] {
    if (core_ != nullptr) core_->OnTurnEnd();
  });
  loop_->After(kTick, [this] { Tick(); });
  return absl::OkStatus();
}

void Lane::Start() {
  thread_ = std::thread([this] {
    loop_->Run();
    // Here, where all of it has lived.
    core_.reset();
    endpoint_.reset();
  });
}

void Lane::Post(std::function<void(ServerCore&)> fn) {
  loop_->Post([this, fn = std::move(fn)] {
    if (core_ != nullptr && !stopping_) fn(*core_);
  });
}

void Lane::Stop(const absl::Status& reason) {
  if (loop_ == nullptr) return;
  loop_->Post([this, reason] {
    if (std::exchange(stopping_, true)) return;
    stop_by_ = options_.clock->Now() + kFarewell;
    std::vector<LinkId> links;
    for (const auto& [link, state] : links_) links.push_back(link);
    for (const LinkId link : links) endpoint_->Close(link, reason);
    EndWhenQuiet();
  });
}

void Lane::EndWhenQuiet() {
  if (links_.empty() || options_.clock->Now() >= stop_by_) {
    loop_->Stop();
    return;
  }
  loop_->After(5 * kMillisecond, [this] { EndWhenQuiet(); });
}

void Lane::Join() {
  if (thread_.joinable()) thread_.join();
}

void Lane::Tick() {
  if (!stopping_) core_->OnTick();
  if (ticks_ % kTableTicks == 0) tables_ = std::make_shared<const std::vector<TableStats>>(core_->table_stats());
  if (ticks_ % kTableTicks == 0) LookAtPaths();
  if (ticks_++ % kPublishTicks == 0) Publish();
  loop_->After(kTick, [this] { Tick(); });
}

void Lane::LookAtPaths() {
  paths_ = std::make_shared<const transport::PathTotals>(endpoint_->Totals());
  auto report = std::make_shared<proto::LinkReport>();
  std::vector<LinkId> links;
  for (const auto& [link, state] : links_)
    if (!core_->Probing(link)) links.push_back(link);
  std::sort(links.begin(), links.end());
  for (const LinkId link : links) {
    const bool full = report->paths_size() >= control::kMaxReportedPaths;   // then it is only counted, as one path
    control::AddLink(links_[link].name, links_[link].id, full ? std::vector<transport::PathRow>(1) : endpoint_->Rows(link), report.get());
  }
  link_report_ = std::move(report);
}

void Lane::Publish() {
  LaneStats stats;
  stats.core = core_->stats();
  stats.tables = tables_;
  stats.paths = paths_;
  stats.link_report = link_report_;
  stats.replicas = core_->ReplicaStates();
  stats.costs = core_->costs();
  if (options_.config->data().spin_us() == 0) stats.cpu_us = static_cast<uint64_t>(ThreadCpuTime() / kMicrosecond);
  stats.wire_in = closed_in_;
  stats.wire_out = closed_out_;
  stats.net_in = net_closed_in_;
  stats.net_out = net_closed_out_;
  stats.links = links_.size();
  stats.refused_peers = refused_peers_;
  for (auto& [link, state] : links_) {
    const transport::LinkStats wire = endpoint_->Stats(link);
    state.bytes_in = wire.bytes_in;
    state.bytes_out = wire.bytes_out;
    stats.wire_in += wire.bytes_in;
    stats.wire_out += wire.bytes_out;
    if (!state.net) continue;
    stats.net_in += wire.bytes_in;
    stats.net_out += wire.bytes_out;
  }
  published_.Set(std::move(stats));
}

void Lane::OnUp(LinkId link, const Hello& peer) {
  const transport::LinkStats wire = endpoint_->Stats(link);
  LinkState& state = links_[link];
  state.net = wire.kind == "tcp";
  state.name = transport::DebugString(peer);
  state.id = peer.name;
  state.peer = absl::StrCat(state.name, " over ", wire.kind, " from ", wire.peer);
  log_.Info(state.peer, " connected");
  core_->OnUp(link, peer);
}

void Lane::OnDown(LinkId link, const absl::Status& reason) {
  if (const auto it = links_.find(link); it != links_.end()) {
    log_.Info(it->second.peer, " is gone: ", reason.message());
    closed_in_ += it->second.bytes_in;
    closed_out_ += it->second.bytes_out;
    if (it->second.net) {
      net_closed_in_ += it->second.bytes_in;
      net_closed_out_ += it->second.bytes_out;
    }
    links_.erase(it);
  } else {
    log_.Warn("cannot reach another server: ", reason.message());
  }
  core_->OnDown(link, reason);
}

void Lane::OnFrame(LinkId link, const FrameHeader& header, transport::Payload payload) {
  if (header.type == FrameType::kPush || header.type == FrameType::kBatch) {
    const TraceScope scope(options_.track, options_.clock, "add",
                           {.tensor = header.tensor, .partition = header.partition, .round = header.round, .rank = header.rank});
    core_->OnFrame(link, header, std::move(payload));
    return;
  }
  core_->OnFrame(link, header, std::move(payload));
}

void Lane::OnSent(LinkId link, uint64_t cookie) { core_->OnSent(link, cookie); }
void Lane::OnSlotClosed(LinkId link, transport::SlotId slot) { core_->OnSlotClosed(link, slot); }
void Lane::OnWritable(LinkId link) { core_->OnWritable(link); }

}  // namespace sluice::server
