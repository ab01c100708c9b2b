// Scheduler, service, sessions and member cores in one process, over real sockets.
#include "scheduler/service.h"

#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "scheduler/memory_store.h"
#include "transport/control/grpc_session.h"
#include "transport/control/member_core.h"

namespace sluice::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kPatience = std::chrono::seconds(60);  // a hang ends the test; nothing is measured

class LoopThread {
 public:
  LoopThread() : loop_(*transport::Loop::Create()), thread_([this] { loop_->Run(); }) {}
  ~LoopThread() { Stop(); }
  void Stop() {
    if (!thread_.joinable()) return;
    loop_->Stop();
    thread_.join();
  }
  transport::Loop* get() { return loop_.get(); }
  void Call(const std::function<void()>& fn) {
    std::mutex mutex;
    std::condition_variable done;
    bool ran = false;
    loop_->Post([&] {
      fn();
      std::lock_guard<std::mutex> lock(mutex);
      ran = true;
      done.notify_one();
    });
    std::unique_lock<std::mutex> lock(mutex);
    done.wait(lock, [&] { return ran; });
  }

 private:
  std::unique_ptr<transport::Loop> loop_;
  std::thread thread_;
};

class Daemon {
 public:
  Daemon(Store* store, uint32_t port) {
    proto::NodeConfig node;
    node.set_servers(1);
    node.set_heartbeat_ms(50);
    loop_.Call([&] {
      auto host = SchedulerHost::Create(node, store, &clock_, 7, loop_.get(), &metrics_);
      EXPECT_TRUE(host.ok()) << host.status();
      host_ = *std::move(host);
    });
    proto::EffectiveConfig config;
    config.add_values()->set_key("node.servers");
    auto service = SchedulerService::Start("127.0.0.1", port, host_.get(), config);
    EXPECT_TRUE(service.ok()) << service.status();
    if (service.ok()) service_ = *std::move(service);
  }
  ~Daemon() {
    if (service_ != nullptr) service_->Shutdown();
    loop_.Stop();
  }
  int port() const { return service_->port(); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port()); }
  SchedulerHost* host() { return host_.get(); }
  std::shared_ptr<grpc::Channel> Channel() {
    return grpc::CreateChannel(address(), grpc::InsecureChannelCredentials());
  }

 private:
  SteadyClock clock_;
  SchedulerMetrics metrics_;
  LoopThread loop_;
  std::unique_ptr<SchedulerHost> host_;
  std::unique_ptr<SchedulerService> service_;
};

// What a server's or worker's shell is: a loop, a session, a core.
class Member final : public control::MemberCore::Listener {
 public:
  Member(proto::Register identity, const std::string& address) {
    identity.set_version("test");
    loop_.Call([&] {
      session_ = control::GrpcSession::Create(
          address, loop_.get(),
          {.up = [this] { core_->OnStreamUp(); },
           .down = [this](absl::Status status) { core_->OnStreamDown(status); },
           .message = [this](proto::SchedulerMessage message) { core_->OnMessage(message); }});
      core_ = std::make_unique<control::MemberCore>(
          identity, address, 60 * kSecond, &clock_,
          control::MemberCore::Output{[this](const proto::MemberMessage& m) { session_->Send(m); },
                                      [this](TimeNs delay) { session_->Open(delay); }},
          this);
      core_->Start();
      Tick();
    });
  }
  ~Member() override {
    loop_.Call([&] {
      loop_.get()->CancelTimer(timer_);
      session_ = nullptr;
    });
    loop_.Stop();
  }

  void OnWelcome(const proto::Welcome& welcome) override {
    Change([&] { ++welcomes, rank = welcome.rank(); });
  }
  void OnPlan(const proto::Plan& p) override {
    Change([&] { plan = p; });
  }
  void OnRefused(const absl::Status& status) override {
    Change([&] { refused = status; });
  }
  void OnReport(const proto::ReportState&) override {}
  void OnShutdown(const std::string&) override {}
  void FillHeartbeat(proto::Heartbeat* heartbeat) override { heartbeat->set_round(5); }

  void Await(const std::function<bool()>& condition) {
    std::unique_lock<std::mutex> lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kPatience, condition));
  }
  proto::RequestDone Ask(const std::function<void(control::MemberCore&, control::MemberCore::Done)>& ask) {
    auto answer = std::make_shared<std::optional<proto::RequestDone>>();
    loop_.Call(
        [&] { ask(*core_, [this, answer](const proto::RequestDone& done) { Change([&] { *answer = done; }); }); });
    Await([&] { return answer->has_value(); });
    return answer->value_or(proto::RequestDone());
  }
  transport::Loop* loop() { return loop_.get(); }

  // Guarded by mutex_ while the loop runs.
  int welcomes = 0;
  uint32_t rank = 99;
  proto::Plan plan;
  absl::Status refused;

 private:
  void Change(const std::function<void()>& fn) {
    std::lock_guard<std::mutex> lock(mutex_);
    fn();
    changed_.notify_all();
  }
  void Tick() {
    core_->OnTick();
    timer_ = loop_.get()->After(20 * kMillisecond, [this] { Tick(); });
  }

  SteadyClock clock_;
  LoopThread loop_;
  uint64_t timer_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<control::GrpcSession> session_;
  std::unique_ptr<control::MemberCore> core_;
};

