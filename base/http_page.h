// Serves one page over HTTP/1 to whoever asks, e.g. metrics to Prometheus. One thread, whatever the number of
// connections, so idle or slow ones keep nobody waiting:
//   1. A connection is accepted and read until its request's header is whole (GET or HEAD of the page; else an error).
//   2. The answer is written with "Connection: close"; what else the client sends is dropped until it closes, too.
//   3. A connection that is not through within `patience` is closed, and the oldest one that has not asked yet is closed
//      when there are more than `most`.
// Unencrypted and without a password: whoever reaches the port reads the page.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace sluice {

class HttpPage {
 public:
  struct Options {
    std::string host;            // address or name to listen on
    int port = 0;                // 0 = any
    std::string path;            // of the page, e.g. "/metrics"; all else is 404
    std::string content_type;
    std::function<std::string()> body;   // called on the page's thread, for each request
    TimeNs patience = 10 * kSecond;      // from the accept to the end
    size_t most = 128;                   // connections at a time
  };

  // UNAVAILABLE, with address and reason, if it cannot listen there.
  static absl::StatusOr<std::unique_ptr<HttpPage>> Start(Options options);
  ~HttpPage();   // closes all connections; waits for nobody but a body() that runs
  HttpPage(const HttpPage&) = delete;
  HttpPage& operator=(const HttpPage&) = delete;

  int port() const { return port_; }

 private:
  struct Impl;
  HttpPage(std::unique_ptr<Impl> impl, int port);
  const std::unique_ptr<Impl> impl_;
  const int port_;
};

}  // namespace sluice
