// Checks of the configuration as a whole; what a codec, optimizer or transport takes is checked by its own registry.
#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/config.h"
#include "base/config_schema.h"
#include "base/status_macros.h"

namespace sluice {
namespace {

absl::Status OneOf(const char* key, const std::string& value, const std::vector<std::string>& choices) {
  for (const std::string& choice : choices)
    if (value == choice) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(key, ": \"", value.substr(0, 200), "\" is none of ",
                                                 absl::StrJoin(choices, ", "), "; the nearest is ",
                                                 Nearest(value, choices)));
}

absl::Status Between(const char* key, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", value, " does not lie between ", low, " and ", high));
}

absl::Status HostAndPort(const char* key, const std::string& value) {
  const size_t colon = value.rfind(':');
  int port = 0;
  if (colon != std::string::npos && colon > 0 && absl::SimpleAtoi(value.substr(colon + 1), &port) && port > 0 &&
      port <= 65535)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(key, ": \"", value.substr(0, 200), "\" is not host:port, e.g. 127.0.0.1:7700"));
}

// Addresses without ports, joined by commas.
absl::Status Addresses(const char* key, const std::string& value) {
  std::set<std::string> seen;
  for (const absl::string_view part : absl::StrSplit(value, ',')) {
    const std::string address(absl::StripAsciiWhitespace(part));
    if (address.empty() && value.empty()) continue;
    const bool port = std::count(address.begin(), address.end(), ':') == 1;
    if (address.empty() || port || address.find_first_of(" ;/[]") != std::string::npos)
      return absl::InvalidArgumentError(absl::StrCat(key, ": \"", address.substr(0, 200),
                                                     "\" is no address; give addresses without ports, joined by ','"));
    if (!seen.insert(address).second) return absl::InvalidArgumentError(absl::StrCat(key, ": ", address, " stands there twice"));
  }
  return absl::OkStatus();
}

absl::Status CheckNode(const proto::NodeConfig& node) {
  SLUICE_RETURN_IF_ERROR(HostAndPort("node.scheduler", node.scheduler()));
  SLUICE_RETURN_IF_ERROR(Addresses("node.rails", node.rails()));
  SLUICE_RETURN_IF_ERROR(Between("node.port", node.port(), 0, 65535));
  SLUICE_RETURN_IF_ERROR(Between("node.data_port", node.data_port(), 0, 65535));
  SLUICE_RETURN_IF_ERROR(Between("node.metrics_port", node.metrics_port(), -1, 65535));
  SLUICE_RETURN_IF_ERROR(OneOf("node.log_level", node.log_level(), {"debug", "info", "warn", "error"}));
  SLUICE_RETURN_IF_ERROR(Between("node.servers", node.servers(), 1, 4096));
  SLUICE_RETURN_IF_ERROR(Between("node.loops", node.loops(), 0, 64));
  SLUICE_RETURN_IF_ERROR(Between("node.shards", node.shards(), 0, 65536));
  SLUICE_RETURN_IF_ERROR(Between("node.moves_at_once", node.moves_at_once(), 0, 65536));
  SLUICE_RETURN_IF_ERROR(Between("node.rebalance_over_percent", node.rebalance_over_percent(), 10, 10000));
  SLUICE_RETURN_IF_ERROR(Between("node.heartbeat_ms", node.heartbeat_ms(), 1, 3600 * 1000));
  if (node.lease_ms() < 2 * uint64_t{node.heartbeat_ms()}) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node.lease_ms: ", node.lease_ms(), " is less than two heartbeats (node.heartbeat_ms = ", node.heartbeat_ms(),
        "): one late heartbeat would lose a member"));
  }
  return absl::OkStatus();
}

absl::Status CheckJob(const proto::JobConfig& job) {
  if (job.name().empty()) return absl::InvalidArgumentError("job.name: must not be empty");
  if (job.name().size() > 256) return absl::InvalidArgumentError("job.name: longer than 256 bytes");
  SLUICE_RETURN_IF_ERROR(Between("job.workers", job.workers(), 1, 65536));
  SLUICE_RETURN_IF_ERROR(OneOf("job.exchange", job.exchange(), {"servers", "auto", "allreduce", "sharded"}));
  SLUICE_RETURN_IF_ERROR(Between("job.partition_bytes", job.partition_bytes(), 4096, 1 << 30));
  const proto::OptimizerConfig& optimizer = job.optimizer();
  SLUICE_RETURN_IF_ERROR(
      OneOf("job.optimizer.schedule", optimizer.schedule(), {"constant", "step", "cosine", "linear"}));
  struct Bound {
    const char* key;
    double value, low, high;
  };
  const std::array<Bound, 6> bounds = {{{"job.optimizer.rate", optimizer.rate(), 0, 1e6},
                                        {"job.optimizer.momentum", optimizer.momentum(), 0, 1},
                                        {"job.optimizer.beta1", optimizer.beta1(), 0, 1},
                                        {"job.optimizer.beta2", optimizer.beta2(), 0, 1},
                                        {"job.optimizer.weight_decay", optimizer.weight_decay(), 0, 1e6},
                                        {"job.optimizer.clip_norm", optimizer.clip_norm(), 0, 1e30}}};
  for (const Bound& bound : bounds)
    if (!(bound.value >= bound.low && bound.value <= bound.high))
      return absl::InvalidArgumentError(
          absl::StrCat(bound.key, ": ", bound.value, " does not lie between ", bound.low, " and ", bound.high));
  return absl::OkStatus();
}