proto::Register ServerIdentity() {
  proto::Register reg;
  reg.set_role(proto::ROLE_SERVER);
  reg.set_id("s");
  reg.set_incarnation(3);
  reg.add_lanes()->set_host("127.0.0.1");
  reg.mutable_lanes(0)->set_port(1);
  return reg;
}

proto::Register WorkerIdentity(const std::string& id) {
  proto::Register reg;
  reg.set_role(proto::ROLE_WORKER);
  reg.set_id(id);
  reg.set_incarnation(4);
  reg.set_rank(-1);
  reg.mutable_job()->set_name("j");
  reg.mutable_job()->set_workers(2);
  return reg;
}

bool Running(const proto::Plan& plan) { return plan.state() == proto::JOB_RUNNING; }

TEST(Service, AJobFromRegistrationToItsEnd) {
  MemoryStore store;
  Daemon daemon(&store, 0);
  Member server(ServerIdentity(), daemon.address());
  Member a(WorkerIdentity("a"), daemon.address()), b(WorkerIdentity("b"), daemon.address());
  a.Await([&] { return Running(a.plan); });
  b.Await([&] { return Running(b.plan); });
  EXPECT_EQ(a.rank + b.rank, 1u);

  proto::TensorSpec spec;
  spec.set_name("w");
  spec.add_shape(10);
  const auto registered = a.Ask([&](auto& core, auto done) { core.RegisterTensors({spec}, done); });
  EXPECT_EQ(registered.code(), 0) << registered.message();
  EXPECT_THAT(registered.tensors(), ElementsAre(0));

  const auto plan = control::FetchPlan(daemon.address(), 1, 0, 60 * kSecond);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->tensors_size(), 1);
  const auto none = control::FetchPlan(daemon.address(), 1, plan->version() + 100, 60 * kSecond);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);

  auto admin = proto::Admin::NewStub(daemon.Channel());
  {
    grpc::ClientContext context;
    proto::Cluster cluster;
    ASSERT_TRUE(admin->GetCluster(&context, {}, &cluster).ok());
    EXPECT_EQ(cluster.members_size(), 3);
    EXPECT_EQ(cluster.jobs(0).name(), "j");
  }
  {
    grpc::ClientContext context;
    proto::JobRequest request;
    request.set_job("nobody");
    proto::ShardList shards;
    const grpc::Status status = admin->ListShards(&context, request, &shards);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_THAT(status.error_message(), HasSubstr("known: j"));
  }
  {
    grpc::ClientContext context;
    proto::GetConfigRequest request;
    request.set_job("j");
    proto::EffectiveConfig config;
    ASSERT_TRUE(admin->GetConfig(&context, request, &config).ok());
    std::map<std::string, std::string> values;
    for (const auto& value : config.values()) values[value.key()] = value.value();
    EXPECT_EQ(values["job.workers"], "2");
    EXPECT_EQ(values.count("node.listen"), 0u);
  }
  grpc::ClientContext watching;
  auto events = admin->WatchEvents(&watching, {});
  proto::Event event;
  while (events->Read(&event) && event.kind() != "tensors") {
  }
  EXPECT_EQ(event.kind(), "tensors");

  a.Ask([](auto& core, auto done) { core.Leave(false, "", done); });
  b.Ask([](auto& core, auto done) { core.Leave(false, "", done); });
  server.Await([&] { return server.plan.state() == proto::JOB_FINISHED; });
  while (events->Read(&event) && event.kind() != "job_finished") {
  }
  EXPECT_EQ(event.kind(), "job_finished");
  watching.TryCancel();
  EXPECT_EQ(events->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(Service, AnOperatorAbortsAJob) {
  MemoryStore store;
  Daemon daemon(&store, 0);
  Member worker(WorkerIdentity("a"), daemon.address());
  worker.Await([&] { return worker.plan.version() > 0; });
  auto admin = proto::Admin::NewStub(daemon.Channel());
  proto::AbortJobRequest request;
  request.set_job("j");
  request.set_reason("a test");
  proto::JobStatus job;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(admin->AbortJob(&context, request, &job).ok());
  }
  EXPECT_EQ(job.state(), proto::JOB_FAILED);
  worker.Await([&] {
    return worker.plan.state() == proto::JOB_FAILED && worker.plan.why() == "aborted by an operator: a test";
  });
  grpc::ClientContext context;
  const grpc::Status again = admin->AbortJob(&context, request, &job);
  EXPECT_EQ(again.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(again.error_message(), HasSubstr("has failed already"));
}

// One unary or bidirectional call by name with raw messages, as generic tools make it.
std::string RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                    const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  grpc::CompletionQueue queue;
  void* tag;
  bool ok = false;
  auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  grpc::Slice slice(request);
  grpc::ByteBuffer out(&slice, 1), in;
  call->WriteLast(out, grpc::WriteOptions(), nullptr);
  queue.Next(&tag, &ok);
  call->Read(&in, nullptr);
  queue.Next(&tag, &ok);
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  EXPECT_TRUE(status.ok()) << method << ": " << status.error_message();
  std::vector<grpc::Slice> slices;
  std::string text;
  if (in.Valid() && in.Dump(&slices).ok())
    for (const grpc::Slice& part : slices) text.append(reinterpret_cast<const char*>(part.begin()), part.size());
  return text;
}

