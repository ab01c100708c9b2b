#include "scheduler/service.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/config_schema.h"
#include "proto/admin.grpc.pb.h"
#include "proto/control.grpc.pb.h"
#include "transport/control/grpc_options.h"

// gRPC's threads only carry messages to the loop and back (callback API, no thread of our own). A Session reads its
// next message when the loop has dealt with the last one, so a member that sends faster than the scheduler works is
// slowed down by HTTP/2 instead of filling memory; what waits to be sent is bounded, and a member that does not read is
// put out.
namespace sluice::scheduler {
namespace {

using proto::MemberMessage;
using proto::SchedulerMessage;

constexpr size_t kMaxOutboxBytes = 256 << 20;
constexpr size_t kMaxOutboxMessages = 10000;
constexpr auto kShutdownGrace = std::chrono::seconds(2);

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

// "ipv4:10.0.0.1:4711" -> "10.0.0.1:4711".
std::string PeerText(const std::string& peer) {
  for (const char* prefix : {"ipv4:", "ipv6:"})
    if (absl::StartsWith(peer, prefix)) return peer.substr(5);
  return peer;
}

class SessionStream final : public grpc::ServerBidiReactor<MemberMessage, SchedulerMessage>,
                            public SchedulerHost::Stream,
                            public std::enable_shared_from_this<SessionStream> {
 public:
  SessionStream(SchedulerHost* host, std::string peer) : host_(host), peer_(std::move(peer)) {}

  void Start() {
    self_ = shared_from_this();
    StartSendInitialMetadata();  // tells the member at once that it is connected
    host_->Post([self = shared_from_this()](SchedulerHost& host) {
      self->session_ = host.Open(self, self->peer_);
      self->Read();
    });
  }

  // Loop.
  void Send(const SchedulerMessage& message) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_ || ending_) return;
    const size_t bytes = message.ByteSizeLong();
    if (outbox_bytes_ + bytes > kMaxOutboxBytes || outbox_.size() >= kMaxOutboxMessages) {
      FinishLocked(absl::ResourceExhaustedError("this member does not read what the scheduler sends"));
      return;
    }
    outbox_bytes_ += bytes;
    outbox_.push_back(message);
    if (outbox_.size() == 1) StartWrite(&outbox_.front());
  }

  // Loop.
  void End(const absl::Status& status) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_ || ending_) return;
    ending_ = true;
    end_ = status;
    if (outbox_.empty()) FinishLocked(status);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Gone();
      return;
    }
    host_->Post([self = shared_from_this()](SchedulerHost& host) {
      host.Receive(self->session_, self->incoming_);
      self->incoming_.Clear();
      self->Read();
    });
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    outbox_bytes_ -= outbox_.front().ByteSizeLong();
    outbox_.pop_front();
    if (finished_) return;
    if (!ok) FinishLocked(absl::UnavailableError("the stream broke"));
    else if (!outbox_.empty()) StartWrite(&outbox_.front());
    else if (ending_) FinishLocked(end_);
  }

  void OnDone() override {
    Gone();
    self_.reset();  // may destroy this, unless the loop still has a closure
  }

 private:
  void Read() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!finished_) StartRead(&incoming_);
  }

  // The member sends no more: broken, or closed by it.
  void Gone() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!finished_ && !ending_) FinishLocked(absl::OkStatus());
    }
    host_->Post([self = shared_from_this()](SchedulerHost& host) { host.Closed(self->session_); });
  }

  void FinishLocked(const absl::Status& status) {
    finished_ = true;
    Finish(ToGrpc(status));
  }

  SchedulerHost* const host_;
  const std::string peer_;
  std::shared_ptr<SessionStream> self_;  // gRPC's claim
  SessionId session_ = 0;                // the loop's
  MemberMessage incoming_;               // gRPC's during a read, else the loop's

  std::mutex mutex_;
  bool finished_ = false;                // Finish was called: no Start… any more
  bool ending_ = false;
  absl::Status end_;
  std::deque<SchedulerMessage> outbox_;  // the front one is being written
  size_t outbox_bytes_ = 0;
};

