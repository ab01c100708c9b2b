// One event loop of the daemon: a thread with a Loop, an endpoint that listens, and the ServerCore between them.
//
// Threads: Create, Start and Join are the daemon's; Post and Stop may be called from anywhere; everything else happens on
// the lane's own thread. End: Stop closes the links with the reason, waits a little for the peers to be told, destroys
// core and endpoint on the thread, and ends it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/trace.h"
#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "server/core.h"
#include "server/lane_trace.h"
#include "server/table_stats.h"
#include "transport/auto/auto_endpoint.h"
#include "transport/loop.h"
#include "transport/transport.h"

namespace sluice::server {

struct LaneOptions {
  const proto::Config* config = nullptr;      // outlives the lane
  std::string id;                             // of the server
  uint32_t number = 0;
  const Clock* clock = nullptr;
  TraceTrack* track = nullptr;                // null: no trace
  std::function<void(uint32_t job)> request_plan;   // on the lane's thread
  std::function<void(const proto::ProbeResult&)> probed;   // on the lane's thread
};

struct LaneStats {
  ServerCoreStats core;
  uint64_t wire_in = 0, wire_out = 0;         // bytes, as the transport counts them
  uint64_t net_in = 0, net_out = 0;           // of these: over TCP
  uint64_t cpu_us = 0;                        // of the lane's thread; 0 where it spins
  uint64_t links = 0;
  uint64_t refused_peers = 0;
  std::shared_ptr<const std::vector<TableStats>> tables;   // by job and tensor; null before the first look at them
  std::vector<proto::ReplicaState> replicas;  // copies that the plans have not in sync
  std::vector<proto::ShardCost> costs;
  std::shared_ptr<const transport::PathTotals> paths;    // as tables, null before the first look
  std::shared_ptr<const proto::LinkReport> link_report;
};

class Lane final : private transport::Handler {
 public:
  // Listens. ALREADY_EXISTS names the port that is in use.
  static absl::StatusOr<std::unique_ptr<Lane>> Create(LaneOptions options);
  ~Lane() override;

  const transport::Address& address() const { return address_; }
  transport::Loop* loop() { return loop_.get(); }

  void Start();
  void Post(std::function<void(ServerCore&)> fn);   // not run once the lane has stopped
  void Stop(const absl::Status& reason);
  void Join();

  LaneStats stats() const { return published_.Get(); }   // of the last tick

 private:
  explicit Lane(LaneOptions options);
  absl::Status Listen();
  void Tick();
  void Publish();
  void LookAtPaths();
  void EndWhenQuiet();

  void OnUp(transport::LinkId link, const transport::Hello& peer) override;
  void OnDown(transport::LinkId link, const absl::Status& reason) override;
  void OnFrame(transport::LinkId link, const transport::FrameHeader& header, transport::Payload payload) override;
  void OnSent(transport::LinkId link, uint64_t cookie) override;
  void OnSlotClosed(transport::LinkId link, transport::SlotId slot) override;
  void OnWritable(transport::LinkId link) override;

  const LaneOptions options_;
  const Logger log_;
  transport::Address address_;
  std::unique_ptr<transport::Loop> loop_;
  std::unique_ptr<LaneTrace> trace_;
  std::unique_ptr<transport::AutoEndpoint> endpoint_;
  std::unique_ptr<ServerCore> core_;          // null once the lane has stopped
  std::thread thread_;
  Published<LaneStats> published_;

  struct LinkState {
    std::string peer;
    std::string name;                         // of it, without how it came
    std::string id;                           // its Register.id
    bool net = false;                         // over TCP
    uint64_t bytes_in = 0, bytes_out = 0;     // as last sampled
  };
  std::unordered_map<transport::LinkId, LinkState> links_;
  uint64_t closed_in_ = 0, closed_out_ = 0;   // bytes of links that are gone
  uint64_t net_closed_in_ = 0, net_closed_out_ = 0;
  uint64_t refused_peers_ = 0;
  std::shared_ptr<const std::vector<TableStats>> tables_;   // as last published
  std::shared_ptr<const transport::PathTotals> paths_;
  std::shared_ptr<const proto::LinkReport> link_report_;
  LogLimit refused_limit_;
  uint64_t ticks_ = 0;
  bool stopping_ = false;
  TimeNs stop_by_ = 0;
};

}  // namespace sluice::server
