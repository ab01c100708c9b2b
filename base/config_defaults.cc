#include "base/config_defaults.h"

namespace sluice {

const char kConfigDefaults[] = R"(
node {
  scheduler: "127.0.0.1:7700"
  listen: "127.0.0.1"
  metrics_port: -1
  servers: 1
  lease_ms: 5s
  heartbeat_ms: 500ms
  log_level: "info"
  connect_timeout_ms: 60s
  drain_ms: 25s
  rebalance_over_percent: 30
  rebalance_cooldown_ms: 60s
}
job {
  name: "default"
  workers: 1
  staleness: 4
  codec: "none"
  reply_codec: "fp16"
  codec_min_elements: 1024
  optimizer {
    kind: "none"
    rate: 0.01
    momentum: 0.9
    beta1: 0.9
    beta2: 0.999
    epsilon: 1e-8
    schedule: "constant"
    step_factor: 0.1
  }
  partition_bytes: 4MiB
  replicas: 1
  codec_stats_rounds: 50
  auto_codecs: "none,fp16,int8,int4,topk:0.1,topk:0.01"
  auto_max_residual: 100
  exchange: "servers"
}
data {
  transport: "auto"
  connections: 1
  pool_bytes: 256MiB
  granted_bytes: 8MiB
  fill_rate_bytes: 128MiB
  eager_bytes: 16KiB
  stripe_bytes: 1MiB
  fusion_bytes: 64KiB
  fusion_cycle_us: 200us
  resend_ms: 1s
  snapshot_every: 1
  calibration_codec: "int8"
  stall_report_ms: 10s
}
rdma {
  gid_index: -1
  queue_pairs: 2
  fabric: "lossy"
  min_rnr_timer: 12
  chunk_bytes: 256KiB
  watchdog_ms: 3s
  spin_us: 20
  reconnect_ms: 500ms
}
topology {
  link_bytes: 12500000000
  oversubscription: 1
  trees: "auto"
  replan_gain_percent: 15
  replan_after_ms: 2s
  replan_cooldown_ms: 30s
}
)";

}  // namespace sluice
