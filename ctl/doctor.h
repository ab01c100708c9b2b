// `sluicectl doctor`: what can be wrong with a machine before a role starts on it. Each check looks at one thing and
// says OK, WARN (works, but worse or not everything) or FAIL (the role will not work), and then what to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "proto/config.pb.h"
#include "rdma/device.h"

namespace sluice::ctl {

struct Check {
  enum Level { kOk, kWarn, kFail };
  Level level = kOk;
  std::string name;
  std::string text;
  std::string to_do;   // empty if nothing needs to be done
};

// The parts, each a function of what it is given.
Check CheckName(const std::string& host_port);                                  // resolves
Check CheckReachable(const std::string& host_port, int timeout_ms);             // accepts TCP connections
Check CheckPortFree(const std::string& key, const std::string& host, uint32_t port);
Check CheckRelease(const std::string& scheduler_release);                       // against this program's
// The scheduler's clock: when its newest "scheduler_started" event was, plus its uptime. local_ms: this machine's.
Check CheckTime(const proto::Cluster& cluster, const proto::EventList& events, int64_t local_ms);
Check CheckListen(const proto::NodeConfig& node);  // loopback, but the scheduler is elsewhere
Check CheckOpenFiles();
Check CheckLockedMemory(bool for_rdma);            // warns only where there is a device
bool HasRdmaDevice(const rdma::HostFacts& facts);
// wanted: members do not do without (data.transport=rdma).
std::vector<Check> CheckRdma(const rdma::HostFacts& facts, const rdma::RailOptions& options, bool wanted);
std::vector<Check> ExamineRdma(const proto::Config& config);   // of this machine, with locked memory
Check CheckSharedMemory();
Check CheckStateFile(const std::string& path);                                  // its directory can be written
std::vector<Check> CheckInterfaces(const std::string& sys_class_net = "/sys/class/net");
Check CheckProcessor();

// All that `role` ("scheduler", "server", "worker" or "" for what all have in common) needs.
std::vector<Check> Examine(const proto::Config& config, const std::string& role);

std::string Render(const std::vector<Check>& checks);
std::string Json(const std::vector<Check>& checks);
bool AnyFailed(const std::vector<Check>& checks);

}  // namespace sluice::ctl
