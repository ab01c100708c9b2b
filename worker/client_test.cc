// The library as trainers use it, from several threads, over TCP on this machine: a fake server on a loop of its own,
// and a scheduler that answers by itself. (The daemons are tested in tests/e2e.)
#include "worker/client.h"

#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/loop.h"
#include "transport/tcp/tcp_endpoint.h"
#include "worker/client_internal.h"
#include "worker/client_runtime.h"
#include "worker/testing/fake_server.h"

namespace sluice {
namespace {

constexpr size_t kPartition = 5000;  // elements: larger ones are announced

class ServerThread {
 public:
  explicit ServerThread(worker::FakeServer::Options options) {
    loop_ = *transport::Loop::Create();
    transport::TcpOptions tcp;
    tcp.self.role = transport::PeerRole::kServer;
    tcp.self.name = "fake";
    endpoint_ = *transport::TcpEndpoint::Create(loop_.get(), &clock_, tcp);
    server_ = std::make_unique<worker::FakeServer>(endpoint_.get(), &clock_, options);
    loop_->AtTurnEnd([this] {
      if (endpoint_ != nullptr) server_->TurnEnd();
    });
    port_ = endpoint_->port();
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~ServerThread() {
    loop_->Post([this] { endpoint_.reset(); });
    loop_->Stop();
    thread_.join();
  }
  uint32_t port() const { return port_; }
  void Run(std::function<void(worker::FakeServer&)> fn) {
    std::promise<void> done;
    loop_->Post([&] {
      fn(*server_);
      done.set_value();
    });
    done.get_future().wait();
  }

 private:
  SteadyClock clock_;
  std::unique_ptr<transport::Loop> loop_;
  std::unique_ptr<worker::FakeServer> server_;
  std::unique_ptr<transport::TcpEndpoint> endpoint_;
  uint32_t port_ = 0;
  std::thread thread_;
};

// One job; its tensors are laid onto the one server as they are registered.
class Job {
 public:
  explicit Job(uint32_t ranks, const std::string& settings = "") : server_({.ranks = ranks}), ranks_(ranks) {
    plan_.set_job(1);
    plan_.set_uid(5);
    plan_.set_version(1);
    plan_.set_state(proto::JOB_RUNNING);
    plan_.mutable_config()->set_name("test");
    plan_.mutable_config()->set_workers(ranks);
    plan_.mutable_config()->mutable_optimizer()->set_kind("sgd");
    plan_.mutable_config()->set_codec(settings);
    auto* info = plan_.add_servers();
    info->set_id("fake");
    info->add_lanes()->set_host("127.0.0.1");
    info->mutable_lanes(0)->set_port(server_.port());
    plan_.add_shards()->set_term(1);
    for (uint32_t r = 0; r < ranks; ++r) plan_.add_workers()->set_rank(r);
  }

  Result<std::unique_ptr<Client>> Connect(uint32_t rank, const std::string& snapshots = "",
                                          uint32_t timeout_ms = 60000) {
    proto::Config config;
    *config.mutable_job() = plan_.config();
    config.mutable_data()->set_transport("tcp");
    config.mutable_data()->set_snapshot_dir(snapshots);
    config.mutable_data()->set_resend_ms(500);
    config.mutable_node()->set_metrics_port(-1);
    config.mutable_node()->set_scheduler("nowhere:1");
    config.mutable_node()->set_connect_timeout_ms(timeout_ms);
    auto runtime = worker::Runtime::Start(
        config, static_cast<int>(rank),
        [this, rank](const std::string&, transport::Loop* loop, worker::ControlStream::Callbacks callbacks) {
          return std::make_unique<Stream>(this, rank, loop, std::move(callbacks));
        });
    if (!runtime.ok()) {
      return Status(static_cast<Code>(runtime.status().code()), std::string(runtime.status().message()));
    }
    return ClientAccess::Make(*std::move(runtime));
  }

  ServerThread& server() { return server_; }
  std::vector<proto::Leave> leaves() {
    std::lock_guard<std::mutex> lock(mutex_);
    return leaves_;
  }
  void set_running(bool running) { running_ = running; }

