#include "rdma/configure.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace sluice::rdma {
namespace {

bool HostHasDevices() {
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator();
}

absl::StatusOr<std::unique_ptr<transport::multipath::PathDriver>> Open(transport::Loop* loop, const Clock* clock,
                                                                       const DriverOptions& options) {
  // That there is none is worth a word only to whom has named some.
  const auto none = [&]() -> absl::Status {
    if (options.rails.devices.empty()) return absl::NotFoundError("this host has no RDMA device");
    return absl::FailedPreconditionError(absl::StrCat("rdma.devices names ", absl::StrJoin(options.rails.devices, ", "),
                                                      ", and this host has no RDMA device"));
  };
  auto verbs = LoadVerbs();
  if (!verbs.ok()) return HostHasDevices() ? absl::FailedPreconditionError(verbs.status().message()) : none();
  auto driver = VerbsDriver::Create(loop, clock, *std::move(verbs), options);
  if (absl::IsNotFound(driver.status())) return none();
  if (!driver.ok()) return driver.status();
  return *std::move(driver);
}

}  // namespace

DriverOptions DriverOptionsOf(const proto::RdmaConfig& config) {
  DriverOptions options;
  options.rails.devices = absl::StrSplit(config.devices(), ',', absl::SkipWhitespace());
  options.rails.gid_index = config.gid_index();
  options.queue_pairs = config.queue_pairs();
  options.watchdog = config.watchdog_ms() * kMillisecond;
  options.spin = config.spin_us() * kMicrosecond;
  QueuePairOptions& qp = options.queue_pair;
  // A megabyte of packets each: a server has a queue pair or more for every worker, loop and rail. Chunks need none of it,
  // and 64 work requests keep 8 MiB of them in flight.
  qp.sends = qp.receives = 64;
  qp.traffic_class = static_cast<uint8_t>(config.traffic_class());
  qp.service_level = static_cast<uint8_t>(config.service_level());
  // A lossy fabric drops the last packet of a burst now and then, which only the timeout repairs: short. A lossless one
  // drops nothing, but may stand still under pauses: long.
  qp.timeout = static_cast<uint8_t>(config.timeout() != 0 ? config.timeout() : config.fabric() == "lossless" ? 16 : 14);
  qp.retry_count = static_cast<uint8_t>(config.retry_count() != 0 ? config.retry_count() : 6);
  qp.min_rnr_timer = static_cast<uint8_t>(config.min_rnr_timer());
  // 256 is 1, 4096 is 5.
  if (config.mtu() != 0) qp.mtu = static_cast<uint8_t>(std::bit_width(config.mtu()) - 8);
  return options;
}

void Configure(const proto::RdmaConfig& config, transport::AutoOptions* options) {
  DriverOptions driver = DriverOptionsOf(config);
  driver.log = options->log;
  options->chunk_bytes = config.chunk_bytes();
  options->reconnect = config.reconnect_ms() * kMillisecond;
  options->rdma = [driver](transport::Loop* loop, const Clock* clock) { return Open(loop, clock, driver); };
}

}  // namespace sluice::rdma
