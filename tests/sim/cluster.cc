#include "tests/sim/cluster.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "scheduler/trees.h"
#include "tests/sim/checker.h"
#include "tests/sim/nodes.h"

namespace sluice::sim {
namespace {

constexpr TimeNs kLimit = 300 * kSecond;  // simulated; faults end long before
constexpr TimeNs kSettle = 200 * kMillisecond;
constexpr TimeNs kPatience = 20 * kMillisecond;   // of a fault that must wait

class Cluster {
 public:
  Cluster(const Scenario& scenario, const RunOptions& options)
      : scenario_(scenario),
        network_(scenario.seed, scenario.faults.network, &clock_),
        random_(scenario.seed, /*stream=*/0x6661),
        start_(clock_.Now()) {
    world_.scenario = &scenario_;
    world_.clock = &clock_;
    world_.network = &network_;
    world_.history = &outcome_.history;
    world_.lying_copies = options.lying_copies;
    world_.note = [this, trace = options.trace](const std::string& text) {
      if (trace) trace(absl::StrFormat("%10.3f ms  %s", static_cast<double>(clock_.Now() - start_) / 1e6, text));
    };
    world_.fail = [this](const absl::Status& status) { outcome_.status.Update(status); };
    world_.begins = [this](uint32_t rank, uint64_t round) { OnBegin(rank, round); };
    if (options.trace && options.trace_frames) network_.set_trace(world_.note);
    tracing_ = options.trace != nullptr;
    PlanFaults();
  }

  Outcome Run() {
    scheduler_ = std::make_unique<SchedulerNode>(&world_);
    scheduler_->Start();
    for (uint32_t s = 0; s < scenario_.servers; ++s) {
      servers_.push_back(std::make_unique<ServerNode>(&world_, s));
      servers_.back()->Start();
    }
    for (uint32_t rank = 0; rank < scenario_.job.workers(); ++rank) {
      workers_.push_back(std::make_unique<WorkerNode>(&world_, rank));
      workers_.back()->Start();
    }
    for (const Fault& fault : faults_)
      if (fault.round == kAtStart) Schedule(fault);
    size_t noted = 0;
    while (outcome_.status.ok() && !Finished()) {
      if (clock_.Now() - start_ > kLimit || !network_.Step()) {
        outcome_.status = absl::DeadlineExceededError(Waits());
        break;
      }
      for (; tracing_ && noted < outcome_.history.events.size(); ++noted)
        world_.note(Describe(outcome_.history.events[noted]));
      if (const auto plan = planned_ ? std::nullopt : scheduler_->Plan();
          plan.has_value() && plan->tensors_size() == static_cast<int>(scenario_.tensors.size() + scenario_.tables.size())) {
        outcome_.history.plan = *plan;
        planned_ = true;
      }
    }
    outcome_.took = clock_.Now() - start_;
    if (const auto plan = scheduler_->Plan(); plan.has_value() && plan->tensors_size() > 0)
      outcome_.history.plan = *plan;  // with the ranks that are out
    if (outcome_.status.ok()) {
      network_.set_faults({});
      // A server that is cut off from the scheduler hears of the job's end when the cut is over.
      absl::Status idle;
      for (int i = 0; i == 0 || (i < 20 && !idle.ok()); ++i) {
        network_.RunFor(kSettle);
        idle = absl::OkStatus();
        for (const auto& server : servers_) idle.Update(server->CheckIdle());
      }
      outcome_.status.Update(idle);
      if (network_.stats().changed_while_lent > 0 && scenario_.style != OpStyle::kInPlace)
        outcome_.status.Update(absl::InternalError(
            absl::StrCat(network_.stats().changed_while_lent, " payloads were written to while they were lent")));
    }
    for (const auto& worker : workers_) outcome_.trainers.push_back(worker->state());
    outcome_.network = network_.stats();
    workers_.clear();
    servers_.clear();
    return std::move(outcome_);
  }

