#include "worker/core.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "compression/draws.h"
#include "compression/policy.h"
#include "worker/core_impl.h"
#include "worker/snapshot.h"

namespace sluice::worker {
namespace {

constexpr uint32_t kReportsPerWindow = 20;  // a second
constexpr size_t kCodecStatesAHeartbeat = 256;

TimeNs Millis(uint32_t ms, uint32_t fallback) { return (ms == 0 ? fallback : ms) * kMillisecond; }

transport::LinkQueueOptions QueueOptions(const proto::DataConfig& data) {
  transport::LinkQueueOptions options;
  if (data.stripe_bytes() != 0) options.stripe_bytes = data.stripe_bytes();
  options.fusion_bytes = data.fusion_bytes();
  options.fusion_cycle = data.fusion_cycle_us() * kMicrosecond;
  return options;
}

transport::StreamSenderOptions SenderOptions(const proto::DataConfig& data) {
  transport::StreamSenderOptions options;
  if (data.eager_bytes() != 0) options.eager_bytes = data.eager_bytes();
  options.resend = Millis(data.resend_ms(), 1000);
  return options;
}

proto::Register Identity(const WorkerCoreOptions& options) {
  proto::Register identity;
  identity.set_role(proto::ROLE_WORKER);
  identity.set_id(options.id);
  identity.set_host(options.host);
  for (const proto::Address& listener : options.listeners) *identity.add_lanes() = listener;
  identity.set_incarnation(options.incarnation);
  identity.set_rank(options.rank);
  *identity.mutable_job() = options.config.job();
  return identity;
}

}  // namespace

std::unique_ptr<WorkerCore> WorkerCore::Create(WorkerCoreOptions options, transport::Endpoint* endpoint,
                                               const Clock* clock, control::MemberCore::Output control) {
  return std::make_unique<CoreImpl>(std::move(options), endpoint, clock, std::move(control));
}

CoreImpl::CoreImpl(WorkerCoreOptions options, transport::Endpoint* endpoint, const Clock* clock,
                   control::MemberCore::Output control)
    : options_(std::move(options)),
      endpoint_(endpoint),
      clock_(clock),
      connect_timeout_(Millis(options_.config.node().connect_timeout_ms(), 60000)),
      stall_report_(Millis(options_.config.data().stall_report_ms(), 10000)),
      links_(endpoint, clock, options_.config.data().connections()),
      slab_(endpoint),
      queue_(endpoint, clock, QueueOptions(options_.config.data()), [](uint64_t) {}),
      sender_(endpoint, &queue_, clock, SenderOptions(options_.config.data()),
              [this](uint32_t index) {
                if (index < partitions_.size() && partitions_[index] != nullptr)
                  partitions_[index]->OnPayloadReleased();
              }),
      ops_({.clock = clock,
            .stats = &stats_,
            .partitions = &env_,
            .link = [this](const Partition& partition, bool push) { return LinkFor(partition, push); },
            .fail = [this](absl::Status status) { Fail(std::move(status)); }}),
      row_pulls_({.partitions = &env_,
                  .link = [this](const Partition& partition) { return LinkFor(partition, /*push=*/false); },
                  .find = [this](uint32_t table) { return ops_.Find(table); },
                  .describe = [this](const Partition& partition) { return DescribePartition(partition); }}),
      collectives_(endpoint, &queue_, clock,
                   {.resend = Millis(options_.config.data().resend_ms(), 1000),
                    .report = [this](const std::string& text) { Report(text); },
                    .request_plan = [this] { member_.RequestPlan(); }}),
      exchanges_({.clock = clock,
                  .stats = &stats_,
                  .memory = &slab_,
                  .collectives = &collectives_,
                  .set_rate = [this](float rate) { ops_.set_next_rate(rate); }}),
      member_(Identity(options_), options_.config.node().scheduler(), connect_timeout_, clock, std::move(control),
              this),
      admission_({.clock = clock,
                  .timeout = connect_timeout_,
                  .member = &member_,
                  .ops = &ops_,
                  .partitions = &env_,
                  .link = [this](const Partition& partition) { return LinkFor(partition, /*push=*/false); },
                  .made = [this](TensorState& tensor) { Index(tensor); },
                  .exchanged = [this](const proto::TensorInfo& info) { return TakeExchanged(info); },
                  .describe = [this](const Partition& partition) { return DescribePartition(partition); }}) {
  endpoint_->SetHandler(this);
  env_.endpoint = endpoint;
  env_.queue = &queue_;
  env_.sender = &sender_;
  env_.clock = clock;
  env_.slab = &slab_;
  env_.observer = options_.observer;
  env_.calibration = options_.calibration.get();
  env_.on_idle = [this](Partition* partition) { OnIdle(partition); };
  if (options_.config.data().eager_bytes() != 0) env_.eager_bytes = options_.config.data().eager_bytes();
  env_.resend = Millis(options_.config.data().resend_ms(), 1000);
  if (options_.observer == nullptr) return;
  queue_.ObserveSends([this](const transport::FrameHeader& header, const transport::SendTimes& times) {
    if (header.type != transport::FrameType::kPush) return;
    options_.observer->OnStage(WorkerObserver::Stage::kSend, header.tensor, header.partition, header.round, times.begun,
                                times.done);
  });
}

CoreImpl::~CoreImpl() = default;

void CoreImpl::Start(std::function<void(absl::Status)> ready) {
  ready_ = std::move(ready);
  started_ = clock_->Now();
  member_.Start();
}

void CoreImpl::Ready(absl::Status status) {
  if (!ready_) return;
  auto ready = std::move(ready_);
  ready_ = nullptr;
  ready(std::move(status));
}

void CoreImpl::OnWelcome(const proto::Welcome& welcome) {
  env_.job = welcome.job();
  env_.rank = welcome.rank();
  env_.incarnation = welcome.incarnation();
  ops_.set_rank(env_.rank);
}

void CoreImpl::OnPlan(const proto::Plan& plan) {
  if (!failed_.ok() || plan.job() != env_.job || (planned_ && plan.version() <= plan_.version())) return;
  if (absl::Status status = CheckPlan(plan); !status.ok()) {
    Report(absl::StrCat("a plan that cannot be is ignored: ", status.message()));
    return;
  }
  for (const proto::WorkerInfo& worker : plan.workers()) {
    if (worker.rank() != env_.rank || worker.incarnation() <= env_.incarnation) continue;
    over_ = true;
    Fail(absl::AbortedError(absl::StrCat("rank ", env_.rank, " was taken over by ", worker.address(), " (incarnation ",
                                         worker.incarnation(), " after ", env_.incarnation,
                                         "); this process must end")));
    return;
  }
  if (plan.state() == proto::JOB_FAILED) {
    over_ = true;
    Fail(absl::AbortedError(absl::StrCat("job ", plan.config().name(), " has failed: ", plan.why())));
    return;
  }
  plan_ = plan;
  planned_ = true;
  ops_.set_ranks(plan.config().workers());
  env_.plan_version = plan.version();
  env_.random_seed = compression::RandomSeed(plan.config().name(), env_.rank);
  const proto::OptimizerConfig& optimizer = plan.config().optimizer();
  env_.optimizer = !optimizer.kind().empty() && optimizer.kind() != "none";
  ops_.set_skip_nonfinite(plan.config().on_nonfinite() == proto::NONFINITE_SKIP);
  ops_.set_clip_norm(plan.config().local_clip_norm());
  ops_.set_momentum_correction(plan.config().momentum_correction() > 0);
  env_.codec_stats.set_every(plan.config().codec_stats_rounds());
  TakeCodecChoices(plan);
  transport::Hello self;
  self.role = transport::PeerRole::kWorker;
  self.job = plan.job();
  self.job_uid = plan.uid();
  self.index = env_.rank;
  self.incarnation = env_.incarnation;
  self.name = options_.id.substr(0, 255);
  links_.SetIdentity(std::move(self));
  links_.UpdatePlan(plan);
  collectives_.OnPlan(plan, env_.rank, env_.incarnation, options_.id);
  exchanges_.OnPlan(plan, env_.rank);
  UpdateOwners(plan);
  if (plan.state() == proto::JOB_RUNNING) Ready(absl::OkStatus());
  admission_.OnPlan(plan);
}

void CoreImpl::TakeCodecChoices(const proto::Plan& plan) {
  for (const auto& [id, tensor] : ops_.tensors()) {
    if (absl::Status status = tensor->TakeChoices(plan); !status.ok()) {
      Report(absl::StrCat("tensor ", tensor->spec.name(), " keeps its codec: ", status.message()));
    }
  }
}

// A new owner or term: pushes and pulls that run go there.
void CoreImpl::UpdateOwners(const proto::Plan& plan) {
  uint32_t max_term = 0;
  for (const proto::ShardInfo& shard : plan.shards()) max_term = std::max(max_term, shard.term());
  member_.set_max_term(max_term);
  std::vector<std::shared_ptr<const control::TreeWay>> ways;
  for (const proto::ShardInfo& shard : plan.shards()) ways.push_back(control::WayOf(plan, shard));
  for (const proto::TensorInfo& tensor : plan.tensors()) {
    for (int i = 0; i < tensor.partition_shard_size(); ++i) {
      const size_t index = tensor.first_partition() + static_cast<size_t>(i);
      if (index >= partitions_.size()) return;
      if (partitions_[index] == nullptr) continue;
      const uint32_t shard = tensor.partition_shard(i);
      const Route route = RouteOf(plan.shards(static_cast<int>(shard)), tensor.spec().has_table() ? nullptr : ways[shard].get(), env_.rank);
      if (partitions_[index]->SetRoute(route)) Reroute(partitions_[index]);
    }
  }
}

void CoreImpl::Index(TensorState& tensor) {
  for (const auto& partition : tensor.partitions) {
    if (partition->shape().index >= partitions_.size())
      partitions_.resize(partition->shape().index + size_t{1}, nullptr);
    partitions_[partition->shape().index] = partition.get();
  }
}

absl::Status CoreImpl::TakeExchanged(const proto::TensorInfo& info) {
  if (!options_.config.data().snapshot_dir().empty())
    return absl::FailedPreconditionError(absl::StrCat(
        "data.snapshot_dir does not go with tensor ", info.spec().name(), ", which is exchanged among the workers (job.exchange): "
        "snapshots have no part of its state. Use job.exchange=servers, or drop it and let the trainer save its own checkpoints"));
  return exchanges_.Add(info);
}

void CoreImpl::OnRefused(const absl::Status& status) {
  refused_ = true;
  Fail(status);
  EndLeave(status);
}

void CoreImpl::OnShutdown(const std::string& why) {
  if (leaving_) return;
  over_ = true;
  Fail(absl::UnavailableError(absl::StrCat("the scheduler ended the job: ", why)));
}

void CoreImpl::FillHeartbeat(proto::Heartbeat* heartbeat) {
  heartbeat->set_plan_version(plan_.version());
  heartbeat->set_round(stats_.max_round);
  heartbeat->set_round_at_us(static_cast<uint64_t>(stats_.max_round_at / kMicrosecond));
  const collective::CollectiveStats peers = collectives_.stats();
  heartbeat->set_wire_bytes_in(links_.bytes_in() + peers.bytes_in);
  heartbeat->set_wire_bytes_out(links_.bytes_out() + peers.bytes_out);
  heartbeat->set_waiting_for(Waiting());
  for (proto::TensorCodecState& state : env_.codec_stats.TakeFresh(kCodecStatesAHeartbeat)) {
    WarnOfResidual(state);
    *heartbeat->add_codecs() = std::move(state);
  }
  for (const proto::CodecSpeed& speed : options_.codec_speeds) *heartbeat->add_codec_speeds() = speed;
  heartbeat->set_plain_bytes(env_.plain_traffic.bytes());
  heartbeat->set_plain_busy_us(static_cast<uint64_t>(env_.plain_traffic.busy(clock_->Now()) / kMicrosecond));
  if (loss_.has_value()) heartbeat->set_loss(*loss_);
  if (options_.add_to_heartbeat) options_.add_to_heartbeat(heartbeat);
}

void CoreImpl::WarnOfResidual(const proto::TensorCodecState& state) {
  const double most = plan_.config().auto_max_residual() > 0 ? plan_.config().auto_max_residual() : 100;
  if (!(state.residual_ratio() > most) || !warned_.insert(state.tensor()).second) return;
  Report(absl::StrFormat("tensor %s: what codec %s has left behind is %.3g gradients in round %d (job.auto_max_residual is %g): it sends "
                         "too little of it. Take a milder codec, or a rule for this tensor",
                         TensorName(state.tensor()), state.codec(), state.residual_ratio(), state.round(), most));
}

std::string CoreImpl::CalibratedRules() const {
  std::string rules;
  if (options_.calibration == nullptr) return rules;
  for (const auto& [id, tensor] : ops_.tensors()) {
    if (tensor->spec.has_table()) continue;
    const auto policy = compression::PolicyFor(plan_.config(), tensor->spec);
    // Exempt tensors stay so, and what another rule names keeps it.
    if (!policy.ok() || !policy->why.empty()) continue;
    const std::string rule = options_.calibration->RuleFor(id, tensor->spec.name());
    if (!rule.empty()) absl::StrAppend(&rules, rule, "\n");
  }
  return rules;
}

void CoreImpl::ReportLoss(double loss) {
  constexpr double kNew = 0.1;   // weight of the newest step
  if (!std::isfinite(loss) || !loss_.has_value() || !std::isfinite(*loss_)) {
    loss_ = loss;
  } else {
    *loss_ += kNew * (loss - *loss_);
  }
}

void CoreImpl::RegisterTensors(std::vector<proto::TensorSpec> specs,
                               std::function<void(absl::StatusOr<std::vector<uint32_t>>)> done) {
  if (!failed_.ok()) {
    done(failed_);
    return;
  }
  admission_.Register(std::move(specs), std::move(done));
}

uint64_t CoreImpl::NextRound(uint32_t tensor) const {
  if (exchanges_.Find(tensor) != nullptr) return exchanges_.NextRound(tensor);
  auto it = ops_.tensors().find(tensor);
  return it == ops_.tensors().end() ? 0 : it->second->next_round + it->second->RoundsWaiting();
}

uint64_t CoreImpl::Submit(const OpRequest& request, std::function<void(const OpResult&)> done,
                          std::function<void()> released) {
  if (exchanges_.Find(request.tensor) != nullptr)
    return kExchangeBit | exchanges_.Submit(request, std::move(done), std::move(released));
  return ops_.Submit(request, std::move(done), std::move(released));
}

absl::StatusOr<TableShape> CoreImpl::DescribeTable(uint32_t tensor) const {
  const auto it = ops_.tensors().find(tensor);
  if (it == ops_.tensors().end() || !it->second->spec.has_table()) {
    return absl::NotFoundError(absl::StrCat(tensor, " is no table that was registered"));
  }
  return it->second->table_shape();
}

uint64_t CoreImpl::PullRows(RowPullRequest request, std::function<void(const OpResult&)> done,
                            std::function<void()> released) {
  const TensorState* table = ops_.Find(request.table);
  absl::Status status = failed_;
  if (status.ok() && (table == nullptr || !table->admitted || !table->spec.has_table())) {
    status = absl::NotFoundError(absl::StrCat(request.table, " is no table that was registered"));
  }
  if (!status.ok()) return row_pulls_.Refuse(std::move(status), std::move(done), std::move(released));
  request.round = table->next_round + table->RoundsWaiting();
  ++stats_.ops;
  return row_pulls_.Submit(request, std::move(done), std::move(released));
}

uint64_t CoreImpl::SubmitCollective(collective::Request request, std::function<void(const OpResult&)> done,
                                    std::function<void()> released) {
  return kCollectiveBit | collectives_.Submit(
                              std::move(request),
                              [this, done = std::move(done)](const absl::Status& status) {
                                OpResult result;
                                result.status = status;
                                result.next_rate = ops_.next_rate();
                                done(result);
                              },
                              std::move(released));
}

void CoreImpl::Cancel(uint64_t op) {
  if ((op & kCollectiveBit) != 0) {
    collectives_.Cancel(op & ~kCollectiveBit);
    collectives_.OnTurnEnd();
    return;
  }
  if ((op & kExchangeBit) != 0) {
    exchanges_.Cancel(op & ~kExchangeBit);
    exchanges_.RunDeferred();
    return;
  }
  if (row_pulls_.Cancel(op)) {
    row_pulls_.RunDeferred();
    return;
  }
  ops_.Cancel(op);
  ops_.RunDeferred();
}

void CoreImpl::OnIdle(Partition* partition) {
  if (!admission_.OnPartitionIdle(partition)) ops_.OnPartitionIdle(partition);
}

void CoreImpl::Barrier(std::string name, std::function<void(absl::Status)> done) {
  if (!failed_.ok()) {
    done(failed_);
    return;
  }
  const uint64_t number = next_barrier_++;
  barriers_[number] = {clock_->Now(), std::move(done)};
  const uint64_t sequence = barrier_counts_[name];
  member_.Barrier(name, sequence, [this, number, name](const proto::RequestDone& answer) {
    auto it = barriers_.find(number);
    if (it == barriers_.end()) return;
    auto done = std::move(it->second.done);
    barriers_.erase(it);
    if (answer.code() == 0) ++barrier_counts_[name];
    done(absl::Status(static_cast<absl::StatusCode>(answer.code()), answer.message()));
  });
}

void CoreImpl::Leave(bool failed, std::string why, std::function<void(absl::Status)> done) {
  if (refused_ || over_) {
    done(failed_);  // the scheduler does not speak to us any more, or has ended this life already
    return;
  }
  if (!failed && !failed_.ok()) {
    // In order is not possible any more. Nobody waits for a worker that says so itself, and the job must not count it
    // as finished.
    failed = true;
    why = failed_.ToString();
    done = [why = failed_, done = std::move(done)](const absl::Status&) { done(why); };
  }
  leaving_ = true;
  leave_ = Asked{clock_->Now(), std::move(done)};
  member_.Leave(failed, std::move(why), [this](const proto::RequestDone& answer) {
    EndLeave(absl::Status(static_cast<absl::StatusCode>(answer.code()), answer.message()));
  });
}

void CoreImpl::EndLeave(absl::Status status) {
  if (!leave_.has_value()) return;
  auto done = std::move(leave_->done);
  leave_.reset();
  links_.CloseAll(absl::CancelledError("the worker has left the job"));
  collectives_.CloseLinks(absl::CancelledError("the worker has left the job"));
  done(std::move(status));
}

// The worker cannot go on: everything that waits ends with `why`, and so does whatever comes later.
void CoreImpl::Fail(absl::Status why) {
  if (!failed_.ok()) return;
  failed_ = why;
  Report(absl::StrCat("the worker cannot go on: ", why.ToString()));
  Ready(why);
  admission_.Fail(why);
  ops_.Fail(why);
  row_pulls_.Fail(why);
  exchanges_.Fail(why);
  collectives_.Fail(why);
  auto waiting = std::move(barriers_);
  barriers_.clear();
  for (auto& [number, asked] : waiting) asked.done(why);
  links_.CloseAll(why);
}

void CoreImpl::OnTick() {
  if (!started_.has_value()) return;
  member_.OnTick();
  links_.OnTick();
  sender_.OnTick();
  if (ready_ && clock_->Now() - *started_ >= connect_timeout_) {
    Fail(absl::DeadlineExceededError(absl::StrCat(Waiting(), "; gave up (node.connect_timeout_ms)")));
  }
  if (leave_.has_value() && clock_->Now() - leave_->since >= connect_timeout_) {
    EndLeave(absl::DeadlineExceededError(
        absl::StrCat("leaving the job: ", member_.Waiting(), "; gave up (node.connect_timeout_ms)")));
  }
  admission_.OnTick();
  ops_.OnTick();
  row_pulls_.OnTick();
  exchanges_.OnTick();
  collectives_.OnTick();
  RetryDue();
  ReportStall();
  OnTurnEnd();
}

void CoreImpl::OnTurnEnd() {
  ops_.RunDeferred();
  row_pulls_.RunDeferred();
  ops_.Pump();
  row_pulls_.Pump();
  collectives_.OnTurnEnd();
  exchanges_.Pump();
  queue_.Flush();
  if (!env_.fusing.empty() && queue_.NextDeadline() == INT64_MAX) {
    const TimeNs now = clock_->Now();
    for (const PartitionEnv::Fusing& f : env_.fusing) {
      env_.observer->OnStage(WorkerObserver::Stage::kFuse, f.tensor, f.partition, f.round, f.since, now);
    }
    env_.fusing.clear();
  }
  ops_.RunDeferred();
  row_pulls_.RunDeferred();
  exchanges_.RunDeferred();
}

absl::StatusOr<std::vector<std::byte>> CoreImpl::Snapshot() const {
  if (const size_t unfinished = ops_.unfinished() + row_pulls_.unfinished() + exchanges_.unfinished(); unfinished != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("a snapshot is taken between steps: ", unfinished, " operations are not finished"));
  }
  for (const auto& [id, tensor] : ops_.tensors()) {
    if (tensor->device == nullptr) continue;
    if (absl::Status fetched = tensor->device->Fetch(); !fetched.ok()) {
      return absl::Status(fetched.code(), absl::StrCat("a snapshot: the residual of ", tensor->spec.name(), " on ",
                                                       tensor->device->device()->name(), ": ", fetched.message()));
    }
  }
  return EncodeSnapshot(plan_, env_.rank, ops_.tensors(), barrier_counts_);
}