absl::Status CheckData(const proto::DataConfig& data) {
  SLUICE_RETURN_IF_ERROR(OneOf("data.transport", data.transport(), {"auto", "rdma", "tcp", "shm"}));
  SLUICE_RETURN_IF_ERROR(Between("data.connections", data.connections(), 1, 64));
  SLUICE_RETURN_IF_ERROR(Between("data.stripe_bytes", data.stripe_bytes(), 4096, 1 << 30));
  SLUICE_RETURN_IF_ERROR(Between("data.resend_ms", data.resend_ms(), 1, 3600 * 1000));
  return absl::OkStatus();
}

absl::Status CheckRdma(const proto::RdmaConfig& rdma) {
  SLUICE_RETURN_IF_ERROR(OneOf("rdma.fabric", rdma.fabric(), {"lossy", "lossless"}));
  SLUICE_RETURN_IF_ERROR(Between("rdma.gid_index", rdma.gid_index(), -1, 65535));
  SLUICE_RETURN_IF_ERROR(Between("rdma.queue_pairs", rdma.queue_pairs(), 1, 16));
  SLUICE_RETURN_IF_ERROR(Between("rdma.traffic_class", rdma.traffic_class(), 0, 255));
  SLUICE_RETURN_IF_ERROR(Between("rdma.service_level", rdma.service_level(), 0, 15));
  SLUICE_RETURN_IF_ERROR(Between("rdma.timeout", rdma.timeout(), 0, 31));
  SLUICE_RETURN_IF_ERROR(Between("rdma.retry_count", rdma.retry_count(), 0, 7));
  SLUICE_RETURN_IF_ERROR(Between("rdma.min_rnr_timer", rdma.min_rnr_timer(), 1, 31));
  SLUICE_RETURN_IF_ERROR(Between("rdma.chunk_bytes", rdma.chunk_bytes(), 4096, 4 << 20));
  SLUICE_RETURN_IF_ERROR(Between("rdma.watchdog_ms", rdma.watchdog_ms(), 10, 3600 * 1000));
  SLUICE_RETURN_IF_ERROR(Between("rdma.spin_us", rdma.spin_us(), 0, 10000));
  SLUICE_RETURN_IF_ERROR(Between("rdma.reconnect_ms", rdma.reconnect_ms(), 1, 3600 * 1000));
  const uint32_t mtu = rdma.mtu();
  if (mtu != 0 && (mtu < 256 || mtu > 4096 || (mtu & (mtu - 1)) != 0))
    return absl::InvalidArgumentError(absl::StrCat("rdma.mtu: ", mtu, " is none of 256, 512, 1024, 2048, 4096, and not 0"));
  return absl::OkStatus();
}

absl::Status CheckTopology(const proto::TopologyConfig& topology) {
  SLUICE_RETURN_IF_ERROR(OneOf("topology.trees", topology.trees(), {"auto", "off", "on"}));
  if (topology.link_bytes() == 0) return absl::InvalidArgumentError("topology.link_bytes: must not be 0");
  if (!(topology.oversubscription() >= 0.01 && topology.oversubscription() <= 1000))
    return absl::InvalidArgumentError(absl::StrCat("topology.oversubscription: ", topology.oversubscription(),
                                                   " does not lie between 0.01 and 1000"));
  return Between("topology.replan_gain_percent", topology.replan_gain_percent(), 1, 1000);
}

}  // namespace

absl::Status CheckConfig(const proto::Config& config) {
  SLUICE_RETURN_IF_ERROR(CheckNode(config.node()));
  SLUICE_RETURN_IF_ERROR(CheckJob(config.job()));
  SLUICE_RETURN_IF_ERROR(CheckData(config.data()));
  SLUICE_RETURN_IF_ERROR(CheckRdma(config.rdma()));
  return CheckTopology(config.topology());
}

}  // namespace sluice