 private:
  static constexpr uint64_t kAtStart = UINT64_MAX;
  enum class Kind { kCut, kWorkerCrash, kWorkerLoss, kSchedulerCrash, kServerCrash, kOrder, kTrees };
  struct Fault {
    Kind kind;
    uint64_t round;  // begins some time after the first worker has begun this round
    TimeNs delay, duration;
    std::string a, b;
    uint32_t rank = 0;
    bool one_way = false;
    bool fired = false;
  };

  // Between a and b, as likely in each decade.
  TimeNs Log(TimeNs a, TimeNs b) {
    const double low = std::log(static_cast<double>(a)), high = std::log(static_cast<double>(b));
    return static_cast<TimeNs>(std::exp(low + (high - low) * random_.Uniform()));
  }

  void PlanFaults() {
    const auto add = [&](Kind kind) -> Fault& {
      Fault fault;
      fault.kind = kind;
      fault.round = random_.Chance(0.15) ? kAtStart : random_.Below(static_cast<uint32_t>(scenario_.rounds()));
      fault.delay = fault.round == kAtStart ? Log(100 * kMicrosecond, 500 * kMillisecond)
                                            : Log(10 * kMicrosecond, 10 * kMillisecond);
      faults_.push_back(fault);
      return faults_.back();
    };
    const auto server = [&] { return ServerNode::NodeName(random_.Below(scenario_.servers)); };
    for (uint32_t i = 0; i < scenario_.faults.cuts; ++i) {
      Fault& fault = add(Kind::kCut);
      fault.duration = Log(100 * kMicrosecond, kSecond);
      fault.a = WorkerNode::NodeName(random_.Below(scenario_.job.workers()));
      switch (random_.Below(4)) {
        case 0:
        case 1: fault.b = server(); break;
        case 2:
          fault.b = kSchedulerName;
          fault.duration = Log(kMillisecond, 10 * kSecond);  // beyond the lease too
          break;
        case 3:
          fault.a = server();
          fault.b = random_.Chance(0.5) ? server() : kSchedulerName;
          break;
      }
      if (fault.b == kSchedulerName) continue;   // a channel of gRPC has both directions or is down
      fault.one_way = random_.Chance(0.3);
      if (fault.one_way && random_.Chance(0.5)) std::swap(fault.a, fault.b);
    }
    // Who is away from the scheduler for a lease is out under "rescale", and cannot go on.
    for (Fault& fault : faults_)
      if (scenario_.job.on_worker_loss() == proto::LOSS_RESCALE) fault.duration = std::min(fault.duration, kSecond);
    const uint32_t first = random_.Below(scenario_.job.workers());
    for (uint32_t i = 0; i < scenario_.faults.losses; ++i) {
      Fault& fault = add(Kind::kWorkerLoss);
      if (fault.round == kAtStart) fault.round = 0;  // one that is lost before the job runs is waited for
      fault.rank = (first + i) % scenario_.job.workers();
    }
    for (uint32_t i = 0; i < scenario_.faults.worker_crashes; ++i) {
      Fault& fault = add(Kind::kWorkerCrash);
      fault.rank = random_.Below(scenario_.job.workers());
      fault.duration = random_.Chance(0.1) ? Log(kSecond, 10 * kSecond) : Log(100 * kMicrosecond, kSecond);
    }
    // A job whose workers have all gone before it started is over: at the start nobody is away for a lease.
    for (Fault& fault : faults_)
      if (fault.round == kAtStart) fault.duration = std::min(fault.duration, kSecond);
    for (uint32_t i = 0; i < scenario_.faults.server_crashes; ++i) {
      Fault& fault = add(Kind::kServerCrash);
      if (fault.round == kAtStart) fault.round = 0;   // before a job runs there is nothing to lose
      fault.rank = random_.Below(scenario_.servers);
      fault.duration = random_.Chance(0.3) ? Log(kSecond, 10 * kSecond) : Log(100 * kMicrosecond, kSecond);
    }
    for (uint32_t i = 0; i < scenario_.faults.orders; ++i) {
      Fault& fault = add(Kind::kOrder);
      if (fault.round == kAtStart) fault.round = 0;
      fault.rank = random_.Below(1 << 16);   // which, to whom
      fault.duration = Log(kMillisecond, kSecond);
    }
    for (uint32_t i = 0; i < scenario_.faults.trees; ++i) {
      Fault& fault = add(Kind::kTrees);
      if (fault.round == kAtStart) fault.round = 0;
      fault.rank = random_.Below(1 << 30);   // which
    }
    for (uint32_t i = 0; i < scenario_.faults.scheduler_crashes; ++i)
      add(Kind::kSchedulerCrash).duration = Log(kMillisecond, 2 * kSecond);
  }

