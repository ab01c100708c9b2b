// Workers on a simulated network with fake servers and a scheduler of a few lines, in one thread on simulated time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "transport/sim/sim_endpoint.h"
#include "transport/sim/sim_network.h"
#include "worker/core.h"
#include "worker/testing/fake_server.h"

namespace sluice::worker {

struct ClusterOptions {
  uint32_t ranks = 1;
  uint32_t servers = 1;
  std::string job;  // JobConfig in text format
  std::string data = "resend_ms: 50 eager_bytes: 64";
  size_t partition_elements = 64;
  proto::Exchange exchange = proto::EXCHANGE_SERVERS;   // of all tensors
  uint64_t seed = 1;
  transport::SimFaults faults;
  FakeServer::Options server;
};

class Cluster {
 public:
  explicit Cluster(ClusterOptions options)
      : options_(std::move(options)), network(options_.seed, options_.faults, &clock) {
    proto::JobConfig job;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(options_.job, &job));
    job.set_workers(options_.ranks);
    job.set_name("test");
    options_.server.ranks = options_.ranks;
    plan.set_job(1);
    plan.set_uid(99);
    plan.set_state(proto::JOB_RUNNING);
    *plan.mutable_config() = job;
    for (uint32_t s = 0; s < options_.servers; ++s) {
      server_endpoints_.push_back(network.CreateEndpoint(absl::StrCat("s", s)));
      servers.push_back(std::make_unique<FakeServer>(server_endpoints_.back().get(), &clock, options_.server));
      transport::Hello self;
      self.role = transport::PeerRole::kServer;
      self.name = absl::StrCat("s", s);
      server_endpoints_.back()->Listen(self);
      proto::ServerInfo* info = plan.add_servers();
      info->set_server(s);
      info->set_id(absl::StrCat("s", s));
      info->add_lanes()->set_host(absl::StrCat("s", s));
      proto::ShardInfo* shard = plan.add_shards();
      shard->set_shard(s);
      shard->set_server(s);
      shard->set_term(1);
    }
    for (uint32_t r = 0; r < options_.ranks; ++r) {
      proto::WorkerInfo* info = plan.add_workers();
      info->set_rank(r);
      info->set_alive(true);
    }
    workers.resize(options_.ranks);
    Tick();
  }

  struct Worker {
    std::unique_ptr<WorkerCore> core;
    std::unique_ptr<transport::SimEndpoint> endpoint;  // before the core goes
    std::vector<std::string> reports;
    std::vector<proto::MemberMessage> unanswered;  // while the scheduler is away
    uint32_t incarnation = 0;
    ~Worker() {
      endpoint.reset();
      core.reset();
    }
  };

