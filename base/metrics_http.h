// Shows a registry to Prometheus over HTTP, path /metrics. Unencrypted and without a password: it binds to the address
// of node.listen, which is loopback unless told otherwise. The text is prometheus-cpp's; its own server (Exposer, on
// civetweb) is not used, because there an idle connection holds one of few threads: see docs/metrics.md.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/http_page.h"
#include "base/metrics.h"

namespace sluice {

class MetricsHttp {
 public:
  // port 0 = any. `registry` must outlive the result.
  static absl::StatusOr<std::unique_ptr<MetricsHttp>> Start(const std::string& host, int port,
                                                            const MetricsRegistry* registry);

  int port() const { return page_->port(); }

 private:
  explicit MetricsHttp(std::unique_ptr<HttpPage> page) : page_(std::move(page)) {}
  const std::unique_ptr<HttpPage> page_;
};

}  // namespace sluice
