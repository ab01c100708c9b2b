// Tables as trainers use them: a client in this process, a real server core on a loop of its own, over TCP on this
// machine, and a scheduler that answers by itself. (The daemons are tested in tests/e2e.)
#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/core.h"
#include "transport/loop.h"
#include "transport/tcp/tcp_endpoint.h"
#include "worker/client.h"
#include "worker/client_internal.h"
#include "worker/client_runtime.h"

namespace sluice {
namespace {

using Floats = std::vector<float>;
using Ids = std::vector<uint64_t>;

class ServerThread {
 public:
  ServerThread() {
    loop_ = *transport::Loop::Create();
    transport::TcpOptions tcp;
    tcp.self.role = transport::PeerRole::kServer;
    tcp.self.name = "server";
    endpoint_ = *transport::TcpEndpoint::Create(loop_.get(), &clock_, tcp);
    server::ServerCoreOptions options;
    options.id = "server";
    core_ = server::ServerCore::Create(std::move(options), endpoint_.get(), &clock_);
    endpoint_->SetHandler(core_.get());
    loop_->AtTurnEnd([this] {
      if (endpoint_ != nullptr) core_->OnTurnEnd();
    });
    port_ = endpoint_->port();
    Tick();
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~ServerThread() {
    loop_->Post([this] { endpoint_.reset(); });
    loop_->Stop();
    thread_.join();
  }
  uint32_t port() const { return port_; }
  void SetPlan(const proto::Plan& plan) {
    std::promise<void> done;
    loop_->Post([&] {
      core_->OnPlan(plan);
      done.set_value();
    });
    done.get_future().wait();
  }

 private:
  void Tick() {
    loop_->After(20'000'000, [this] {
      if (endpoint_ == nullptr) return;
      core_->OnTick();
      Tick();
    });
  }

  SteadyClock clock_;
  std::unique_ptr<transport::Loop> loop_;
  std::unique_ptr<server::ServerCore> core_;
  std::unique_ptr<transport::TcpEndpoint> endpoint_;
  uint32_t port_ = 0;
  std::thread thread_;
};

class Job {
 public:
  explicit Job(uint32_t workers) {
    plan_.set_job(1);
    plan_.set_uid(5);
    plan_.set_version(1);
    plan_.set_state(proto::JOB_RUNNING);
    plan_.mutable_config()->set_name("test");
    plan_.mutable_config()->set_workers(workers);
    plan_.mutable_config()->mutable_optimizer()->set_kind("sgd");
    plan_.mutable_config()->mutable_optimizer()->set_rate(1);
    auto* info = plan_.add_servers();
    info->set_id("server");
    info->set_alive(true);
    info->add_lanes()->set_host("127.0.0.1");
    info->mutable_lanes(0)->set_port(server_.port());
    plan_.add_shards()->set_term(1);
    for (uint32_t r = 0; r < workers; ++r) {
      auto* worker = plan_.add_workers();
      worker->set_rank(r);
      worker->set_incarnation(1);
      worker->set_alive(true);
    }
  }

  std::unique_ptr<Client> Connect() {
    proto::Config config;
    *config.mutable_job() = plan_.config();
    config.mutable_data()->set_transport("tcp");
    config.mutable_data()->set_resend_ms(500);
    config.mutable_node()->set_metrics_port(-1);
    config.mutable_node()->set_scheduler("nowhere:1");
    config.mutable_node()->set_connect_timeout_ms(60000);
    auto runtime = worker::Runtime::Start(
        config, 0, [this](const std::string&, transport::Loop* loop, worker::ControlStream::Callbacks callbacks) {
          return std::make_unique<Stream>(this, loop, std::move(callbacks));
        });
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return runtime.ok() ? ClientAccess::Make(*std::move(runtime)) : nullptr;
  }

 private:
  class Stream final : public worker::ControlStream {
   public:
    Stream(Job* job, transport::Loop* loop, Callbacks callbacks)
        : job_(job), loop_(loop), callbacks_(std::make_shared<Callbacks>(std::move(callbacks))) {}
    ~Stream() override {
      *callbacks_ = Callbacks{[] {}, [](absl::Status) {}, [](proto::SchedulerMessage) {}};
    }
    void Open(TimeNs delay) override {
      loop_->After(delay, [callbacks = callbacks_] { callbacks->up(); });
    }
    void Send(const proto::MemberMessage& message) override {
      for (const proto::SchedulerMessage& answer : job_->Answer(message))
        loop_->Post([callbacks = callbacks_, answer] { callbacks->message(answer); });
    }

