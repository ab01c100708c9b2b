#include "server/daemon.h"

#include <signal.h>
#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/host.h"
#include "base/link_rate.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "transport/control/link_report.h"

namespace sluice::server {
namespace {

constexpr TimeNs kTick = 50 * kMillisecond;
constexpr uint64_t kReportTicks = 10;
constexpr size_t kMaxProbeResults = 256;            // that wait for a heartbeat
constexpr int kMaxCosts = 65536;                    // in a heartbeat; the scheduler takes no more
constexpr TimeNs kIdleGrace = 300 * kMillisecond;   // last answers reach workers that ask again

size_t LoopCount(const proto::NodeConfig& node) {
  if (node.loops() > 0) return node.loops();
  // Two at the least where there are two cores: one loop alone adds while the other core waits for it.
  const size_t cores = std::max<size_t>(1, std::thread::hardware_concurrency());
  return std::clamp<size_t>(cores / 2, std::min<size_t>(2, cores), 8);
}

// Rises from life to life; the scheduler names another one if it knows better.
uint32_t Incarnation() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

}  // namespace

Daemon::Daemon(const proto::Config& config)
    : config_(config),
      id_(config.node().id().empty() ? HostAndPid() : config.node().id()),
      log_(absl::StrCat("server ", id_)),
      registry_({{"role", "server"}, {"server", id_}}),
      path_metrics_(&clock_) {}

Daemon::~Daemon() {
  drain_.reset();     // before the loop that its answer is posted to
  session_.reset();   // before its loop; nothing runs there any more
  service_.reset();
  metrics_.reset();
  lanes_.clear();
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Create(const proto::Config& config) {
  std::unique_ptr<Daemon> daemon(new Daemon(config));
  SLUICE_RETURN_IF_ERROR(daemon->Init());
  return daemon;
}

absl::Status Daemon::Init() {
  const proto::NodeConfig& node = config_.node();
  link_bytes_ = node.link_rate_bytes() > 0 ? node.link_rate_bytes() : LinkRateOf(AdvertisedHost(node)).value_or(0);
  if (!node.trace().empty()) {
    tracer_ = std::make_unique<Tracer>(Tracer::Options{.process = absl::StrCat("server ", id_), .clock = &clock_});
  }
  for (uint32_t number = 0; number < LoopCount(node); ++number) {
    LaneOptions options;
    options.config = &config_;
    options.id = id_;
    options.number = number;
    options.clock = &clock_;
    if (tracer_ != nullptr) options.track = tracer_->AddTrack(absl::StrCat("loop ", number));
    options.request_plan = [this](uint32_t) {
      lanes_.front()->loop()->Post([this] {
        if (!ending_) member_->RequestPlan();
      });
    };
    options.probed = [this](const proto::ProbeResult& result) {
      lanes_.front()->loop()->Post([this, result] {
        if (ending_) return;
        if (!result.error().empty()) log_.Warn("a probe of a link failed: ", result.error());
        probes_.push_back(result);
        if (probes_.size() > kMaxProbeResults) probes_.pop_front();
        member_->RequestPlan();   // a heartbeat at once
      });
    };
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Lane> lane, Lane::Create(std::move(options)));
    lanes_.push_back(std::move(lane));
  }
  SLUICE_ASSIGN_OR_RETURN(service_, GrpcService::Start(node.listen(), node.port(), &plans_));
  if (node.metrics_port() >= 0) {
    AddMetrics();
    SLUICE_ASSIGN_OR_RETURN(metrics_, MetricsHttp::Start(node.listen(), node.metrics_port(), &registry_));
    log_.Info("metrics at http://", node.listen(), ":", metrics_->port(), "/metrics");
  }
  control::MemberCore::Output output;
  output.send = [this](const proto::MemberMessage& message) { session_->Send(message); };
  output.reconnect = [this](TimeNs delay) { session_->Open(delay); };
  member_.reset(new control::MemberCore(Identity(), node.scheduler(), node.connect_timeout_ms() * kMillisecond, &clock_,
                                        std::move(output), this));
  control::GrpcSession::Callbacks callbacks;
  callbacks.up = [this] { member_->OnStreamUp(); };
  callbacks.down = [this](absl::Status status) { member_->OnStreamDown(status); };
  callbacks.message = [this](proto::SchedulerMessage message) { member_->OnMessage(message); };
  session_ = control::GrpcSession::Create(node.scheduler(), lanes_.front()->loop(), std::move(callbacks));
  Drain::Env drain;
  drain.id = id_;
  drain.limit = node.drain_ms() * kMillisecond;
  drain.clock = &clock_;
  drain.log = &log_;
  drain.ask = [this](TimeNs timeout, std::function<void(absl::Status)> done) {
    return AskForDrain(timeout, std::move(done));
  };
  drain.end = [this](const std::string& why) { End(absl::OkStatus(), why); };
  drain_ = std::make_unique<Drain>(std::move(drain));
  return WritePortFile();
}

proto::Register Daemon::Identity() const {
  proto::Register identity;
  identity.set_role(proto::ROLE_SERVER);
  identity.set_version(kVersion);
  identity.set_id(id_);
  identity.set_host(TopologyHost(config_.node()));
  identity.set_incarnation(Incarnation());
  identity.set_control(absl::StrCat(AdvertisedHost(config_.node()), ":", service_->port()));
  for (const auto& lane : lanes_) {
    proto::Address* address = identity.add_lanes();
    address->set_host(lane->address().host);
    address->set_port(lane->address().port);
    address->set_unix_socket(lane->address().unix_socket);
    address->set_host_id(lane->address().host_id);
  }
  return identity;
}

// Whole or not at all: a launcher polls for it.
absl::Status Daemon::WritePortFile() const {
  const std::string& path = config_.node().port_file();
  if (path.empty()) return absl::OkStatus();
  const std::string temporary = path + ".tmp";
  {
    std::ofstream out(temporary, std::ios::trunc);
    out << service_->port();
    for (const auto& lane : lanes_) out << ' ' << lane->address().port;
    out << '\n';
    out.flush();
    if (!out) return absl::UnavailableError(absl::StrCat("cannot write node.port_file ", temporary));
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot rename ", temporary, " to node.port_file ", path));
  }
  return absl::OkStatus();
}

absl::Status Daemon::Run(Signals* signals) {
  std::string ports;
  for (const auto& lane : lanes_) absl::StrAppend(&ports, ports.empty() ? "" : ", ", lane->address().ToString());
  log_.Info("release ", kVersion, ", ", lanes_.size(), " event loops, data on ", ports, ", control on port ",
            service_->port(), ", scheduler ", config_.node().scheduler());
  lanes_.front()->loop()->Post([this, signals] { Begin(signals); });
  for (const auto& lane : lanes_) lane->Start();
  for (const auto& lane : lanes_) lane->Join();
  service_.reset();
  metrics_.reset();
  WriteTrace();
  if (outcome_.ok()) log_.Info("ended");
  return outcome_;
}

void Daemon::WriteTrace() const {
  if (tracer_ == nullptr) return;
  if (absl::Status status = tracer_->Write(config_.node().trace()); !status.ok()) {
    log_.Error("the trace was not written: ", status.message());
  } else {
    log_.Info("trace written to ", config_.node().trace());
  }
}

// --- loop 0

void Daemon::Begin(Signals* signals) {
  if (signals != nullptr) {
    absl::Status status = lanes_.front()->loop()->Watch(signals->fd(), EPOLLIN, [this, signals](uint32_t) {
      OnSignal(signals);
    });
    if (!status.ok()) return End(status, "signals cannot be watched");
  }
  member_->Start();
  Tick();
}

void Daemon::OnSignal(Signals* signals) {
  while (const std::optional<int> signal = signals->Next()) {
    if (*signal == SIGUSR1) {
      WriteTrace();
      continue;
    }
    std::string left;
    if (*signal == SIGTERM && !drain_->begun() && drain_->Begin(member_->welcomed(), &left)) continue;
    lanes_.front()->loop()->Unwatch(signals->fd());
    End(absl::OkStatus(), absl::StrCat("signal ", *signal, left.empty() ? "" : "; ", left));
    return;
  }
}

std::unique_ptr<DrainCall> Daemon::AskForDrain(TimeNs timeout, std::function<void(absl::Status)> done) {
  return DrainCall::Start(config_.node().scheduler(), id_, timeout, [this, done = std::move(done)](absl::Status status) {
    lanes_.front()->loop()->Post([this, done, status] {
      if (!ending_) done(status);
    });
  });
}

void Daemon::End(absl::Status status, const std::string& why) {
  if (std::exchange(ending_, true)) return;
  outcome_ = std::move(status);
  log_.Info("ends: ", why);
  session_.reset();
  const absl::Status reason = absl::UnavailableError(absl::StrCat("server ", id_, " ends: ", why));
  for (const auto& lane : lanes_) lane->Stop(reason);
}

void Daemon::Tick() {
  if (ending_) return;
  member_->OnTick();
  if (!ending_) drain_->OnTick(member_->welcomed());
  if (ending_) return;
  if (++ticks_ % kReportTicks == 0) ReportWaits();
  EndIfIdle();
  lanes_.front()->loop()->After(kTick, [this] { Tick(); });
}

void Daemon::ReportWaits() {
  const TimeNs now = clock_.Now();
  const TimeNs patience = config_.data().stall_report_ms() * kMillisecond;
  if (patience == 0) return;
  for (size_t i = 0; i <= lanes_.size(); ++i) {
    std::string text = i < lanes_.size() ? lanes_[i]->stats().core.waiting_for : member_->Waiting();
    Wait& wait = waits_[i];
    // Which wait it is stands before the numbers that run on.
    const std::string kind = i < lanes_.size() ? text : text.substr(0, text.find(':'));
    if (kind != wait.text) wait = {kind, now, now};
    if (text.empty() || now - wait.said < patience) continue;
    wait.said = now;
    if (i < lanes_.size()) {
      log_.Warn("loop ", i, ": ", text, ", for ", (now - wait.since) / kSecond, " s (`sluicectl status` shows the workers)");
    } else {
      log_.Warn(text);
    }
  }
}

void Daemon::EndIfIdle() {
  if (!config_.node().exit_when_done() || idle_since_ == 0) return;
  if (clock_.Now() - idle_since_ >= kIdleGrace) End(absl::OkStatus(), "every job has ended (node.exit_when_done)");
}

void Daemon::OnWelcome(const proto::Welcome& welcome) {
  log_.Info("registered with scheduler ", config_.node().scheduler(), " (release ", welcome.scheduler_version(),
            ") as member ", welcome.member());
}

void Daemon::OnPlan(const proto::Plan& plan) {
  const auto shared = std::make_shared<const proto::Plan>(plan);
  plans_.Set(shared);
  drain_->OnPlan(plan, member_->identity().incarnation());
  const bool open = plan.state() == proto::JOB_FORMING || plan.state() == proto::JOB_RUNNING;
  const auto [known, fresh] = jobs_.try_emplace(plan.job(), open);
  if (fresh || known->second != open) {
    log_.Info("job ", plan.job(), " '", plan.config().name(), "': ", proto::JobState_Name(plan.state()), ", plan version ",
              plan.version(), plan.why().empty() ? "" : ": ", plan.why());
  }
  known->second = open;
  const bool idle = std::ranges::none_of(jobs_, [](const auto& job) { return job.second; });
  idle_since_ = idle ? clock_.Now() : 0;
  for (const proto::ServerInfo& server : plan.servers()) {
    if (server.id() != id_ || server.incarnation() == 0) continue;
    if (server.incarnation() == member_->identity().incarnation()) continue;
    log_.Warn("plan version ", plan.version(), " of job ", plan.job(), " speaks of another life of this server "
              "(incarnation ", server.incarnation(), ", this is ", member_->identity().incarnation(),
              "): its state is gone, nothing of this job is served here");
    return;
  }
  for (const auto& lane : lanes_) {
    lane->Post([shared](ServerCore& core) { core.OnPlan(*shared); });
  }
}

void Daemon::OnRefused(const absl::Status& status) { End(status, "the scheduler does not take this server"); }

void Daemon::OnShutdown(const std::string& why) { End(absl::OkStatus(), absl::StrCat("the scheduler says: ", why)); }

// The first loop probes: one connection, as a worker's link to one loop is.
void Daemon::OnProbe(const proto::Probe& probe) {
  lanes_.front()->Post([probe](ServerCore& core) { core.OnProbe(probe); });
}

void Daemon::OnReport(const proto::ReportState& report) {
  report_ = Report{report.request(), lanes_.size(), {}};
  for (const auto& lane : lanes_) {
    lane->Post([this, request = report.request(), job = report.job()](ServerCore& core) {
      auto states = std::make_shared<proto::Heartbeat>();
      core.ReportState(job, states.get());
      lanes_.front()->loop()->Post([this, request, states] {
        if (ending_ || report_.request != request || report_.lanes_missing == 0) return;
        report_.states.mutable_partitions()->MergeFrom(states->partitions());
        if (--report_.lanes_missing == 0) member_->RequestPlan();   // a heartbeat at once
      });
    });
  }
}

void Daemon::FillHeartbeat(proto::Heartbeat* heartbeat) {
  for (const auto& lane : lanes_) {
    const LaneStats stats = lane->stats();
    heartbeat->set_round(std::max(heartbeat->round(), stats.core.max_round));
    heartbeat->set_wire_bytes_in(heartbeat->wire_bytes_in() + stats.wire_in);
    heartbeat->set_wire_bytes_out(heartbeat->wire_bytes_out() + stats.wire_out);
    if (heartbeat->waiting_for().empty()) heartbeat->set_waiting_for(stats.core.waiting_for);
    for (const proto::ReplicaState& state : stats.replicas) *heartbeat->add_replicas() = state;
    proto::ServerCost* cost = heartbeat->mutable_cost();
    if (config_.data().spin_us() == 0) cost->add_loop_cpu_us(stats.cpu_us);
    cost->set_net_bytes_in(cost->net_bytes_in() + stats.net_in);
    cost->set_net_bytes_out(cost->net_bytes_out() + stats.net_out);
    for (const proto::ShardCost& shard : stats.costs)
      if (cost->shards_size() < kMaxCosts) *cost->add_shards() = shard;
  }
  if (beats_++ % control::kBeatsPerReport == 0) {
    for (const auto& lane : lanes_) {
      const auto report = lane->stats().link_report;
      if (report != nullptr) control::AddReport(*report, heartbeat->mutable_links());
    }
  }
  heartbeat->mutable_cost()->set_link_bytes(link_bytes_);
  for (proto::ProbeResult& result : probes_) *heartbeat->add_probes() = std::move(result);
  probes_.clear();
  FillTables(Tables(), heartbeat);
  const bool ready = report_.request != 0 && report_.lanes_missing == 0 &&
                     report_.request == heartbeat->report_request();
  if (!ready) {
    heartbeat->set_report_request(0);   // it comes with a later one
    return;
  }
  heartbeat->mutable_partitions()->Swap(report_.states.mutable_partitions());
  report_ = Report{};
}

std::vector<TableStats> Daemon::Tables() const {
  std::vector<TableStats> all;
  for (const auto& lane : lanes_) {
    if (const auto tables = lane->stats().tables; tables != nullptr) MergeTables(*tables, &all);
  }
  return all;
}

// --- metrics

void Daemon::AddMetrics() {
  registry_.AddSampler([this](MetricSamples* out) {
    transport::PathTotals sum;
    for (const auto& lane : lanes_) {
      if (const auto paths = lane->stats().paths; paths != nullptr) sum.Add(*paths);
    }
    path_metrics_.Sample(sum, out);
  });
  registry_.AddSampler([this](MetricSamples* out) { SampleTables(Tables(), out); });
  registry_.AddSampler([this](MetricSamples* out) {
    for (size_t i = 0; i < lanes_.size(); ++i) {
      const LaneStats stats = lanes_[i]->stats();
      const MetricLabels labels = {{"loop", std::to_string(i)}};
      const auto counter = [&](const char* name, const char* help, const char* unit, uint64_t value) {
        out->Counter({name, help, unit}, static_cast<double>(value), labels);
      };
      const auto gauge = [&](const char* name, const char* help, const char* unit, uint64_t value) {
        out->Gauge({name, help, unit}, static_cast<double>(value), labels);
      };
      counter("sluice_server_rounds_applied_total", "Rounds of partitions that were applied", "rounds",
              stats.core.rounds_applied);
      counter("sluice_server_rounds_skipped_total", "Of these: nothing was applied", "rounds", stats.core.rounds_skipped);
      counter("sluice_server_contributions_total", "Pushes that counted", "pushes", stats.core.contributions);
      counter("sluice_server_rejected_total", "Answers that a push came too late for its round", "answers", stats.core.rejected);
      counter("sluice_server_duplicates_total", "Repeats of pushes that were there already", "pushes", stats.core.duplicates);
      counter("sluice_server_refused_total", "Frames answered by RETRY or ERROR", "frames", stats.core.refused);
      counter("sluice_server_payload_bytes_in_total", "Payload of pushes that counted", "bytes", stats.core.payload_in);
      counter("sluice_server_payload_bytes_out_total", "Payload of replies and values", "bytes", stats.core.payload_out);
      counter("sluice_server_wire_bytes_in_total", "Received by the transports", "bytes", stats.wire_in);
      counter("sluice_server_wire_bytes_out_total", "Sent by the transports", "bytes", stats.wire_out);
      out->Counter({"sluice_server_cpu_seconds_total", "CPU time of the loop's thread; 0 where it spins", "seconds"},
                   static_cast<double>(stats.cpu_us) / 1e6, labels);
      counter("sluice_server_refused_peers_total", "Connections refused before they said who they are", "connections",
              stats.refused_peers);
      counter("sluice_server_forwarded_bytes_total", "Sums of several workers' pushes that were sent on (aggregation trees)", "bytes",
              stats.core.forwarded);
      counter("sluice_server_forwards_total", "Sums of several workers' pushes that were sent on and answered", "sums",
              stats.core.forwards);
      counter("sluice_server_partials_discarded_total", "Open rounds of partitions that were dropped, and sent again, because the "
              "aggregation tree or the owner changed", "rounds", stats.core.partials_discarded);
      counter("sluice_server_copy_bytes_out_total", "Acknowledged by copies of what this server owns", "bytes",
              stats.core.copied_out);
      counter("sluice_server_promoted_total", "Partitions whose copy here became the owner's", "partitions",
              stats.core.promoted);
      counter("sluice_server_copies_differed_total", "Copies that a digest found to differ, and that were made anew", "copies",
              stats.core.copies_that_differed);
      gauge("sluice_server_copies", "Partitions of other servers of which a copy is here", "partitions", stats.core.copies);
      gauge("sluice_server_copy_queued_bytes", "For copies, not acknowledged yet", "bytes", stats.core.queued_bytes);
      gauge("sluice_server_state_bytes", "Parameters, optimizer state, replicas and accumulators", "bytes",
            stats.core.state_bytes);
      gauge("sluice_server_pool_used_bytes", "Pushes in flight", "bytes", stats.core.pool_used);
      gauge("sluice_server_pool_peak_bytes", "The most of it so far", "bytes", stats.core.pool_peak);
      gauge("sluice_server_oversize_peak_bytes", "Largest push of rows taken beside the pool", "bytes",
            stats.core.oversize_peak);
      gauge("sluice_server_pushes_waiting", "Announced pushes that wait for their turn or for memory", "pushes", stats.core.waiting);
      gauge("sluice_server_links", "Links to workers and other servers", "links", stats.links);
      gauge("sluice_server_round", "Largest round that was applied", "rounds", stats.core.max_round);
    }
  });
}

}  // namespace sluice::server