absl::Status CoreImpl::Restore(ConstBytes snapshot) {
  return RestoreSnapshot(
      snapshot, plan_, env_.rank, ops_, [this](uint32_t partition) { return admission_.open_round(partition); },
      &barrier_counts_);
}

WorkerStats CoreImpl::stats() const {
  WorkerStats stats = stats_;
  stats.bytes_out_push = links_.bytes_out();
  stats.bytes_in_pull = links_.bytes_in();
  stats.replays = sender_.replays();
  stats.reconnects = links_.reconnects();
  stats.transport = links_.Kinds();
  const collective::CollectiveStats peers = collectives_.stats();
  stats.collectives = peers.operations;
  stats.collectives_failed = peers.failed;
  stats.peer_bytes_in = peers.bytes_in;
  stats.peer_bytes_out = peers.bytes_out;
  return stats;
}

std::vector<UpLink> CoreImpl::links() const {
  std::vector<UpLink> links = links_.Up();
  for (const collective::PeerLink& link : collectives_.Links())
    links.push_back({link.link, absl::StrCat("worker ", link.rank), link.id});
  return links;
}

std::string CoreImpl::MissingWorkers() const {
  std::vector<std::string> lost, unseen;
  for (const proto::WorkerInfo& worker : plan_.workers()) {
    if (worker.alive() || worker.finished()) continue;
    if (worker.address().empty()) {
      unseen.push_back(absl::StrCat(worker.rank()));
    } else {
      lost.push_back(absl::StrCat(worker.rank(), " (", worker.address(), ")"));
    }
  }
  return absl::StrCat(
      unseen.empty() ? "" : absl::StrCat("; not seen yet: rank ", absl::StrJoin(unseen, ", "), "; start it"),
      lost.empty() ? "" : absl::StrCat("; lost: rank ", absl::StrJoin(lost, ", "), "; start it again"));
}