 private:
  // The scheduler, as seen by one member: answers at once, on the member's loop.
  class Stream final : public worker::ControlStream {
   public:
    Stream(Job* job, uint32_t rank, transport::Loop* loop, Callbacks callbacks)
        : job_(job), rank_(rank), loop_(loop), callbacks_(std::make_shared<Callbacks>(std::move(callbacks))) {}
    ~Stream() override {
      *callbacks_ = Callbacks{[] {}, [](absl::Status) {}, [](proto::SchedulerMessage) {}};
    }
    void Open(TimeNs delay) override {
      loop_->After(delay, [callbacks = callbacks_] { callbacks->up(); });
    }
    void Send(const proto::MemberMessage& message) override {
      for (const proto::SchedulerMessage& answer : job_->Answer(rank_, message)) {
        loop_->Post([callbacks = callbacks_, answer] { callbacks->message(answer); });
      }
    }

   private:
    Job* const job_;
    const uint32_t rank_;
    transport::Loop* const loop_;
    const std::shared_ptr<Callbacks> callbacks_;
  };

  std::vector<proto::SchedulerMessage> Answer(uint32_t rank, const proto::MemberMessage& message) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<proto::SchedulerMessage> answers(1);
    if (message.has_register_()) {
      if (!running_) return {};
      answers[0].mutable_welcome()->set_job(1);
      answers[0].mutable_welcome()->set_rank(rank);
      answers[0].mutable_welcome()->set_incarnation(1);
    } else if (message.has_tensors()) {
      auto* done = answers[0].mutable_done();
      done->set_request(message.tensors().request());
      for (const auto& spec : message.tensors().tensors()) done->add_tensors(Add(spec));
      plan_.set_version(plan_.version() + 1);
    } else if (message.has_barrier()) {
      answers[0].mutable_done()->set_request(message.barrier().request());
    } else if (message.has_leave()) {
      leaves_.push_back(message.leave());
      answers[0].mutable_done()->set_request(message.leave().request());
    } else {
      return {};
    }
    answers.emplace_back();
    *answers.back().mutable_plan() = plan_;
    return answers;
  }
  uint32_t Add(const proto::TensorSpec& spec) {
    for (const auto& info : plan_.tensors()) {
      if (info.spec().name() == spec.name()) return info.tensor();
    }
    auto* info = plan_.add_tensors();
    info->set_tensor(static_cast<uint32_t>(plan_.tensors_size() - 1));
    *info->mutable_spec() = spec;
    info->set_first_partition(partitions_);
    for (uint64_t left = spec.shape(0); left > 0;) {
      const uint64_t n = std::min<uint64_t>(left, kPartition);
      info->add_partition_elements(n);
      info->add_partition_shard(0);
      server_.Run([&](worker::FakeServer& server) { server.AddPartition(partitions_, info->tensor(), n); });
      ++partitions_;
      left -= n;
    }
    return info->tensor();
  }