class EventStream final : public grpc::ServerWriteReactor<proto::Event>,
                          public std::enable_shared_from_this<EventStream> {
 public:
  EventStream(SchedulerHost* host, uint64_t after) : host_(host), after_(after) {}

  void Start() {
    self_ = shared_from_this();
    StartSendInitialMetadata();
    host_->Post([self = shared_from_this()](SchedulerHost& host) {
      host.Watch([self, &host] { return self->Pump(host); });
    });
  }
  void End(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(ToGrpc(status));
  }
  void OnWriteDone(bool ok) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      writing_ = false;
    }
    if (!ok) End(absl::CancelledError("the stream broke"));
    host_->Post([](SchedulerHost&) {});  // a turn, at whose end Pump runs
  }
  void OnCancel() override { End(absl::CancelledError("cancelled")); }
  void OnDone() override { self_.reset(); }

 private:
  bool Pump(SchedulerHost& host) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return false;
    if (writing_) return true;
    const proto::EventList list = host.core().ListEvents(after_, 1);
    if (list.events_size() == 0) return true;
    event_ = list.events(0);
    after_ = event_.number();
    writing_ = true;
    StartWrite(&event_);
    return true;
  }

  SchedulerHost* const host_;
  std::shared_ptr<EventStream> self_;
  std::mutex mutex_;
  uint64_t after_;
  bool writing_ = false;
  bool finished_ = false;
  proto::Event event_;
};

// A unary call: fn runs on the loop and its result is the answer.
template <typename Response, typename Fn>
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, SchedulerHost* host, Response* response, Fn fn) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  host->Post([reactor, response, fn = std::move(fn)](SchedulerHost& h) {
    absl::StatusOr<Response> result = fn(h.core());
    if (result.ok()) response->Swap(&*result);
    reactor->Finish(ToGrpc(result.status()));
  });
  return reactor;
}

class ControlService final : public proto::Control::CallbackService {
 public:
  explicit ControlService(SchedulerHost* host) : host_(host) {}

  grpc::ServerBidiReactor<MemberMessage, SchedulerMessage>* Session(grpc::CallbackServerContext* context) override {
    auto stream = std::make_shared<SessionStream>(host_, PeerText(context->peer()));
    stream->Start();
    return stream.get();
  }
  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext* context, const proto::GetPlanRequest* request,
                                    proto::Plan* response) override {
    return Answer(context, host_, response, [r = *request](SchedulerCore& core) -> absl::StatusOr<proto::Plan> {
      absl::StatusOr<proto::Plan> plan = core.GetPlanByNumber(r.job());
      if (plan.ok() && plan->version() <= r.newer_than())
        return absl::NotFoundError(absl::StrCat("job ", r.job(), " has no plan newer than version ", r.newer_than()));
      return plan;
    });
  }

 private:
  SchedulerHost* const host_;
};

class AdminService final : public proto::Admin::CallbackService {
 public:
  AdminService(SchedulerHost* host, proto::EffectiveConfig config) : host_(host), config_(std::move(config)) {}