std::string CoreImpl::Waiting() const {
  const auto seconds = [&](TimeNs since) { return static_cast<double>(clock_->Now() - since) / kSecond; };
  const std::string scheduler = member_.Waiting();
  if (ready_) {
    if (!scheduler.empty()) return scheduler;
    return absl::StrFormat(
        "job %s: not running for %.1f s of %.1f s: %s%s", options_.config.job().name(), seconds(*started_),
        static_cast<double>(connect_timeout_) / kSecond,
        planned_ && !plan_.why().empty() ? plan_.why() : "waits for workers and servers (sluicectl status)",
        MissingWorkers());
  }
  if (std::string waiting = admission_.Waiting(); !waiting.empty()) return waiting;
  const Op* op = ops_.Oldest();
  if (op == nullptr) {
    std::string waiting = row_pulls_.Waiting();
    if (waiting.empty()) waiting = collectives_.Waiting();
    if (const auto held = exchanges_.held_since(); waiting.empty() && held.has_value())
      waiting = absl::StrFormat("the first exchange of a tensor among the workers, %.1f s: all of them must be there", seconds(*held));
    return waiting.empty() ? scheduler : absl::StrCat(waiting, MissingWorkers());
  }
  const TensorState& tensor = *ops_.tensors().at(op->request.tensor);
  if (op->on_device) {
    return absl::StrFormat("round %d of tensor %s, %.1f s: %s works on it (nvidia-smi shows what runs there)",
                           op->result.round, tensor.spec.name(), seconds(op->submitted),
                           op->request.device->device->name());
  }
  for (const auto& partition : tensor.partitions) {
    if (partition->phase() == Partition::Phase::kIdle) continue;
    std::string text = absl::StrFormat(
        "round %d of tensor %s, %.1f s of %s: partition %d on %s: %s", op->result.round, tensor.spec.name(),
        seconds(op->submitted),
        op->request.deadline == 0
            ? "no limit"
            : absl::StrFormat("%.1f s", static_cast<double>(op->request.deadline - op->submitted) / kSecond),
        partition->shape().index, DescribePartition(*partition), partition->Progress());
    absl::StrAppend(&text, MissingWorkers());
    if (!scheduler.empty()) absl::StrAppend(&text, "; and ", scheduler);
    return text;
  }
  return scheduler;
}

