// Shows a registry to Prometheus over HTTP, path /metrics. Unencrypted and without a password: it binds to the address
// of node.listen, which is loopback unless told otherwise.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/metrics.h"

namespace sluice {

class MetricsHttp {
 public:
  // port 0 = any. `registry` must outlive the result.
  static absl::StatusOr<std::unique_ptr<MetricsHttp>> Start(const std::string& host, int port,
                                                            const MetricsRegistry* registry);
  ~MetricsHttp();

  int port() const { return port_; }

 private:
  struct Impl;
  MetricsHttp(std::unique_ptr<Impl> impl, int port);
  std::unique_ptr<Impl> impl_;
  const int port_;
};

}  // namespace sluice