  grpc::ServerUnaryReactor* GetCluster(grpc::CallbackServerContext* context, const proto::GetClusterRequest*,
                                       proto::Cluster* response) override {
    return Answer(context, host_, response,
                  [](SchedulerCore& core) -> absl::StatusOr<proto::Cluster> { return core.GetCluster(); });
  }
  grpc::ServerUnaryReactor* ListShards(grpc::CallbackServerContext* context, const proto::JobRequest* request,
                                       proto::ShardList* response) override {
    return Answer(context, host_, response,
                  [job = request->job()](SchedulerCore& core) { return core.ListShards(job); });
  }
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context, const proto::JobRequest* request,
                                        proto::WorkerList* response) override {
    return Answer(context, host_, response,
                  [job = request->job()](SchedulerCore& core) { return core.ListWorkers(job); });
  }
  grpc::ServerUnaryReactor* ListTensors(grpc::CallbackServerContext* context, const proto::JobRequest* request,
                                        proto::TensorList* response) override {
    return Answer(context, host_, response,
                  [job = request->job()](SchedulerCore& core) { return core.ListTensors(job); });
  }
  grpc::ServerUnaryReactor* ListTables(grpc::CallbackServerContext* context, const proto::JobRequest* request,
                                       proto::TableList* response) override {
    return Answer(context, host_, response,
                  [job = request->job()](SchedulerCore& core) { return core.ListTables(job); });
  }
  grpc::ServerUnaryReactor* ListLinks(grpc::CallbackServerContext* context, const proto::LinksRequest*,
                                      proto::LinkList* response) override {
    return Answer(context, host_, response,
                  [](SchedulerCore& core) -> absl::StatusOr<proto::LinkList> { return core.ListLinks(); });
  }
  grpc::ServerUnaryReactor* ProbeLinks(grpc::CallbackServerContext* context, const proto::ProbeLinksRequest* request,
                                       proto::ProbeLinksAnswer* response) override {
    return Answer(context, host_, response, [r = *request](SchedulerCore& core) { return core.ProbeLinks(r); });
  }
  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext* context, const proto::JobRequest* request,
                                    proto::Plan* response) override {
    return Answer(context, host_, response, [job = request->job()](SchedulerCore& core) { return core.GetPlan(job); });
  }
  grpc::ServerUnaryReactor* ExplainPlan(grpc::CallbackServerContext* context, const proto::JobRequest* request,
                                        proto::Explanation* response) override {
    return Answer(context, host_, response, [job = request->job()](SchedulerCore& core) { return core.ExplainPlan(job); });
  }
  grpc::ServerUnaryReactor* GetConfig(grpc::CallbackServerContext* context, const proto::GetConfigRequest* request,
                                      proto::EffectiveConfig* response) override {
    return Answer(context, host_, response,
                  [this, job = request->job()](SchedulerCore& core) -> absl::StatusOr<proto::EffectiveConfig> {
                    if (job.empty()) return config_;
                    absl::StatusOr<proto::JobConfig> config = core.GetJobConfig(job);
                    if (!config.ok()) return config.status();
                    return JobValues(*config);
                  });
  }
  grpc::ServerUnaryReactor* ListEvents(grpc::CallbackServerContext* context, const proto::EventsRequest* request,
                                       proto::EventList* response) override {
    return Answer(context, host_, response, [r = *request](SchedulerCore& core) -> absl::StatusOr<proto::EventList> {
      return core.ListEvents(r.after(), r.limit());
    });
  }
  grpc::ServerUnaryReactor* AbortJob(grpc::CallbackServerContext* context, const proto::AbortJobRequest* request,
                                     proto::JobStatus* response) override {
    return Answer(context, host_, response,
                  [r = *request](SchedulerCore& core) { return core.AbortJob(r.job(), r.reason()); });
  }
  grpc::ServerUnaryReactor* MoveShard(grpc::CallbackServerContext* context, const proto::MoveShardRequest* request,
                                      proto::MoveList* response) override {
    return Answer(context, host_, response,
                  [r = *request](SchedulerCore& core) { return core.MoveShard(r.job(), r.shard(), r.server()); });
  }
  grpc::ServerUnaryReactor* Rebalance(grpc::CallbackServerContext* context, const proto::RebalanceRequest* request,
                                      proto::RebalanceAnswer* response) override {
    return Answer(context, host_, response,
                  [r = *request](SchedulerCore& core) { return core.Rebalance(r.job(), r.dry_run()); });
  }
  grpc::ServerUnaryReactor* ListMoves(grpc::CallbackServerContext* context, const proto::JobRequest* request,
                                      proto::MoveList* response) override {
    return Answer(context, host_, response,
                  [job = request->job()](SchedulerCore& core) { return core.ListMoves(job); });
  }
  grpc::ServerUnaryReactor* PauseMoves(grpc::CallbackServerContext* context, const proto::JobRequest* request,
                                       proto::MoveList* response) override {
    return Answer(context, host_, response,
                  [job = request->job()](SchedulerCore& core) { return core.SetMovesPaused(job, true); });
  }
  grpc::ServerUnaryReactor* ResumeMoves(grpc::CallbackServerContext* context, const proto::JobRequest* request,
                                        proto::MoveList* response) override {
    return Answer(context, host_, response,
                  [job = request->job()](SchedulerCore& core) { return core.SetMovesPaused(job, false); });
  }
  grpc::ServerUnaryReactor* CancelMoves(grpc::CallbackServerContext* context, const proto::JobRequest* request,
                                        proto::MoveList* response) override {
    return Answer(context, host_, response,
                  [job = request->job()](SchedulerCore& core) { return core.CancelMoves(job); });
  }
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const proto::ServerRequest* request,
                                  proto::DrainStatus* response) override {
    return Answer(context, host_, response,
                  [server = request->server()](SchedulerCore& core) { return core.SetDraining(server, true); });
  }
  grpc::ServerUnaryReactor* Undrain(grpc::CallbackServerContext* context, const proto::ServerRequest* request,
                                    proto::DrainStatus* response) override {
    return Answer(context, host_, response,
                  [server = request->server()](SchedulerCore& core) { return core.SetDraining(server, false); });
  }
  grpc::ServerUnaryReactor* GetDrain(grpc::CallbackServerContext* context, const proto::ServerRequest* request,
                                     proto::DrainStatus* response) override {
    return Answer(context, host_, response,
                  [server = request->server()](SchedulerCore& core) { return core.GetDrain(server); });
  }
  grpc::ServerWriteReactor<proto::Event>* WatchEvents(grpc::CallbackServerContext*,
                                                      const proto::EventsRequest* request) override {
    auto stream = std::make_shared<EventStream>(host_, request->after());
    {
      std::lock_guard<std::mutex> lock(mutex_);
      std::erase_if(watchers_, [](const auto& watcher) { return watcher.expired(); });
      watchers_.push_back(stream);
    }
    stream->Start();
    return stream.get();
  }

  void EndWatchers(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& watcher : watchers_)
      if (auto stream = watcher.lock()) stream->End(status);
  }

 private:
  static proto::EffectiveConfig JobValues(const proto::JobConfig& job) {
    proto::Config config;
    *config.mutable_job() = job;
    proto::EffectiveConfig effective;
    for (const ConfigKey& key : ConfigKeys()) {
      if (!absl::StartsWith(key.name, "job.")) continue;
      proto::EffectiveConfig::Value* value = effective.add_values();
      value->set_key(key.name);
      value->set_value(GetConfigValue(key, config));
      value->set_source("workers");
    }
    return effective;
  }

  SchedulerHost* const host_;
  const proto::EffectiveConfig config_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<EventStream>> watchers_;   // guarded by mutex_
};

