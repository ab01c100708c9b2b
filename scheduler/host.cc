#include "scheduler/host.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::scheduler {
namespace {

constexpr TimeNs kTick = 50 * kMillisecond;
constexpr uint64_t kTicksPerMetrics = 20;

int64_t WallMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void SchedulerMetrics::Register(MetricsRegistry* registry) const {
  registry->Add({&sessions, &messages_in, &messages_out, &closed, &servers, &workers, &jobs_open, &jobs_failed});
  registry->AddSampler([this](MetricSamples* out) {
    for (const proto::LinkEstimate& link : links.Get()) {
      const MetricLabels labels = {{"from", link.from()}, {"to", link.to()}};
      const auto gauge = [&](const char* name, const char* help, const char* unit, double value) {
        out->Gauge({name, help, unit}, value, labels);
      };
      gauge("sluice_scheduler_link_bytes_per_second", "What a measured link of the topology is counted on to carry", "bytes a second",
            link.bytes_per_second());
      gauge("sluice_scheduler_link_nominal_bytes_per_second", "The same without measurements", "bytes a second", link.nominal());
      gauge("sluice_scheduler_link_confidence", "1 while measurements are fresh, 0 when they are forgotten", "ratio", link.confidence());
      gauge("sluice_scheduler_link_age_seconds", "Since the newest measurement", "seconds", 1e-3 * static_cast<double>(link.age_ms()));
    }
  });
}

SchedulerHost::SchedulerHost(transport::Loop* loop, SchedulerMetrics* metrics)
    : loop_(loop), metrics_(metrics), anchor_(std::make_shared<SchedulerHost*>(this)) {}

absl::StatusOr<std::unique_ptr<SchedulerHost>> SchedulerHost::Create(const proto::NodeConfig& config, Store* store,
                                                                     const Clock* clock, uint64_t random,
                                                                     transport::Loop* loop, SchedulerMetrics* metrics,
                                                                     std::unique_ptr<network::Network> network) {
  std::unique_ptr<SchedulerHost> host(new SchedulerHost(loop, metrics));
  SchedulerHost* self = host.get();
  SchedulerOutput output;
  output.send = [self](SessionId session, const proto::SchedulerMessage& message) {
    auto it = self->streams_.find(session);
    if (it == self->streams_.end()) return;
    self->metrics_->messages_out.Add();
    it->second->Send(message);
  };
  output.close = [self](SessionId session, const absl::Status& status) {
    auto it = self->streams_.find(session);
    if (it == self->streams_.end()) return;
    self->metrics_->closed.Add();
    it->second->End(status);
    self->streams_.erase(it);
  };
  SLUICE_ASSIGN_OR_RETURN(host->core_, SchedulerCore::Create(config, store, clock, WallMs, random, std::move(output),
                                                                std::move(network)));
  const proto::EventList old = host->core_->ListEvents(0, UINT32_MAX);
  if (old.events_size() > 1)
    host->logged_ = old.events(old.events_size() - 2).number();  // all but the one of this start
  host->LogEvents();
  self->timer_ = loop->After(kTick, [self] { self->Tick(); });
  loop->AtTurnEnd([anchor = host->anchor_] {
    if (*anchor != nullptr) (*anchor)->TurnEnd();
  });
  return host;
}

SchedulerHost::~SchedulerHost() {
  *anchor_ = nullptr;
  if (timer_ != 0) loop_->CancelTimer(timer_);
}

void SchedulerHost::Post(std::function<void(SchedulerHost&)> fn) {
  loop_->Post([anchor = anchor_, fn = std::move(fn)] {
    if (*anchor != nullptr) fn(**anchor);
  });
}

SessionId SchedulerHost::Open(std::shared_ptr<Stream> stream, const std::string& peer) {
  const SessionId session = next_session_++;
  streams_[session] = std::move(stream);
  metrics_->sessions.Add();
  core_->OnSessionOpen(session, peer);
  return session;
}

void SchedulerHost::Receive(SessionId session, const proto::MemberMessage& message) {
  metrics_->messages_in.Add();
  core_->OnMessage(session, message);
}

void SchedulerHost::Closed(SessionId session) {
  streams_.erase(session);
  core_->OnSessionClosed(session);
}

void SchedulerHost::Watch(Watcher watcher) { watchers_.push_back(std::move(watcher)); }

void SchedulerHost::EndAllSessions(const absl::Status& status) {
  for (auto& [session, stream] : streams_) stream->End(status);
  streams_.clear();
}

void SchedulerHost::Tick() {
  timer_ = loop_->After(kTick, [this] { Tick(); });
  core_->OnTick();
  if (on_tick_) on_tick_();
  if (ticks_++ % kTicksPerMetrics != 0) return;
  const proto::Cluster cluster = core_->GetCluster();
  size_t servers = 0, workers = 0, open = 0, failed = 0;
  for (const proto::MemberStatus& member : cluster.members())
    if (member.alive()) ++(member.role() == proto::ROLE_SERVER ? servers : workers);
  for (const proto::JobStatus& job : cluster.jobs()) {
    open += job.state() == proto::JOB_FORMING || job.state() == proto::JOB_RUNNING;
    failed += job.state() == proto::JOB_FAILED;
  }
  metrics_->servers.Set(servers);
  metrics_->workers.Set(workers);
  metrics_->jobs_open.Set(open);
  metrics_->jobs_failed.Set(failed);
  std::vector<proto::LinkEstimate> links;
  const proto::LinkList list = core_->ListLinks();
  for (const proto::LinkEstimate& link : list.estimates())
    if (link.source() == "measured" && links.size() < kMaxMeteredLinks) links.push_back(link);
  metrics_->links.Set(std::move(links));
}

void SchedulerHost::TurnEnd() {
  LogEvents();
  std::vector<Watcher> watchers = std::exchange(watchers_, {});
  for (Watcher& watcher : watchers)
    if (watcher()) watchers_.push_back(std::move(watcher));
}

// Every event is a line of the log too.
void SchedulerHost::LogEvents() {
  const proto::EventList events = core_->ListEvents(logged_, 0);
  for (const proto::Event& event : events.events()) {
    const std::string text =
        absl::StrCat(event.kind(), event.job().empty() ? "" : absl::StrCat(" [", event.job(), "]"), ": ", event.text());
    if (event.kind() == "state_error" || event.kind() == "job_failed") log_.Error(text);
    else if (event.kind() == "refused" || event.kind() == "worker_lost" || event.kind() == "server_lost")
      log_.Warn(text);
    else log_.Info(text);
    logged_ = event.number();
  }
}

}  // namespace sluice::scheduler