   private:
    Job* const job_;
    transport::Loop* const loop_;
    const std::shared_ptr<Callbacks> callbacks_;
  };

  std::vector<proto::SchedulerMessage> Answer(const proto::MemberMessage& message) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<proto::SchedulerMessage> answers(1);
    if (message.has_register_()) {
      answers[0].mutable_welcome()->set_job(1);
      answers[0].mutable_welcome()->set_incarnation(1);
    } else if (message.has_tensors()) {
      auto* done = answers[0].mutable_done();
      done->set_request(message.tensors().request());
      for (const proto::TensorSpec& spec : message.tensors().tensors()) Add(spec, done);
      plan_.set_version(plan_.version() + 1);
    } else if (message.has_leave()) {
      answers[0].mutable_done()->set_request(message.leave().request());
    } else {
      return {};
    }
    server_.SetPlan(plan_);
    answers.emplace_back();
    *answers.back().mutable_plan() = plan_;
    return answers;
  }
  void Add(const proto::TensorSpec& spec, proto::RequestDone* done) {
    for (const auto& info : plan_.tensors()) {
      if (info.spec().name() != spec.name()) continue;
      done->add_tensors(info.tensor());
      if (info.spec().table().SerializeAsString() == spec.table().SerializeAsString()) return;
      done->set_code(static_cast<int>(Code::kAlreadyExists));
      done->set_message("table " + spec.name() + " has other parameters");
      return;
    }
    auto* info = plan_.add_tensors();
    info->set_tensor(static_cast<uint32_t>(plan_.tensors_size() - 1));
    *info->mutable_spec() = spec;
    info->set_first_partition(partitions_);
    for (int s = 0; s < 2; ++s, ++partitions_) {  // segments
      info->add_partition_elements(spec.table().dim());
      info->add_partition_shard(0);
    }
    done->add_tensors(info->tensor());
  }

  ServerThread server_;
  std::mutex mutex_;
  proto::Plan plan_;  // guarded by mutex_
  uint32_t partitions_ = 0;
};

class ClientTablesTest : public testing::Test {
 protected:
  void Connect(uint32_t workers = 1) {
    job_ = std::make_unique<Job>(workers);
    client_ = job_->Connect();
    ASSERT_NE(client_, nullptr);
  }
  Table Register(TableSpec spec) {
    if (spec.name.empty()) spec.name = "users";
    spec.dim = 2;
    spec.optimizer.rate = 1;
    const auto table = client_->RegisterTable(spec);
    EXPECT_TRUE(table.ok()) << table.status().ToString();
    return table.ok() ? *table : Table{};
  }
  Floats Pull(Table table, const Ids& ids) {
    Floats out(2 * ids.size(), -1);
    const auto done = client_->PullRows(table, ids, out).Wait();
    EXPECT_TRUE(done.ok()) << done.status().ToString();
    return out;
  }
  static void Ok(Handle handle) {
    const auto done = handle.Wait();
    EXPECT_TRUE(done.ok()) << done.status().ToString();
  }
  static void Refused(Handle handle, Code code, const std::string& text) {
    const auto done = handle.Wait();
    ASSERT_FALSE(done.ok()) << text;
    EXPECT_EQ(done.status().code(), code) << done.status().ToString();
    EXPECT_NE(done.status().message().find(text), std::string::npos) << done.status().ToString();
  }