// gRPC only says that it cannot; the system's own reason is had by trying.
std::string WhyNotListen(const std::string& host, uint32_t port) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list); error != 0)
    return absl::StrCat(gai_strerror(error), "; check node.listen");
  std::string why = "the system gives no reason";
  for (const addrinfo* address = list; address != nullptr; address = address->ai_next) {
    const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, address->ai_addr, address->ai_addrlen) != 0 || listen(fd, 1) != 0) {
      why = std::strerror(errno);
      if (errno == EADDRINUSE)
        absl::StrAppend(&why,
                        "; another scheduler runs there already (`ss -ltnp` names it), or choose another node.port");
      else if (errno == EADDRNOTAVAIL)
        absl::StrAppend(&why, "; node.listen must be an address of this machine (`ip address` shows them), or 0.0.0.0 "
                              "for all; others reach it by node.advertise");
      else
        absl::StrAppend(&why, "; check node.listen and node.port");
    }
    close(fd);
  }
  freeaddrinfo(list);
  return why;
}

class Service final : public SchedulerService {
 public:
  Service(SchedulerHost* host, proto::EffectiveConfig config)
      : host_(host), control_(host), admin_(host, std::move(config)) {}
  ~Service() override = default;

  absl::Status Listen(const std::string& host, uint32_t port) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    const bool ipv6 = absl::StrContains(host, ":") && !absl::StartsWith(host, "[");
    const std::string address = absl::StrCat(ipv6 ? "[" : "", host, ipv6 ? "]" : "", ":", port);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // or a second scheduler would share the port unnoticed
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, control::kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, control::kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, control::kMinPingIntervalMs);
    builder.SetMaxReceiveMessageSize(control::kMaxMessageBytes);
    builder.SetMaxSendMessageSize(control::kMaxMessageBytes);
    builder.RegisterService(&control_);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    if (server_ != nullptr && port_ > 0) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", WhyNotListen(host, port)));
  }

  void Shutdown() override {
    const absl::Status status = absl::UnavailableError("the scheduler is shutting down");
    host_->Post([status](SchedulerHost& host) { host.EndAllSessions(status); });
    admin_.EndWatchers(status);
    server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    server_->Wait();
  }

  int port() const override { return port_; }

 private:
  SchedulerHost* const host_;
  ControlService control_;
  AdminService admin_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SchedulerService>> SchedulerService::Start(const std::string& host, uint32_t port,
                                                                          SchedulerHost* scheduler,
                                                                          proto::EffectiveConfig config) {
  auto service = std::make_unique<Service>(scheduler, std::move(config));
  if (absl::Status status = service->Listen(host, port); !status.ok()) return status;
  return service;
}

}  // namespace sluice::scheduler