TEST(Service, HealthAndReflectionAreOn) {
  MemoryStore store;
  Daemon daemon(&store, 0);
  // HealthCheckRequest{} -> HealthCheckResponse{status: SERVING}.
  EXPECT_EQ(RawCall(daemon.Channel(), "/grpc.health.v1.Health/Check", ""), std::string("\x08\x01", 2));
  // ServerReflectionRequest{list_services: ""}.
  const std::string services = RawCall(
      daemon.Channel(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", std::string("\x3a\x00", 2));
  for (const char* name : {"sluice.proto.Admin", "sluice.proto.Control", "grpc.health.v1.Health"})
    EXPECT_THAT(services, HasSubstr(name));
}

TEST(Service, VersionSkewRefusesTheMember) {
  MemoryStore store;
  Daemon daemon(&store, 0);
  proto::Register identity = ServerIdentity();
  identity.set_protocol(99);
  Member member(identity, daemon.address());
  member.Await([&] { return !member.refused.ok(); });
  EXPECT_EQ(member.refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(member.refused.ToString(), HasSubstr("protocol 99"));
}

TEST(Service, MembersOutliveARestartOfTheScheduler) {
  MemoryStore store;
  auto daemon = std::make_unique<Daemon>(&store, 0);
  const int port = daemon->port();
  Member server(ServerIdentity(), daemon->address());
  Member a(WorkerIdentity("a"), daemon->address()), b(WorkerIdentity("b"), daemon->address());
  a.Await([&] { return Running(a.plan); });
  const uint64_t uid = a.plan.uid();
  daemon = nullptr;
  daemon = std::make_unique<Daemon>(&store, port);
  a.Await([&] { return a.welcomes == 2; });
  b.Await([&] { return b.welcomes == 2; });
  std::thread other([&] { EXPECT_EQ(a.Ask([](auto& core, auto done) { core.Barrier("x", 0, done); }).code(), 0); });
  EXPECT_EQ(b.Ask([](auto& core, auto done) { core.Barrier("x", 0, done); }).code(), 0);
  other.join();
  EXPECT_EQ(a.plan.uid(), uid);
  server.Await([&] { return server.welcomes == 2; });
}

TEST(Service, APortInUseIsNamed) {
  MemoryStore store;
  Daemon daemon(&store, 0);
  const auto second = SchedulerService::Start("127.0.0.1", daemon.port(), daemon.host(), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.status().ToString(), HasSubstr("Address already in use"));
  EXPECT_THAT(second.status().ToString(), HasSubstr(std::to_string(daemon.port())));
}

TEST(Service, RandomBytesOnThePortHurtNobody) {
  MemoryStore store;
  Daemon daemon(&store, 0);
  for (int i = 0; i < 3; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(daemon.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    std::string noise = i == 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";
    for (int j = 0; j < 5000; ++j) noise.push_back(static_cast<char>(j * 2654435761u >> (7 + i)));
    (void)!send(fd, noise.data(), noise.size(), MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    char sink[256];
    while (recv(fd, sink, sizeof(sink), 0) > 0) {
    }
    close(fd);
  }
  Member member(ServerIdentity(), daemon.address());
  member.Await([&] { return member.welcomes == 1; });
}

TEST(Service, ASessionCanEndWhileItConnects) {
  // Bound but not listening: nobody is there.
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  const std::string nowhere = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  for (int i = 0; i < 10; ++i) {
    LoopThread loop;
    auto session = control::GrpcSession::Create(nowhere, loop.get(), {[] {}, [](absl::Status) {}, [](auto) {}});
    loop.Call([&] { session->Open(0); });
    loop.Call([&] {
      if (i % 2 == 0) session->Open(0);
    });
    loop.Call([&] { session = nullptr; });
  }
  EXPECT_EQ(control::FetchPlan(nowhere, 1, 0, 60 * kSecond).status().code(), absl::StatusCode::kUnavailable);
  close(fd);
}

}  // namespace
}  // namespace sluice::scheduler