  ServerThread server_;
  const uint32_t ranks_;
  std::atomic<bool> running_{true};
  std::mutex mutex_;
  proto::Plan plan_;  // guarded by mutex_, as the rest
  std::vector<proto::Leave> leaves_;
  uint32_t partitions_ = 0;
};

std::vector<float> Values(size_t n, uint64_t seed) {
  PhiloxRandom random(seed);
  std::vector<float> values(n);
  for (float& v : values) v = random.Uniform() - 0.5f;
  return values;
}

TEST(ClientTest, ManyThreadsPushToManyTensors) {
  constexpr size_t kTensors = 8, kSteps = 20;
  Job job(2);
  std::vector<std::vector<float>> results[2];
  std::vector<std::thread> ranks;
  for (uint32_t rank : {0u, 1u}) {
    ranks.emplace_back([&, rank] {
      auto client = job.Connect(rank);
      ASSERT_TRUE(client.ok()) << client.status().ToString();
      EXPECT_EQ((*client)->rank(), static_cast<int>(rank));
      EXPECT_EQ((*client)->world_size(), 2);
      std::vector<TensorSpec> specs;
      for (size_t t = 0; t < kTensors; ++t) specs.push_back({.name = absl::StrCat("t", t), .shape = {10 + t * 2500}});
      auto tensors = (*client)->RegisterTensors(specs);
      ASSERT_TRUE(tensors.ok()) << tensors.status().ToString();
      results[rank].resize(kTensors);
      std::vector<std::thread> threads;
      for (size_t t = 0; t < kTensors; ++t) {
        threads.emplace_back([&, t] {
          const size_t n = 10 + t * 2500;
          std::vector<float>& out = results[rank][t];
          out.resize(n);
          for (size_t step = 0; step < kSteps; ++step) {
            const std::vector<float> gradient = Values(n, rank * 100 + step);
            auto info = (*client)->PushPull((*tensors)[t], gradient, out).Wait();
            ASSERT_TRUE(info.ok()) << info.status().ToString();
            EXPECT_EQ(info->round, step);
            EXPECT_EQ(info->contributors, 2u);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_GT((*client)->stats().push_wire_bytes, (*client)->stats().push_raw_bytes);
      EXPECT_TRUE((*client)->Barrier().ok());
      EXPECT_TRUE((*client)->Finish().ok());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  ASSERT_EQ(results[0].size(), kTensors);
  EXPECT_EQ(results[0], results[1]);
  std::vector<float> expected(10, 0.0f);
  for (size_t step = 0; step < kSteps; ++step) {
    const std::vector<float> a = Values(10, step), b = Values(10, 100 + step);
    for (size_t i = 0; i < 10; ++i) expected[i] -= 0.5f * ((a[i] + b[i]) / 2);
  }
  EXPECT_EQ(results[0][0], expected);
}

TEST(ClientTest, WaitsEndByTimeoutCancelAndTheClientsEnd) {
  Job job(2);  // rank 1 never comes, so no round closes
  auto client = job.Connect(0);
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  auto tensors = (*client)->RegisterTensors(
      {{.name = "a", .shape = {100}}, {.name = "b", .shape = {20000}}, {.name = "c", .shape = {5}}});
  ASSERT_TRUE(tensors.ok());
  const std::vector<float> gradient = Values(20000, 1);
  std::vector<float> a(100), b(20000), c(5);
  const auto part = [&](size_t n) { return std::span(gradient).first(n); };
  Handle late =
      (*client)->PushPull((*tensors)[0], part(100), a, {.priority = {}, .timeout = std::chrono::milliseconds(30)});
  Handle cancelled = (*client)->PushPull((*tensors)[1], part(20000), b);
  Handle orphan = (*client)->PushPull((*tensors)[2], part(5), c);
  EXPECT_EQ(late.Wait().status().code(), Code::kDeadlineExceeded);
  EXPECT_FALSE(cancelled.Done());
  std::thread waiter([&] { EXPECT_EQ(cancelled.Wait().status().code(), Code::kCancelled); });
  cancelled.Cancel();
  waiter.join();
  EXPECT_FALSE(orphan.Done());
  std::thread other([&] { EXPECT_EQ(orphan.Wait().status().code(), Code::kCancelled); });
  *client = nullptr;
  other.join();
  late.WaitReleased();
  cancelled.WaitReleased();
  orphan.WaitReleased();
  orphan.Cancel();  // nothing to do any more, and nothing to crash on
  EXPECT_TRUE(Handle().Done());
}

TEST(ClientTest, BroadcastPushPullAndMisuse) {
  Job job(1);
  auto client = job.Connect(0);
  ASSERT_TRUE(client.ok());
  auto w = (*client)->RegisterTensor({.name = "w", .shape = {12000}});
  ASSERT_TRUE(w.ok());
  EXPECT_EQ((*client)->rate(), 0.5f);
  EXPECT_EQ((*client)->NextRound(*w), 0u);
  auto values = (*client)->AllocateBuffer(12000), out = (*client)->AllocateBuffer(12000);
  ASSERT_TRUE(values.ok() && out.ok());
  std::ranges::copy(Values(12000, 3), values->data());
  ASSERT_TRUE((*client)->Broadcast(*w, values->values()).Wait().ok());
  const std::vector<float> ones(12000, 1.0f);
  ASSERT_TRUE((*client)->Push(*w, ones).Wait().ok());
  ASSERT_TRUE((*client)->Pull(*w, out->values()).Wait().ok());
  for (size_t i = 0; i < 12000; ++i) ASSERT_EQ(out->data()[i], values->data()[i] - 0.5f);
  EXPECT_EQ((*client)->NextRound(*w), 2u);
  EXPECT_EQ((*client)->Push(*w, std::span(ones).first(7)).Wait().status().code(), Code::kInvalidArgument);
  EXPECT_EQ((*client)->Push(Tensor{99}, ones).Wait().status().code(), Code::kNotFound);
  EXPECT_EQ((*client)->SaveSnapshot({}).code(), Code::kFailedPrecondition);
  auto none = (*client)->RestoreSnapshot();
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
}

// On every machine: without CUDA, without a driver, without a GPU; and where there is one, this is host memory.
TEST(ClientTest, ATensorInGpuMemoryIsRefusedWithWhatIsMissing) {
  Job job(1);
  auto client = job.Connect(0);
  ASSERT_TRUE(client.ok());
  auto w = (*client)->RegisterTensor({.name = "w", .shape = {10}});
  ASSERT_TRUE(w.ok());
  std::vector<float> values(10);
  Handle handle = (*client)->PushPull(*w, DeviceGradient{values.data(), 10}, DeviceOutput{values.data(), 10}, nullptr);
  const auto info = handle.Wait();
  handle.WaitReleased();
  ASSERT_FALSE(info.ok());
  EXPECT_TRUE(info.status().code() == Code::kUnimplemented || info.status().code() == Code::kInvalidArgument);
  EXPECT_THAT(info.status().message(), testing::HasSubstr("host memory"));
  EXPECT_EQ((*client)->NextRound(*w), 0u);
  EXPECT_TRUE((*client)->Finish().ok());
}

TEST(ClientTest, ABufferWhoseBytesWrapAroundIsRefusedWithItsNumber) {
  Job job(1);
  auto client = job.Connect(0);
  ASSERT_TRUE(client.ok());
  for (const size_t elements : {(size_t{1} << 62) + 4, size_t{1} << 62, SIZE_MAX}) {
    const auto buffer = (*client)->AllocateBuffer(elements);
    ASSERT_FALSE(buffer.ok()) << elements;
    EXPECT_EQ(buffer.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(buffer.status().message(), testing::HasSubstr(absl::StrCat(elements)));
  }
}

TEST(ClientTest, ATimeoutBeyondAllTimeIsNoLimit) {
  Job job(1);
  auto client = job.Connect(0);
  ASSERT_TRUE(client.ok());
  auto w = (*client)->RegisterTensor({.name = "w", .shape = {10}});
  ASSERT_TRUE(w.ok());
  const std::vector<float> ones(10, 1.0f);
  for (const auto timeout : {std::chrono::milliseconds::max(), std::chrono::milliseconds(INT64_MAX / 1000000)}) {
    const auto pushed = (*client)->Push(*w, ones, {.priority = {}, .timeout = timeout}).Wait();
    EXPECT_TRUE(pushed.ok()) << pushed.status().ToString();
  }
}

TEST(ClientTest, ABroadcastWhoseRootIsNoRankIsRefused) {
  Job job(2);
  auto client = job.Connect(0);
  ASSERT_TRUE(client.ok());
  auto w = (*client)->RegisterTensor({.name = "w", .shape = {10}});
  ASSERT_TRUE(w.ok());
  std::vector<float> values(10, 1.0f);
  for (const int root : {7, 2, -1}) {
    const auto info = (*client)->Broadcast(*w, values, root).Wait();
    ASSERT_FALSE(info.ok()) << root;
    EXPECT_EQ(info.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(info.status().message(),
                testing::HasSubstr(absl::StrCat("root ", root, ", but ranks go from 0 to 1")));
  }
  EXPECT_EQ((*client)->NextRound(*w), 0u);
  EXPECT_EQ(values, std::vector<float>(10, 1.0f));
}

TEST(ClientTest, FinishAfterAFatalErrorReturnsItAndLeavesAsFailed) {
  Job job(1);
  auto client = job.Connect(0);
  ASSERT_TRUE(client.ok());
  auto w = (*client)->RegisterTensor({.name = "w", .shape = {10}});
  ASSERT_TRUE(w.ok());
  job.server().Run([](worker::FakeServer& server) { server.refuse = absl::InternalError("row 3 is lost"); });
  const std::vector<float> ones(10, 1.0f);
  EXPECT_EQ((*client)->Push(*w, ones).Wait().status().code(), Code::kInternal);
  const Status finished = (*client)->Finish();
  EXPECT_EQ(finished.code(), Code::kInternal);
  EXPECT_THAT(finished.message(), testing::HasSubstr("row 3 is lost"));
  const std::vector<proto::Leave> leaves = job.leaves();
  ASSERT_EQ(leaves.size(), 1u);
  EXPECT_TRUE(leaves[0].failed());
  EXPECT_THAT(leaves[0].why(), testing::HasSubstr("row 3 is lost"));
}

TEST(ClientTest, NextLifeContinuesFromTheSnapshot) {
  const std::string directory = testing::TempDir() + "/client_test_snapshots";
  std::filesystem::remove_all(directory);
  Job job(1, "int8");
  std::vector<float> out(9000);
  const std::string cursor = "after step 3";
  {
    auto client = job.Connect(0, directory);
    ASSERT_TRUE(client.ok());
    auto w = (*client)->RegisterTensor({.name = "w", .shape = {9000}});
    ASSERT_TRUE(w.ok());
    for (uint64_t step = 0; step < 3; ++step) {
      const std::vector<float> gradient = Values(9000, step);
      ASSERT_TRUE((*client)->PushPull(*w, gradient, out).Wait().ok());
    }
    const Status saved = (*client)->SaveSnapshot(std::as_bytes(std::span(cursor)));
    ASSERT_TRUE(saved.ok()) << saved.ToString();
  }  // without Finish
  auto client = job.Connect(0, directory);
  ASSERT_TRUE(client.ok());
  auto w = (*client)->RegisterTensor({.name = "w", .shape = {9000}});
  ASSERT_TRUE(w.ok());
  auto state = (*client)->RestoreSnapshot();
  ASSERT_TRUE(state.ok()) << state.status().ToString();
  ASSERT_TRUE(state->has_value());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>((**state).data()), (**state).size()), cursor);
  EXPECT_EQ((*client)->NextRound(*w), 3u);
  const std::vector<float> gradient = Values(9000, 3);
  auto info = (*client)->PushPull(*w, gradient, out).Wait();
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->round, 3u);
  EXPECT_TRUE((*client)->Finish().ok());
  EXPECT_TRUE(std::filesystem::is_empty(directory));  // a finished job needs none
}

TEST(ClientTest, NoJobInTimeIsAnErrorThatSaysWhatIsMissing) {
  Job job(1);
  job.set_running(false);
  auto client = job.Connect(0, "", /*timeout_ms=*/50);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(client.status().message(), testing::HasSubstr("nowhere:1"));
}

TEST(ClientTest, AnUnknownCodecIsRefusedBeforeConnecting) {
  for (const char* codec : {"int9", "topk:2", "topk:abc"}) {
    Job job(1, codec);
    job.set_running(false);
    auto client = job.Connect(0, "", /*timeout_ms=*/50);
    ASSERT_FALSE(client.ok()) << codec;
    EXPECT_EQ(client.status().code(), Code::kInvalidArgument) << codec;
    EXPECT_THAT(client.status().message(), testing::HasSubstr("job.codec"));
  }
}

TEST(ClientTest, ARankThatTheJobDoesNotHaveIsRefusedBeforeConnecting) {
  Job job(2);
  job.set_running(false);
  auto client = job.Connect(2, "", /*timeout_ms=*/50);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(client.status().message(), testing::HasSubstr("rank 2 does not fit job.workers 2"));
}

}  // namespace
}  // namespace sluice
