// The server's process: lanes, the stream to the scheduler, the control port, metrics, trace, and an orderly end.
//
//   1. Create: every lane listens, then the control port, then metrics; the port file is written. Errors name the port.
//   2. Run: the lanes' threads start; loop 0 registers with the scheduler (MemberCore over GrpcSession).
//   3. A plan comes on loop 0: it is stored for peers that ask, and posted to all lanes.
//   4. ReportState: every lane adds its partitions' states; the heartbeat that carries them goes out when all have.
//   5. SIGTERM: what is held here goes to other servers first (drain.h). A second signal, or SIGINT, ends it at once.
//   6. The end (also a refusal by the scheduler, every job ended with node.exit_when_done): the stream is dropped, the
//      lanes tell their peers and stop, gRPC and metrics stop, the trace is written.
//
// Threads: what is marked "loop 0" is touched by that loop's thread only once Run has begun.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/metrics_http.h"
#include "base/signals.h"
#include "base/trace.h"
#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "server/drain.h"
#include "server/grpc_service.h"
#include "server/lane.h"
#include "rdma/path_metrics.h"
#include "server/plan_store.h"
#include "server/table_stats.h"
#include "transport/control/grpc_session.h"
#include "transport/control/member_core.h"

namespace sluice::server {

class Daemon final : private control::MemberCore::Listener {
 public:
  static absl::StatusOr<std::unique_ptr<Daemon>> Create(const proto::Config& config);
  ~Daemon() override;

  // Until the end. An error is why it could not go on; a signal is none.
  absl::Status Run(Signals* signals);

  int control_port() const { return service_->port(); }
  const Lane& lane(size_t number) const { return *lanes_[number]; }

 private:
  explicit Daemon(const proto::Config& config);
  absl::Status Init();
  absl::Status WritePortFile() const;
  void AddMetrics();
  proto::Register Identity() const;
  std::vector<TableStats> Tables() const;           // of all lanes

  // Loop 0.
  void Begin(Signals* signals);
  void Tick();
  void OnSignal(Signals* signals);
  void End(absl::Status status, const std::string& why);
  void ReportWaits();
  std::unique_ptr<DrainCall> AskForDrain(TimeNs timeout, std::function<void(absl::Status)> done);
  void EndIfIdle();
  void WriteTrace() const;

  // MemberCore::Listener, on loop 0.
  void OnWelcome(const proto::Welcome& welcome) override;
  void OnPlan(const proto::Plan& plan) override;
  void OnRefused(const absl::Status& status) override;
  void OnReport(const proto::ReportState& report) override;
  void OnShutdown(const std::string& why) override;
  void OnProbe(const proto::Probe& probe) override;
  void FillHeartbeat(proto::Heartbeat* heartbeat) override;

  const proto::Config config_;
  const std::string id_;
  const Logger log_;
  SteadyClock clock_;
  std::unique_ptr<Tracer> tracer_;                  // null: off
  PlanStore plans_;
  MetricsRegistry registry_;
  rdma::PathMetrics path_metrics_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<GrpcService> service_;
  std::unique_ptr<MetricsHttp> metrics_;

  // Loop 0.
  std::unique_ptr<control::MemberCore> member_;
  std::unique_ptr<control::GrpcSession> session_;
  std::unique_ptr<Drain> drain_;
  uint64_t link_bytes_ = 0;                         // what the network link carries a second, each way; 0 = not known
  bool ending_ = false;
  absl::Status outcome_;
  struct Report {
    uint32_t request = 0;
    size_t lanes_missing = 0;
    proto::Heartbeat states;
  };
  Report report_;                                   // the one that is being gathered, or ready (lanes_missing 0)
  std::deque<proto::ProbeResult> probes_;           // not said yet; the newest
  std::map<uint32_t, bool> jobs_;                   // job -> it still forms or runs
  TimeNs idle_since_ = 0;                           // every job has ended; 0 = not so
  struct Wait {
    std::string text;
    TimeNs since = 0;
    TimeNs said = 0;
  };
  std::map<size_t, Wait> waits_;                    // by lane; lanes_.size() is the scheduler's stream
  uint64_t ticks_ = 0, beats_ = 0;
};

}  // namespace sluice::server