  std::unique_ptr<Job> job_;
  std::unique_ptr<Client> client_;  // goes first
};

TEST_F(ClientTablesTest, TheSameTableTwiceIsOneAndAnotherOfItsNameIsRefused) {
  Connect();
  const Table table = Register({});
  EXPECT_EQ(Register({}).id, table.id);
  TableSpec other;
  other.name = "users";
  other.dim = 3;
  const auto refused = client_->RegisterTable(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kAlreadyExists);
  EXPECT_NE(refused.status().message().find("users"), std::string::npos) << refused.status().ToString();
  Ok(client_->PushRows(table, Ids{1}, Floats{1, 2}));  // the first one is as it was
  EXPECT_EQ(Pull(table, {1}), (Floats{-1, -2}));
  Refused(client_->PullRows(Table{77, 2}, {}, {}), Code::kNotFound, "table 77 is not registered");
}

TEST_F(ClientTablesTest, SizesThatDoNotFitAreRefusedAndTakeNoRound) {
  Connect();
  const Table table = Register({});
  const Ids ids = {1, 2, 3};
  Floats five(5), six(6), seven(7);
  Refused(client_->PullRows(table, ids, five), Code::kInvalidArgument, "users: 3 rows of 2 values");
  Refused(client_->PullRows(table, ids, seven), Code::kInvalidArgument, "users: 3 rows of 2 values");
  Refused(client_->PushRows(table, ids, five), Code::kInvalidArgument, "users");
  Refused(client_->PushPullRows(table, ids, six, five), Code::kInvalidArgument, "users");
  Refused(client_->PushPullRows(table, ids, five, six), Code::kInvalidArgument, "users");
  Refused(client_->LookupRows(table, ids, std::vector<uint32_t>{0, 1}, Pooling::kSum, six), Code::kInvalidArgument,
          "users: 2 rows");
  Floats four(4);
  Refused(client_->LookupRows(table, ids, std::vector<uint32_t>{2, 1}, Pooling::kSum, four), Code::kInvalidArgument,
          "bag 0 begins at 2 and ends at 1");
  Refused(client_->LookupRows(table, ids, std::vector<uint32_t>{0, 4}, Pooling::kSum, four), Code::kInvalidArgument,
          "bag 1 begins at 4 and ends at 3");
  EXPECT_EQ(client_->NextRound(table), 0u);
}

TEST_F(ClientTablesTest, IdsBeyondTheVocabularyAreRefusedByIdAndPosition) {
  Connect();
  const Table table = Register({.vocabulary = 10});
  Floats out(4);
  Refused(client_->PullRows(table, Ids{9, 10}, out), Code::kInvalidArgument, "10");
  Refused(client_->PushRows(table, Ids{9, 10}, Floats{1, 1, 1, 1}), Code::kInvalidArgument, "users");
  EXPECT_EQ(client_->NextRound(table), 0u);
  EXPECT_EQ(Pull(table, {9}), (Floats{0, 0}));
}

TEST_F(ClientTablesTest, IdsBeyondTheVocabularyReadAsZerosIfAsked) {
  Connect();
  const Table table = Register({.initializer = "uniform", .vocabulary = 10, .unknown_as_zero = true});
  const Floats before = Pull(table, {9, 10});
  EXPECT_NE(before[0], 0);
  EXPECT_EQ((Floats{before[2], before[3]}), (Floats{0, 0}));
  Ok(client_->PushRows(table, Ids{10, 9}, Floats{5, 5, 1, 2}));
  EXPECT_EQ(Pull(table, {9, 10}), (Floats{before[0] - 1, before[1] - 2, 0, 0}));
}

TEST_F(ClientTablesTest, GradientsThatAreNotFiniteAreRefusedByTableAndId) {
  Connect();
  const Table table = Register({});
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const auto done = client_->PushRows(table, Ids{4, 4711}, Floats{1, 1, 1, bad}).Wait();
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.status().code(), Code::kInvalidArgument);
    for (const char* part : {"users", "4711"})
      EXPECT_NE(done.status().message().find(part), std::string::npos) << done.status().ToString();
  }
  EXPECT_EQ(client_->NextRound(table), 0u);
  EXPECT_EQ(Pull(table, {4, 4711}), (Floats{0, 0, 0, 0}));
}

TEST_F(ClientTablesTest, EmptyPushesAreRoundsAndEmptyPullsAreFine) {
  Connect();
  const Table table = Register({});
  for (uint64_t round = 0; round < 3; ++round) {
    auto done = client_->PushRows(table, {}, {}).Wait();
    ASSERT_TRUE(done.ok()) << done.status().ToString();
    EXPECT_EQ(done->round, round);
  }
  EXPECT_EQ(client_->NextRound(table), 3u);
  Ok(client_->PullRows(table, {}, {}));
  Ok(client_->PushPullRows(table, {}, {}, {}));
  Ok(client_->LookupRows(table, {}, {}, Pooling::kMean, {}));
  EXPECT_EQ(client_->NextRound(table), 4u);
}