  void OnBegin(uint32_t rank, uint64_t round) {
    world_.note(absl::StrCat("worker ", rank, " begins round ", round));
    for (Fault& fault : faults_)
      if (fault.round != kAtStart && fault.round <= round && !std::exchange(fault.fired, true)) Schedule(fault);
  }

  void Schedule(const Fault& fault) {
    network_.Schedule(fault.delay, [this, fault] { Fire(fault); });
  }

  void Fire(const Fault& fault) {
    switch (fault.kind) {
      case Kind::kCut:
        if (fault.a == fault.b) return;
        world_.note(absl::StrCat("CUT ", fault.one_way ? "from " : "between ", fault.a, fault.one_way ? " to " : " and ",
                                 fault.b, " for ", fault.duration / kMicrosecond, " us"));
        if (fault.one_way) {
          network_.CutOneWay(fault.a, fault.b, fault.duration);
        } else {
          network_.Cut(fault.a, fault.b, fault.duration);
        }
        return;
      case Kind::kWorkerCrash: {
        WorkerNode& worker = *workers_[fault.rank];
        if (!worker.alive() || worker.trained()) return;
        world_.note(absl::StrCat("KILL worker ", fault.rank, " for ", fault.duration / kMicrosecond, " us"));
        worker.Crash();
        network_.Schedule(fault.duration, [&worker] { worker.Start(); });
        return;
      }
      case Kind::kWorkerLoss: {
        WorkerNode& worker = *workers_[fault.rank];
        if (!worker.alive() || worker.trained()) return;
        world_.note(absl::StrCat("KILL worker ", fault.rank, " until it is out"));
        worker.Lose();
        if (scenario_.faults.returns) Return(fault.rank);
        return;
      }
      case Kind::kServerCrash: {
        ServerNode& server = *servers_[fault.rank];
        if (std::ranges::all_of(workers_, [](const auto& worker) { return worker->trained(); })) return;
        if (!server.alive() || !MayLose(fault.rank)) {
          // As soon as the job is protected again.
          network_.Schedule(kPatience, [this, fault] { Fire(fault); });
          return;
        }
        world_.note(absl::StrCat("KILL server ", fault.rank, " for ", fault.duration / kMicrosecond, " us"));
        server.Crash();
        network_.Schedule(fault.duration, [&server] { server.Start(); });
        return;
      }
      case Kind::kOrder: Order(fault); return;
      case Kind::kTrees: ChangeTrees(fault); return;
      case Kind::kSchedulerCrash:
        if (!scheduler_->up()) return;
        world_.note(absl::StrCat("KILL scheduler for ", fault.duration / kMicrosecond, " us"));
        scheduler_->Crash();
        network_.Schedule(fault.duration, [this] { scheduler_->Start(); });
        return;
    }
  }

