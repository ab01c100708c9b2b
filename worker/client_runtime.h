// What stands behind a Client: a loop on a thread of its own, with the endpoint, the core and the scheduler's stream.
//
// Threads: Call and Post may be called from any thread but the loop's. Everything else of the core happens on the loop.
// End: the destructor closes the links, ends what is unfinished with CANCELLED, and joins the thread.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/metrics_http.h"
#include "base/trace.h"
#include "proto/config.pb.h"
#include "rdma/path_metrics.h"
#include "transport/auto/auto_endpoint.h"
#include "transport/loop.h"
#include "transport/transport.h"
#include "worker/core.h"
#include "worker/device.h"

namespace sluice::worker {

// The stream to the scheduler (transport/control/grpc_session.h, whose rules hold here; tests bring their own).
class ControlStream {
 public:
  struct Callbacks {  // all on the loop's thread
    std::function<void()> up;
    std::function<void(absl::Status)> down;
    std::function<void(proto::SchedulerMessage)> message;
  };
  using Factory = std::function<std::unique_ptr<ControlStream>(const std::string& scheduler, transport::Loop* loop,
                                                               Callbacks callbacks)>;
  virtual ~ControlStream() = default;
  virtual void Open(TimeNs delay) = 0;
  virtual void Send(const proto::MemberMessage& message) = 0;
};

// What can be said about a worker's configuration before anything is loaded or connected: INVALID_ARGUMENT for a codec
// that does not exist, or a rank that the job does not have (-1: the scheduler gives one).
absl::Status CheckMember(const proto::JobConfig& job, int rank);

class Runtime {
 public:
  // Blocks until the job runs, or with the reason why it does not.
  static absl::StatusOr<std::unique_ptr<Runtime>> Start(const proto::Config& config, int rank,
                                                        const ControlStream::Factory& make_stream);
  ~Runtime();

  const proto::Config& config() const { return config_; }
  const Clock& clock() const { return clock_; }
  WorkerCore& core() { return *core_; }                   // on the loop only
  transport::Endpoint& endpoint() { return *endpoint_; }  // Allocate from any thread, the rest on the loop only

  void Post(std::function<void()> fn) { loop_->Post(std::move(fn)); }
  // Runs fn on the loop and waits for its result.
  template <typename Fn>
  auto Call(Fn fn) -> decltype(fn()) {
    std::promise<decltype(fn())> promise;
    auto result = promise.get_future();
    loop_->Post([&] { promise.set_value(fn()); });
    return result.get();
  }
  // Starts something on the loop that ends by calling the function that it is given, and waits for that.
  template <typename T>
  T Await(std::function<void(std::function<void(T)>)> start) {
    auto promise = std::make_shared<std::promise<T>>();
    auto result = promise->get_future();
    loop_->Post([&start, promise] { start([promise](T value) { promise->set_value(std::move(value)); }); });
    return result.get();
  }

  absl::Status WriteTrace();
  absl::Status WriteCalibration();   // by rank 0, before it leaves

  // The GPU that `memory` lies on; from any thread. FAILED_PRECONDITION if it is not the one of before.
  absl::StatusOr<std::shared_ptr<Device>> DeviceOf(const void* memory);

 private:
  struct Metrics;
  class Tracing;

  explicit Runtime(const proto::Config& config);
  absl::Status Init(int rank, const ControlStream::Factory& make_stream);
  absl::Status StartMetrics();
  void Tick();
  void TurnEnd();
  void AddLinks(proto::Heartbeat* heartbeat);

  const proto::Config config_;
  SteadyClock clock_;
  Logger log_;
  std::unique_ptr<Tracer> tracer_;  // node.trace; null = off
  std::unique_ptr<Tracing> tracing_;
  MetricsRegistry registry_;
  struct TensorCodec {
    std::string name;
    proto::TensorCodecState state;
  };
  Published<WorkerStats> published_;
  Published<std::vector<TensorCodec>> published_codecs_;
  Published<transport::PathTotals> published_paths_;
  rdma::PathMetrics path_metrics_;
  uint64_t published_codecs_version_ = 0;
  std::unique_ptr<MetricsHttp> metrics_http_;
  std::unique_ptr<transport::Loop> loop_;
  std::mutex device_mutex_;
  // Guarded by device_mutex_: the one GPU that tensors are pushed from, once there is one.
  std::shared_ptr<Device> device_;
  int device_number_ = -1;
  std::unique_ptr<WorkerCore> core_;  // outlives the endpoint, whose handler it is
  std::unique_ptr<transport::AutoEndpoint> endpoint_;
  uint64_t ticks_ = 0, beats_ = 0;
  std::unique_ptr<ControlStream> stream_;
  bool turn_wanted_ = false;    // a timer is set that makes another turn at once
  TimeNs turn_at_ = INT64_MAX;  // the earliest timer that is set for NextDeadline
  std::thread thread_;
};

}  // namespace sluice::worker