TEST_F(ClientTablesTest, PoolsBagsBySumAndMeanAndEmptyOnesAreZeros) {
  Connect();
  const Table table = Register({});
  Ok(client_->PushRows(table, Ids{1, 2}, Floats{-1, -2, -3, -8}));
  const Ids ids = {1, 2, 1, 1, 9};
  const std::vector<uint32_t> offsets = {0, 0, 3, 3, 4, 5};  // {}, {1, 2, 1}, {}, {1}, {9}, {}
  Floats bags(12, -1);
  Ok(client_->LookupRows(table, ids, offsets, Pooling::kSum, bags));
  EXPECT_EQ(bags, (Floats{0, 0, 5, 12, 0, 0, 1, 2, 0, 0, 0, 0}));
  Ok(client_->LookupRows(table, ids, offsets, Pooling::kMean, bags));
  EXPECT_EQ(bags, (Floats{0, 0, 5.0f / 3, 4, 0, 0, 1, 2, 0, 0, 0, 0}));
}

TEST_F(ClientTablesTest, PushPullShowsTheRoundThatItPushed) {
  Connect();
  const Table table = Register({});
  Floats out(6);
  for (int round = 1; round <= 3; ++round) {
    Ok(client_->PushPullRows(table, Ids{7, 8, 7}, Floats{1, 2, 10, 20, 3, 4}, out));
    const auto n = static_cast<float>(round);
    EXPECT_EQ(out, (Floats{-4 * n, -6 * n, -10 * n, -20 * n, -4 * n, -6 * n}));
  }
}

TEST_F(ClientTablesTest, PrefetchWantsACacheAndTheCacheServesForItsStaleness) {
  Connect();
  const Table plain = Register({});
  Refused(client_->PrefetchRows(plain, Ids{1}), Code::kFailedPrecondition, "cache_rows");
  const Table table = Register({.name = "cached", .cache_rows = 100, .cache_staleness = 1});
  Ok(client_->PrefetchRows(table, Ids{1, 2, 1}));
  const Floats gradients = {1, 1, 1, 1};
  Ok(client_->PushRows(table, Ids{1, 2}, gradients));
  EXPECT_EQ(Pull(table, {1, 2}), (Floats{0, 0, 0, 0}));  // of one round ago
  EXPECT_EQ(Pull(table, {3, 1}), (Floats{0, 0, 0, 0}));
  Ok(client_->PushRows(table, Ids{1, 2}, gradients));
  EXPECT_EQ(Pull(table, {2, 1}), (Floats{-2, -2, -2, -2}));  // two rounds are too many
}

TEST_F(ClientTablesTest, ACacheWithoutStalenessServesWithinARoundAlone) {
  Connect();
  const Table table = Register({.cache_rows = 100});
  EXPECT_EQ(Pull(table, {1}), (Floats{0, 0}));
  Ok(client_->PushRows(table, Ids{1}, Floats{1, 1}));
  EXPECT_EQ(Pull(table, {1}), (Floats{-1, -1}));
}

TEST_F(ClientTablesTest, DroppedHandlesCancelNothing) {
  Connect();
  const Table table = Register({});
  for (int i = 0; i < 20; ++i) client_->PushRows(table, Ids{1}, Floats{1, 2});
  EXPECT_EQ(Pull(table, {1}), (Floats{-20, -40}));  // a pull shows what was pushed before it
  EXPECT_TRUE(client_->Finish().ok());
}

// The other worker of this job never comes: its round stays open.
TEST_F(ClientTablesTest, ADeadlineEndsTheWaitAndNamesTheTable) {
  Floats out(2);  // Sluice's until the client has gone
  Connect(2);
  const Table table = Register({});
  const OpOptions soon = {.timeout = std::chrono::milliseconds(30)};
  Refused(client_->PushRows(table, Ids{1}, Floats{1, 1}, soon), Code::kDeadlineExceeded, "users");
  Refused(client_->PullRows(table, Ids{1}, out, soon), Code::kDeadlineExceeded, "users");
  client_.reset();
}

TEST_F(ClientTablesTest, CancelStopsWaitingAndWhatWasPushedStaysPushed) {
  Floats out(2);
  Connect(2);
  const Table table = Register({});
  Handle push = client_->PushRows(table, Ids{1}, Floats{1, 1});
  Handle pull = client_->PullRows(table, Ids{1}, out);
  push.Cancel();
  pull.Cancel();
  Refused(push, Code::kCancelled, "");
  Refused(pull, Code::kCancelled, "");
  EXPECT_EQ(client_->NextRound(table), 1u);
  client_.reset();
}

}  // namespace
}  // namespace sluice
