// Runs a SchedulerCore on a loop: ticks, sessions, watchers of events. No gRPC type here; service.cc is the gRPC side.
//
// Threads: everything is the loop's, except Post.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/log.h"
#include "base/metrics.h"
#include "scheduler/core.h"
#include "transport/loop.h"

namespace sluice::scheduler {

inline constexpr size_t kMaxMeteredLinks = 256;

struct SchedulerMetrics {
  Counter sessions{{"sluice_scheduler_sessions_total", "Control streams that were opened", "streams"}};
  Counter messages_in{{"sluice_scheduler_messages_in_total", "Messages from members", "messages"}};
  Counter messages_out{{"sluice_scheduler_messages_out_total", "Messages to members", "messages"}};
  Counter closed{{"sluice_scheduler_sessions_refused_total", "Control streams that the scheduler ended", "streams"}};
  Gauge servers{{"sluice_scheduler_servers", "Servers with an open stream", "servers"}};
  Gauge workers{{"sluice_scheduler_workers", "Workers with an open stream", "workers"}};
  Gauge jobs_open{{"sluice_scheduler_jobs_open", "Jobs that form or run", "jobs"}};
  Gauge jobs_failed{{"sluice_scheduler_jobs_failed", "Jobs that failed, of those remembered", "jobs"}};
  // Links of the topology that were measured, at most kMaxMeteredLinks.
  Published<std::vector<proto::LinkEstimate>> links;
  void Register(MetricsRegistry* registry) const;
};

class SchedulerHost {
 public:
  // One end of a control stream, as the host sees it.
  class Stream {
   public:
    virtual ~Stream() = default;
    virtual void Send(const proto::SchedulerMessage& message) = 0;
    virtual void End(const absl::Status& status) = 0;   // after what was sent
  };
  // Somebody who waits for events. Returns false to be forgotten.
  using Watcher = std::function<bool()>;

  static absl::StatusOr<std::unique_ptr<SchedulerHost>> Create(const proto::NodeConfig& config, Store* store,
                                                               const Clock* clock, uint64_t random,
                                                               transport::Loop* loop, SchedulerMetrics* metrics,
                                                               std::unique_ptr<network::Network> network = nullptr);
  ~SchedulerHost();

  // Thread-safe. fn runs on the loop unless the host has gone by then.
  void Post(std::function<void(SchedulerHost&)> fn);

  SchedulerCore& core() { return *core_; }
  SessionId Open(std::shared_ptr<Stream> stream, const std::string& peer);
  void Receive(SessionId session, const proto::MemberMessage& message);
  void Closed(SessionId session);
  void Watch(Watcher watcher);         // called at the end of each turn from now on
  void EndAllSessions(const absl::Status& status);
  bool Idle() const { return streams_.empty(); }
  // Called at each tick.
  void set_on_tick(std::function<void()> on_tick) { on_tick_ = std::move(on_tick); }

 private:
  SchedulerHost(transport::Loop* loop, SchedulerMetrics* metrics);
  void Tick();
  void TurnEnd();
  void LogEvents();

  transport::Loop* const loop_;
  SchedulerMetrics* const metrics_;
  const Logger log_{"scheduler"};
  // Posted closures and the loop's hook find the host through this: null after its end. The loop's thread only.
  const std::shared_ptr<SchedulerHost*> anchor_;
  std::unique_ptr<SchedulerCore> core_;
  std::map<SessionId, std::shared_ptr<Stream>> streams_;
  std::vector<Watcher> watchers_;
  std::function<void()> on_tick_;
  SessionId next_session_ = 1;
  uint64_t logged_ = 0;
  uint64_t timer_ = 0;
  uint64_t ticks_ = 0;
};

}  // namespace sluice::scheduler