void CoreImpl::ReportStall() {
  const TimeNs now = clock_->Now();
  if (now < next_stall_check_) return;  // it looks through all operations
  next_stall_check_ = now + std::min(kSecond, stall_report_);
  TimeNs since = ready_ ? *started_ : now;
  if (const Op* op = ops_.Oldest(); op != nullptr) since = op->submitted;
  since = std::min(since, row_pulls_.oldest().value_or(now));
  since = std::min(since, collectives_.oldest().value_or(now));
  since = std::min(since, exchanges_.held_since().value_or(now));
  since = std::min(since, admission_.oldest());
  if (!barriers_.empty()) since = std::min(since, barriers_.begin()->second.since);
  if (leave_.has_value()) since = std::min(since, leave_->since);
  if (now - since < stall_report_ || now - last_stall_report_ < stall_report_) return;
  last_stall_report_ = now;
  if (std::string waiting = Waiting(); !waiting.empty()) Report(absl::StrCat("waiting: ", waiting));
}

void CoreImpl::Report(const std::string& what) {
  if (!options_.report) return;
  const TimeNs now = clock_->Now();
  if (now - report_window_ >= kSecond) {
    report_window_ = now;
    reports_in_window_ = 0;
  }
  if (++reports_in_window_ <= kReportsPerWindow) options_.report(what);
}

}  // namespace sluice::worker