  // What an operator may ask for at any time; that it is refused is an answer too.
  void Order(const Fault& fault) {
    const auto plan = scheduler_->Plan();
    if (!plan.has_value() || plan->state() != proto::JOB_RUNNING || plan->shards().empty()) return;
    scheduler::SchedulerCore& core = *scheduler_->core();
    const std::string& job = scenario_.job.name();
    const auto shard = fault.rank / 8 % static_cast<uint32_t>(plan->shards_size());
    const std::string server = ServerNode::NodeName(fault.rank / 1024 % scenario_.servers);
    switch (fault.rank % 8) {
      case 0: (void)core.CancelMoves(job); break;
      case 1: (void)core.Rebalance(job, /*dry_run=*/false); break;
      case 2:
        // A drain to the last servers takes protection away, by order.
        if (scenario_.servers <= scenario_.job.replicas() + 1 || scenario_.faults.server_crashes > 0) break;
        (void)core.SetDraining(server, true);
        network_.Schedule(fault.duration, [this, server] {
          if (scheduler_->up()) (void)scheduler_->core()->SetDraining(server, false);
        });
        break;
      case 3:
        (void)core.SetMovesPaused(job, true);
        network_.Schedule(fault.duration, [this, job] {
          if (scheduler_->up()) (void)scheduler_->core()->SetMovesPaused(job, false);
        });
        break;
      default: (void)core.MoveShard(job, shard, server);
    }
    world_.note(absl::StrCat("ORDER ", fault.rank % 8, ": shard ", shard, ", ", server));
  }

  // Any trees: one or two of them, of one level or more or without nodes, over any of the servers, for some of the shards.
  void ChangeTrees(const Fault& fault) {
    const auto plan = scheduler_->Plan();
    if (!plan.has_value() || plan->state() != proto::JOB_RUNNING) return;
    PhiloxRandom random(fault.rank, /*stream=*/0x747273);
    scheduler::TreeChoice choice;
    const uint32_t trees = 1 + random.Below(2);
    for (uint32_t t = 1; t <= trees; ++t) {
      proto::Tree& tree = choice.trees.emplace_back();
      tree.set_tree(t);
      for (const proto::ServerInfo& server : plan->servers()) {
        if (!server.alive() || random.Chance(0.3)) continue;
        proto::TreeNode* node = tree.add_nodes();
        node->set_server(server.server());
        node->set_parent(static_cast<int32_t>(random.Below(static_cast<uint32_t>(tree.nodes_size()))) - 1);
      }
      for (uint32_t rank = 0; rank < scenario_.job.workers() && tree.nodes_size() > 0; ++rank)
        if (random.Chance(0.8)) tree.mutable_nodes(static_cast<int>(random.Below(static_cast<uint32_t>(tree.nodes_size()))))->add_ranks(rank);
    }
    for (const proto::ShardInfo& shard : plan->shards()) choice.tree_of_shard[shard.shard()] = random.Below(trees + 1);
    const absl::Status status = scheduler_->core()->SetTrees(scenario_.job.name(), choice);
    world_.note(absl::StrCat("TREES ", choice.trees.size(), ": ", status.ToString()));
    Probe();
  }

  // Links are probed while the job goes on: no bit of it may change. That one is refused, since another goes on, is an answer too.
  void Probe() {
    proto::ProbeLinksRequest request;
    request.set_bytes(64 << 10);
    request.set_all(true);
    const auto answer = scheduler_->core()->ProbeLinks(request);
    world_.note(absl::StrCat("PROBE: ", answer.ok() ? absl::StrCat(answer->pairs(), " pairs") : answer.status().ToString()));
  }

  // As soon as the others go on without it, if they do so for long enough.
  void Return(uint32_t rank) {
    WorkerNode& worker = *workers_[rank];
    if (worker.alive() && !worker.joins()) return;   // it takes part
    // The others are through: the job may end at any moment, and who comes then would begin another.
    if (std::ranges::all_of(workers_, [&](const auto& w) { return w.get() == &worker || w->trained() || !w->alive(); })) {
      worker.Lose();
      return;
    }
    const auto plan = scheduler_->Plan();
    if (!worker.alive() && plan.has_value() && plan->state() == proto::JOB_RUNNING &&
        plan->workers(static_cast<int>(rank)).out_from_round_size() > 0) {
      world_.note(absl::StrCat("worker ", rank, " RETURNS"));
      outcome_.history.plan = *plan;   // should the job end before it is there, it begins another one
      worker.Return();
    }
    network_.Schedule(kMillisecond, [this, rank] { Return(rank); });
  }