  // Starts rank (again) and waits until it is ready.
  Worker& Start(uint32_t rank, WorkerObserver* observer = nullptr, bool wait = true) {
    Kill(rank);
    workers[rank] = std::make_unique<Worker>();
    Worker& worker = *workers[rank];
    worker.incarnation = ++incarnations_;
    plan.mutable_workers(static_cast<int>(rank))->set_incarnation(worker.incarnation);
    worker.endpoint = network.CreateEndpoint(absl::StrCat("w", rank, "-", worker.incarnation));
    transport::Hello self;
    self.role = transport::PeerRole::kWorker;
    self.name = worker.endpoint->name();
    worker.endpoint->Listen(self);
    proto::WorkerInfo* info = plan.mutable_workers(static_cast<int>(rank));
    info->clear_listeners();
    info->add_listeners()->set_host(worker.endpoint->name());
    WorkerCoreOptions options;
    *options.config.mutable_job() = plan.config();
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(options_.data, options.config.mutable_data()));
    options.config.mutable_node()->set_connect_timeout_ms(60000);
    options.config.mutable_node()->set_scheduler("sched");
    options.rank = static_cast<int32_t>(rank);
    options.id = absl::StrCat("host:", rank);
    options.incarnation = worker.incarnation;
    options.observer = observer;
    options.report = [&worker](const std::string& text) { worker.reports.push_back(text); };
    control::MemberCore::Output output;
    output.send = [this, rank, life = worker.incarnation](const proto::MemberMessage& message) {
      network.Schedule(kMillisecond, [this, rank, life, message] {
        if (Alive(rank, life)) OnMember(rank, message);
      });
    };
    output.reconnect = [this, rank, life = worker.incarnation](TimeNs delay) {
      network.Schedule(delay, [this, rank, life] {
        if (!Alive(rank, life)) return;
        if (scheduler_up) workers[rank]->core->member().OnStreamUp();
      });
    };
    worker.core = WorkerCore::Create(std::move(options), worker.endpoint.get(), &clock, std::move(output));
    absl::Status ready = absl::UnknownError("not ready");
    auto state = std::make_shared<absl::Status>(ready);
    worker.core->Start([state](absl::Status status) { *state = std::move(status); });
    if (wait) {
      RunUntil([&] { return state->code() != absl::StatusCode::kUnknown; });
      EXPECT_TRUE(state->ok()) << *state;
    }
    return worker;
  }
  // As kill -9.
  void Kill(uint32_t rank) {
    if (workers[rank] == nullptr) return;
    network.Crash(workers[rank]->endpoint->name());
    workers[rank].reset();
  }

  WorkerCore& core(uint32_t rank) { return *workers[rank]->core; }

  // Registers the same tensors on all live workers; returns their ids.
  std::vector<uint32_t> Register(const std::vector<std::pair<std::string, uint64_t>>& tensors) {
    std::vector<uint32_t> ids;
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      if (workers[rank] != nullptr) ids = RegisterOn(rank, tensors);
    }
    return ids;
  }
  std::vector<uint32_t> RegisterOn(uint32_t rank, const std::vector<std::pair<std::string, uint64_t>>& tensors) {
    std::vector<proto::TensorSpec> specs;
    for (const auto& [name, elements] : tensors) {
      proto::TensorSpec spec;
      spec.set_name(name);
      spec.add_shape(elements);
      spec.set_dtype("fp32");
      spec.set_priority(static_cast<int>(specs.size()));
      specs.push_back(spec);
    }
    absl::StatusOr<std::vector<uint32_t>> ids = absl::UnknownError("");
    core(rank).RegisterTensors(specs, [&](absl::StatusOr<std::vector<uint32_t>> got) { ids = std::move(got); });
    RunUntil([&] { return ids.status().code() != absl::StatusCode::kUnknown; });
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.ok() ? *ids : std::vector<uint32_t>();
  }

  struct Pending {
    bool done = false, released = false;
    int calls = 0;
    OpResult result;
  };
  std::shared_ptr<Pending> Submit(uint32_t rank, OpRequest request) {
    auto pending = std::make_shared<Pending>();
    inside_submit_ = true;
    core(rank).Submit(
        request,
        [this, pending](const OpResult& result) {
          EXPECT_FALSE(inside_submit_) << "done was called from inside Submit";
          ++pending->calls;
          pending->done = true;
          pending->result = result;
        },
        [pending] {
          EXPECT_TRUE(pending->done);
          pending->released = true;
        });
    inside_submit_ = false;
    return pending;
  }

  // Steps the simulation; every event is followed by the cores' turn ends. Fails the test after `limit` of simulated
  // time.
  template <typename Predicate>
  bool RunUntil(Predicate predicate, TimeNs limit = 120 * kSecond) {
    const TimeNs end = clock.Now() + limit;
    TurnEnds();
    while (!predicate()) {
      if (clock.Now() > end || !network.Step()) {
        ADD_FAILURE() << "nothing came of it by " << clock.Now() / kMillisecond << " ms";
        for (const auto& worker : workers) {
          if (worker != nullptr) ADD_FAILURE() << worker->core->Waiting();
        }
        return false;
      }
      TurnEnds();
    }
    return true;
  }
  void RunFor(TimeNs time) {
    const TimeNs end = clock.Now() + time;
    RunUntil([&] { return clock.Now() >= end; });
  }
  bool Wait(const std::vector<std::shared_ptr<Pending>>& operations) {
    return RunUntil([&] {
      for (const auto& operation : operations) {
        if (!operation->done || !operation->released) return false;
      }
      return true;
    });
  }
  void SendPlan(uint32_t rank) {
    proto::SchedulerMessage message;
    *message.mutable_plan() = plan;
    core(rank).member().OnMessage(message);
  }
  void BumpPlan() {
    plan.set_version(plan.version() + 1);
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      if (workers[rank] != nullptr) SendPlan(rank);
    }
  }

  ClusterOptions options_;
  ManualClock clock;
  transport::SimNetwork network;
  std::vector<std::unique_ptr<transport::SimEndpoint>> server_endpoints_;
  std::vector<std::unique_ptr<FakeServer>> servers;
  proto::Plan plan;
  std::vector<std::unique_ptr<Worker>> workers;
  bool scheduler_up = true;
  std::map<std::string, std::vector<uint64_t>> barriers;  // sequences seen

 private:
  bool Alive(uint32_t rank, uint32_t life) const {
    return workers[rank] != nullptr && workers[rank]->incarnation == life;
  }
  void Tick() {
    for (const auto& worker : workers) {
      if (worker != nullptr) worker->core->OnTick();
    }
    network.Schedule(10 * kMillisecond, [this] { Tick(); });
  }
  void TurnEnds() {
    for (const auto& worker : workers) {
      if (worker != nullptr) worker->core->OnTurnEnd();
    }
    for (const auto& server : servers) server->TurnEnd();
  }
  // The scheduler: registrations are welcome, tensors are cut and spread, barriers open at once.
  void OnMember(uint32_t rank, const proto::MemberMessage& message) {
    if (!scheduler_up) return;
    control::MemberCore& member = core(rank).member();
    proto::SchedulerMessage answer;
    if (message.has_register_()) {
      proto::Welcome* welcome = answer.mutable_welcome();
      welcome->set_job(1);
      welcome->set_rank(rank);
      welcome->set_incarnation(workers[rank]->incarnation);
      welcome->set_heartbeat_ms(500);
      welcome->set_lease_ms(5000);
      member.OnMessage(answer);
      BumpPlan();
    } else if (message.has_tensors()) {
      proto::RequestDone* done = answer.mutable_done();
      done->set_request(message.tensors().request());
      for (const proto::TensorSpec& spec : message.tensors().tensors()) {
        const proto::TensorInfo* known = nullptr;
        for (const proto::TensorInfo& info : plan.tensors()) {
          if (info.spec().name() == spec.name()) known = &info;
        }
        if (known == nullptr) known = AddTensor(spec);
        if (known->spec().shape(0) != spec.shape(0)) {
          done->set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
          done->set_message(absl::StrCat("tensor ", spec.name(), " was registered with another shape"));
        }
        done->add_tensors(known->tensor());
      }
      member.OnMessage(answer);
      BumpPlan();
    } else if (message.has_barrier()) {
      barriers[message.barrier().name()].push_back(message.barrier().sequence());
      answer.mutable_done()->set_request(message.barrier().request());
      member.OnMessage(answer);
    } else if (message.has_leave()) {
      answer.mutable_done()->set_request(message.leave().request());
      member.OnMessage(answer);
    } else if (message.has_heartbeat()) {
      answer.mutable_heartbeat_ack()->set_sequence(message.heartbeat().sequence());
      member.OnMessage(answer);
    }
  }
  const proto::TensorInfo* AddTensor(const proto::TensorSpec& spec) {
    proto::TensorInfo* info = plan.add_tensors();
    info->set_tensor(static_cast<uint32_t>(plan.tensors_size() - 1));
    *info->mutable_spec() = spec;
    info->set_first_partition(partitions_);
    info->set_exchange(options_.exchange);
    if (options_.exchange != proto::EXCHANGE_SERVERS) return info;
    for (uint64_t left = spec.shape(0); left > 0;) {
      const uint64_t n = std::min<uint64_t>(left, options_.partition_elements);
      const uint32_t shard = partitions_ % options_.servers;
      info->add_partition_elements(n);
      info->add_partition_shard(shard);
      servers[shard]->AddPartition(partitions_++, info->tensor(), n);
      left -= n;
    }
    return info;
  }

  uint32_t incarnations_ = 0;
  uint32_t partitions_ = 0;
  bool inside_submit_ = false;
};

}  // namespace sluice::worker
