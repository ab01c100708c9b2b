// A worker's life:
//   1. Start        a new core, a new incarnation; registers with the scheduler
//   2. Registered   tensors are there and admitted; goes on from what was saved, if there is something
//   3. BeginRound   pulls the rows that the round needs, then saves core and trainer state together and computes for a while
//   4. SubmitRound  one operation a tensor (or two) and table; when the core has let go of all -> EndRound -> 3
//   5.              after the last round: leaves the job
// One that returns goes from 2 to Join: rounds are named by the core; Align brings tensors that are behind to the round of the
// others by pushes of nothing, then parameters are pulled -> 3.
// Crash ends it anywhere; memory of the life, gradients and outputs included, is gone then.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/nodes.h"
#include "worker/row_pulls.h"
#include "worker/rows.h"

namespace sluice::sim {
namespace {

constexpr TimeNs kTick = 10 * kMillisecond;

}  // namespace

struct WorkerNode::Life {
  Life(World* world, const std::string& name) : stream(world, name, [this] { turn->Touch(); }) {}
  ~Life() {
    endpoint.reset();
    core.reset();
  }
  struct Op {
    uint32_t tensor = 0;
    std::vector<float> gradient, output;
    worker::OpResult result;
    bool pull = false, rows = false;
  };

  uint32_t incarnation = 0;
  MemberStream stream;
  std::unique_ptr<WorkerRecorder> recorder;
  std::vector<std::unique_ptr<Op>> ops;   // of the running round; outlives the core's use of it
  std::unique_ptr<worker::WorkerCore> core;
  std::unique_ptr<Turn> turn;
  std::unique_ptr<Tap> tap;
  std::unique_ptr<transport::SimEndpoint> endpoint;
  std::vector<uint32_t> ids, table_ids;   // of the scenario's tensors and tables
  size_t unreleased = 0;
};

WorkerNode::WorkerNode(World* world, uint32_t rank)
    : world_(world), rank_(rank), state_(InitialState(*world->scenario, rank)) {}

WorkerNode::~WorkerNode() { Crash(); }

std::string WorkerNode::NodeName(uint32_t rank) { return absl::StrCat("w", rank); }

void WorkerNode::Fail(const std::string& what, const absl::Status& status) {
  world_->fail(absl::Status(status.code(), absl::StrCat("worker ", rank_, ", life ", lives_, ", ", what, ": ",
                                                        std::string(status.message()))));
}

void WorkerNode::Start() {
  const Scenario& scenario = *world_->scenario;
  const std::string name = NodeName(rank_);
  ++lives_;
  world_->note(absl::StrCat("worker ", rank_, " starts its life ", lives_));
  life_ = std::make_unique<Life>(world_, name);
  Life& life = *life_;
  life.incarnation = lives_;
  life.recorder = std::make_unique<WorkerRecorder>(rank_, lives_, world_->history);
  life.endpoint = world_->network->CreateEndpoint(absl::StrCat(name, "/", lives_), scenario.limits);
  worker::WorkerCoreOptions options;
  *options.config.mutable_job() = scenario.job;
  *options.config.mutable_data() = scenario.worker_data;
  options.config.mutable_node()->set_scheduler(kSchedulerName);
  options.config.mutable_node()->set_connect_timeout_ms(60000);
  options.rank = static_cast<int32_t>(rank_);
  options.id = absl::StrCat("host:", rank_);
  if (scenario.hosts > 0) options.host = absl::StrCat("h", rank_ % scenario.hosts);
  options.incarnation = 10 * lives_;   // as times of start do: room for those that the scheduler makes up
  options.observer = life.recorder.get();
  options.report = [this](const std::string& text) { world_->note(absl::StrCat("worker ", rank_, ": ", text)); };
  life.core = worker::WorkerCore::Create(std::move(options), life.endpoint.get(), world_->clock,
                                         life.stream.output());
  life.turn = std::make_unique<Turn>(world_, [this] {
    worker::WorkerCore& core = *life_->core;
    core.OnTurnEnd();
    if (core.HasWork()) life_->turn->Touch();
    life_->turn->EndAt(core.NextDeadline());
  });
  life.tap = std::make_unique<Tap>(life.core.get(), life.turn.get());
  life.endpoint->SetHandler(life.tap.get());
  life.stream.Bind(&life.core->member());
  life.turn->Every(kTick, [core = life.core.get()] { core->OnTick(); });
  life.core->Start([this](absl::Status status) {
    if (!status.ok()) return Fail("start", status);
    Register();
  });
  life.turn->Touch();
}

void WorkerNode::Register() {
  const Scenario& scenario = *world_->scenario;
  std::vector<proto::TensorSpec> specs = scenario.tensors;
  if (!scenario.two_calls) specs.insert(specs.end(), scenario.tables.begin(), scenario.tables.end());
  life_->core->RegisterTensors(std::move(specs), [this](absl::StatusOr<std::vector<uint32_t>> ids) {
    if (!ids.ok() || !world_->scenario->two_calls) return Registered(ids);
    life_->core->RegisterTensors(world_->scenario->tables, [this, ids](absl::StatusOr<std::vector<uint32_t>> more) mutable {
      if (!more.ok()) return Registered(more);
      ids->insert(ids->end(), more->begin(), more->end());
      Registered(ids);
    });
    life_->turn->Touch();
  });
  life_->turn->Touch();
}

void WorkerNode::Crash() {
  if (life_ == nullptr) return;
  world_->network->Crash(NodeName(rank_));
  life_.reset();
}

void WorkerNode::Registered(const absl::StatusOr<std::vector<uint32_t>>& ids) {
  if (!ids.ok()) return Fail("registration", ids.status());
  life_->ids = *ids;
  life_->table_ids.assign(ids->begin() + static_cast<std::ptrdiff_t>(world_->scenario->tensors.size()), ids->end());
  life_->ids.resize(world_->scenario->tensors.size());
  if (joins_) return Join();
  // Where rounds leave workers out the others may have begun without it.
  const auto begun = [this](uint32_t id) { return life_->core->NextRound(id) > 0; };
  if (world_->scenario->leaves_out() &&
      (std::ranges::any_of(life_->ids, begun) || std::ranges::any_of(life_->table_ids, begun)))
    return Join();
  if (saved_.has_value()) {
    state_ = saved_->state;
    if (const absl::Status status = life_->core->Restore(saved_->core); !status.ok()) return Fail("restore", status);
    return Save();   // with the rows that it had pulled: what the servers have now may be newer
  }
  state_ = InitialState(*world_->scenario, rank_);
  BeginRound();
}

void WorkerNode::Return() {
  lost_ = false;
  joins_ = true;
  saved_.reset();
  Start();
}

void WorkerNode::Join() {
  joins_ = false;
  state_ = InitialState(*world_->scenario, rank_);
  for (const std::vector<uint32_t>* ids : {&life_->ids, &life_->table_ids})
    for (const uint32_t id : *ids)
      world_->history->events.push_back(Joined{rank_, life_->incarnation, id, life_->core->NextRound(id)});
  Align();
}

void WorkerNode::Align() {
  const std::vector<std::unique_ptr<Life::Op>> ops = std::move(life_->ops);
  life_->ops.clear();
  for (const auto& op : ops)
    if (!op->result.status.ok()) return Fail("joining", op->result.status);
  uint64_t target = 0;
  for (const uint32_t id : life_->ids) target = std::max(target, life_->core->NextRound(id));
  for (const uint32_t id : life_->table_ids) target = std::max(target, life_->core->NextRound(id));
  target = std::min(target, world_->scenario->rounds());
  const auto submit = [&](uint32_t id, worker::OpRequest request, void (WorkerNode::*then)()) {
    Life::Op* const op = life_->ops.back().get();
    request.tensor = id;
    ++life_->unreleased;
    life_->core->Submit(
        request, [op](const worker::OpResult& result) { op->result = result; },
        [this, then] {
          if (--life_->unreleased == 0) (this->*then)();
        });
  };
  for (uint32_t t = 0; t < life_->ids.size(); ++t) {
    if (life_->core->NextRound(life_->ids[t]) >= target) continue;
    life_->ops.push_back(std::make_unique<Life::Op>());
    life_->ops.back()->gradient.resize(state_.x[t].size());
    worker::OpRequest request;
    request.kind = worker::OpKind::kPush;
    request.input = life_->ops.back()->gradient;
    submit(life_->ids[t], request, &WorkerNode::Align);
  }
  for (uint32_t t = 0; t < life_->table_ids.size(); ++t) {
    const uint32_t id = life_->table_ids[t];
    if (life_->core->NextRound(id) >= target) continue;
    const absl::StatusOr<worker::TableShape> shape = life_->core->DescribeTable(id);
    if (!shape.ok()) return Fail("table", shape.status());
    world_->history->events.push_back(PushedRows{rank_, id, life_->core->NextRound(id), {}, {}});
    auto rows = worker::PrepareRowPush(*shape, {}, {});
    if (!rows.ok()) return Fail("rows", rows.status());
    life_->ops.push_back(std::make_unique<Life::Op>());
    worker::OpRequest request;
    request.kind = worker::OpKind::kPushRows;
    request.rows = std::make_shared<const worker::RowPush>(*std::move(rows));
    submit(id, request, &WorkerNode::Align);
  }
  life_->turn->Touch();
  if (life_->unreleased > 0) return;
  state_.round = target;
  for (uint32_t t = 0; t < life_->ids.size(); ++t) {
    life_->ops.push_back(std::make_unique<Life::Op>());
    worker::OpRequest request;
    request.kind = worker::OpKind::kPull;
    request.output = state_.x[t];
    submit(life_->ids[t], request, &WorkerNode::BeginJoined);
  }
}

void WorkerNode::BeginJoined() {
  life_->ops.clear();
  BeginRound();
}

void WorkerNode::BeginRound() {
  const Scenario& scenario = *world_->scenario;
  state_.rows.assign(scenario.tables.size(), {});
  if (scenario.tables.empty() || state_.round == scenario.rounds()) return Save();
  for (uint32_t t = 0; t < scenario.tables.size(); ++t) {
    const std::vector<uint64_t> ids = RowIds(scenario, rank_, state_.round, t);
    const absl::StatusOr<worker::TableShape> shape = life_->core->DescribeTable(life_->table_ids[t]);
    if (!shape.ok()) return Fail("table", shape.status());
    auto pull = worker::PrepareRowPull(*shape, ids);
    if (!pull.ok()) return Fail("rows", pull.status());
    state_.rows[t].resize(ids.size() * shape->dim);
    worker::RowPullRequest request;
    request.table = life_->table_ids[t];
    request.pull = std::make_shared<const worker::RowPull>(*std::move(pull));
    request.output = state_.rows[t];
    ++life_->unreleased;
    life_->core->PullRows(
        request,
        [this, t, ids](const worker::OpResult& result) {
          if (!result.status.ok()) return Fail(absl::StrCat("pull of rows for round ", state_.round), result.status);
          world_->history->events.push_back(
              PulledRows{rank_, life_->table_ids[t], state_.round, ids, state_.rows[t]});
        },
        [this] {
          if (--life_->unreleased == 0) Save();
        });
  }
  life_->turn->Touch();
}

void WorkerNode::Save() {
  absl::StatusOr<std::vector<std::byte>> snapshot = life_->core->Snapshot();
  if (!snapshot.ok()) return Fail("snapshot", snapshot.status());
  saved_ = {state_, *std::move(snapshot)};
  world_->begins(rank_, state_.round);
  if (state_.round == world_->scenario->rounds()) {
    trained_ = true;
    life_->core->Leave(/*failed=*/false, "", [this](absl::Status status) {
      if (!status.ok()) return Fail("leave", status);
      finished_ = true;
    });
    life_->turn->Touch();
    return;
  }
  TimeNs compute = 0;
  if (world_->scenario->max_compute > 0)
    compute = world_->network->random().Below(static_cast<uint32_t>(world_->scenario->max_compute));
  world_->network->Schedule(compute, [this, life = lives_] {
    if (life_ != nullptr && life == lives_) SubmitRound();
  });
}

void WorkerNode::SubmitRound() {
  const Scenario& scenario = *world_->scenario;
  const bool broadcast = scenario.broadcast && state_.round == 0;
  const uint64_t step = state_.round - (scenario.broadcast ? 1 : 0);
  for (uint32_t t = 0; t < life_->ids.size(); ++t) {
    worker::OpRequest request;
    auto op = std::make_unique<Life::Op>();
    op->tensor = t;
    op->output.resize(state_.x[t].size());
    op->gradient = broadcast ? state_.x[t] : Gradient(scenario, rank_, step, t, state_.x[t]);
    request.input = op->gradient;
    request.output = op->output;
    request.kind = broadcast ? worker::OpKind::kBroadcast : worker::OpKind::kPushPull;
    if (scenario.style == OpStyle::kInPlace && !broadcast) request.output = op->gradient;
    if (scenario.style == OpStyle::kPushThenPull && !broadcast) {
      request.kind = worker::OpKind::kPush;
      request.output = {};
    }
    life_->ops.push_back(std::move(op));
    Submit(t, request);
    if (request.kind != worker::OpKind::kPush) continue;
    auto pull = std::make_unique<Life::Op>();
    pull->tensor = t;
    pull->pull = true;
    pull->output.resize(state_.x[t].size());
    request.kind = worker::OpKind::kPull;
    request.input = {};
    request.output = pull->output;
    life_->ops.push_back(std::move(pull));
    Submit(t, request);
  }
  for (uint32_t t = 0; t < life_->table_ids.size(); ++t) SubmitRows(t);
  life_->turn->Touch();
}

void WorkerNode::SubmitRows(uint32_t table) {
  const Scenario& scenario = *world_->scenario;
  const absl::StatusOr<worker::TableShape> shape = life_->core->DescribeTable(life_->table_ids[table]);
  if (!shape.ok()) return Fail("table", shape.status());
  const std::vector<uint64_t> ids = RowIds(scenario, rank_, state_.round, table);
  const std::vector<float> gradients = RowGradients(scenario, rank_, state_.round, table, state_.rows[table]);
  world_->history->events.push_back(PushedRows{rank_, life_->table_ids[table], state_.round, ids, gradients});
  auto rows = worker::PrepareRowPush(*shape, ids, gradients);
  if (!rows.ok()) return Fail("rows", rows.status());
  auto op = std::make_unique<Life::Op>();
  op->rows = true;
  life_->ops.push_back(std::move(op));
  worker::OpRequest request;
  request.kind = worker::OpKind::kPushRows;
  request.rows = std::make_shared<const worker::RowPush>(*std::move(rows));
  SubmitTo(life_->table_ids[table], request);
}

void WorkerNode::Submit(uint32_t tensor, worker::OpRequest request) { SubmitTo(life_->ids[tensor], std::move(request)); }

void WorkerNode::SubmitTo(uint32_t id, worker::OpRequest request) {
  Life::Op* const op = life_->ops.back().get();
  request.tensor = id;
  ++life_->unreleased;
  life_->core->Submit(
      request,
      [this, op](const worker::OpResult& result) {
        op->result = result;
        if (!result.status.ok()) Fail(absl::StrCat("round ", state_.round), result.status);
        if (!op->pull && result.status.ok() && result.round != state_.round)
          Fail("operation", absl::InternalError(absl::StrCat("round ", state_.round, " was answered as round ",
                                                             result.round)));
      },
      [this] {
        if (--life_->unreleased == 0) EndRound();
      });
}

void WorkerNode::EndRound() {
  const Scenario& scenario = *world_->scenario;
  const std::vector<std::unique_ptr<Life::Op>> ops = std::move(life_->ops);
  life_->ops.clear();
  std::vector<bool> skipped(state_.x.size(), false);
  for (const auto& op : ops) {
    if (!op->result.status.ok()) return;
    if (op->rows) continue;
    // Of a push that came too late the answer is what there is instead.
    skipped[op->tensor] = skipped[op->tensor] || (op->result.skipped && !op->result.rejected);
    const bool broadcast = scenario.broadcast && state_.round == 0;
    if (broadcast) {
      state_.x[op->tensor] = op->output;
      continue;
    }
    if (scenario.style == OpStyle::kPushThenPull && !op->pull) continue;
    if (op->pull)
      world_->history->events.push_back(Pulled{rank_, life_->ids[op->tensor], state_.round + 1, op->output});
    TakeAnswer(scenario, op->tensor, scenario.style == OpStyle::kInPlace ? op->gradient : op->output,
               skipped[op->tensor], &state_);
  }
  ++state_.round;
  world_->note(absl::StrCat("worker ", rank_, " has done round ", state_.round - 1));
  BeginRound();
}

std::string WorkerNode::Waiting() const {
  if (life_ == nullptr) return absl::StrCat("worker ", rank_, " is down");
  return absl::StrCat("worker ", rank_, " in round ", state_.round, ": ", life_->core->Waiting());
}

}  // namespace sluice::sim