  // Whether every shard has, without this server, its owner or a copy in sync in a process that lives.
  bool MayLose(uint32_t victim) const {
    const auto plan = scheduler_->Plan();
    if (!plan.has_value() || plan->state() != proto::JOB_RUNNING) return false;
    const auto holds = [&](uint32_t server) {
      const proto::ServerInfo& info = plan->servers(static_cast<int>(server));
      return server != victim && servers_[server]->alive() && servers_[server]->incarnation() == info.incarnation();
    };
    return std::ranges::all_of(plan->shards(), [&](const proto::ShardInfo& shard) {
      // The owner of the plan may be lost already and the scheduler not know it: then a copy must be there.
      return std::ranges::any_of(shard.backups(), [&](const proto::BackupInfo& b) { return b.in_sync() && holds(b.server()); }) ||
             (holds(shard.server()) && shard.server() != victim);
    });
  }

  bool Finished() const {
    return scheduler_->up() &&
           std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) { return worker->finished(); });
  }

  std::string Waits() const {
    std::string text = absl::StrCat("no end after ", (clock_.Now() - start_) / kSecond, " simulated seconds");
    for (const auto& worker : workers_) absl::StrAppend(&text, "; ", worker->Waiting());
    for (const auto& server : servers_)
      if (const std::string waits = server->Waiting(); !waits.empty()) absl::StrAppend(&text, "; ", waits);
    return text;
  }

  const Scenario scenario_;
  ManualClock clock_;
  transport::SimNetwork network_;
  PhiloxRandom random_;
  const TimeNs start_;
  World world_;
  Outcome outcome_;
  std::unique_ptr<SchedulerNode> scheduler_;
  std::vector<std::unique_ptr<ServerNode>> servers_;
  std::vector<std::unique_ptr<WorkerNode>> workers_;
  std::vector<Fault> faults_;
  bool planned_ = false;
  bool tracing_ = false;
};

absl::Status With(const absl::Status& status, const std::string& what) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(what, ": ", std::string(status.message())));
}

}  // namespace

Outcome RunScenario(const Scenario& scenario, const RunOptions& options) { return Cluster(scenario, options).Run(); }

absl::Status JudgeSeed(uint64_t seed, const RunOptions& options, Outcome* out) {
  const Scenario scenario = MakeScenario(seed);
  Outcome outcome = RunScenario(scenario, options);
  absl::Status status = With(outcome.status, "the run");
  if (status.ok()) status = With(CheckHistory(outcome.history, scenario.rounds()), "the history");
  if (status.ok() && scenario.deterministic()) {
    const Outcome calm = RunScenario(WithoutFaults(scenario));
    status = With(calm.status, "the run without faults");
    if (status.ok()) status = With(CheckHistory(calm.history, scenario.rounds()), "the history without faults");
    if (status.ok()) status = CompareHistories(calm.history, outcome.history);
    for (size_t rank = 0; status.ok() && rank < calm.trainers.size(); ++rank)
      for (size_t t = 0; t < calm.trainers[rank].x.size(); ++t)
        if (!std::ranges::equal(std::as_bytes(std::span(calm.trainers[rank].x[t])),
                                std::as_bytes(std::span(outcome.trainers[rank].x[t]))))
          status = absl::InternalError(absl::StrCat("rank ", rank, " ends with other parameters of tensor ", t,
                                                    " than without faults"));
  }
  if (out != nullptr) *out = std::move(outcome);
  return status;
}

}  // namespace sluice::sim
