#include "worker/exchange/exchanges.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "worker/op.h"

namespace sluice::worker {
namespace {

using collective::Kind;

constexpr size_t kTurnBytes = 4 << 20;   // of a turn's computing: about a millisecond
constexpr size_t kChunk = 256 << 10;     // elements at a time

constexpr absl::string_view kStartAgain =
    ". Its tensors are exchanged among the workers (job.exchange), whose parameters may differ by now: end all workers, and start "
    "them from the trainer's own checkpoint";

// Why, and that all have to begin again: not the one alone that was lost, as collectives advise.
std::string AllAgain(const absl::Status& why) {
  return absl::StrCat(absl::StrReplaceAll(why.message(), {{"; start it again", ""}}), kStartAgain);
}

}  // namespace

void Exchanges::OnPlan(const proto::Plan& plan, uint32_t rank) {
  job_ = plan.config();
  rank_ = rank;
  std::vector<uint32_t> lives;
  everybody_ = true;
  for (const proto::WorkerInfo& worker : plan.workers()) {
    lives.push_back(worker.incarnation());
    everybody_ &= worker.alive() || worker.finished();   // a call finds that one has left
  }
  const std::vector<uint32_t> former = std::exchange(lives_, lives);
  if (!begun_ || former.size() != lives.size()) return;
  const auto at = std::ranges::mismatch(former, lives);
  if (at.in1 == former.end()) return;
  const proto::WorkerInfo& worker = plan.workers(static_cast<int>(at.in1 - former.begin()));
  Break(absl::AbortedError(absl::StrCat("rank ", worker.rank(), " (", worker.address(), ") was started again, without the state of the others")));
}

absl::Status Exchanges::Add(const proto::TensorInfo& info) {
  if (tensors_.contains(info.tensor())) return absl::OkStatus();
  if (!schedule_.has_value()) {
    SLUICE_ASSIGN_OR_RETURN(Schedule schedule, Schedule::Create(job_.optimizer()));
    schedule_ = schedule;
  }
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<ExchangedTensor> tensor, ExchangedTensor::Create(info, job_, rank_, env_.memory));
  Tensor& made = tensors_[info.tensor()];
  made.state = std::move(tensor);
  env_.set_rate(Rate(*made.state));
  return absl::OkStatus();
}

std::optional<TimeNs> Exchanges::held_since() const {
  if (!held() || by_id_.empty()) return std::nullopt;
  return by_id_.begin()->second->submitted;
}

const ExchangedTensor* Exchanges::Find(uint32_t id) const {
  const auto it = tensors_.find(id);
  return it == tensors_.end() ? nullptr : it->second.state.get();
}

uint64_t Exchanges::NextRound(uint32_t id) const {
  const Tensor& tensor = tensors_.at(id);
  const auto rounds = std::ranges::count_if(tensor.ops, [](const auto& op) { return op->request.kind != OpKind::kPull; });
  // The front one has counted itself when its values are there.
  const bool counted = !tensor.ops.empty() && tensor.ops.front()->request.kind != OpKind::kPull &&
                       tensor.ops.front()->result.round < tensor.state->next_round();
  return tensor.state->next_round() + static_cast<uint64_t>(rounds) - (counted ? 1 : 0);
}

// ------------------------------------------------------------------------------------------------ calls

bool Exchanges::HasInput(const OpRequest& request) const {
  return request.kind == OpKind::kPush || request.kind == OpKind::kPushPull ||
         (request.kind == OpKind::kBroadcast && request.root == rank_);
}

absl::Status Exchanges::Check(const ExchangedTensor& tensor, const OpRequest& request) const {
  if (!failed_.ok()) return failed_;
  if (request.device != nullptr)
    return absl::UnimplementedError(absl::StrCat(KindName(request.kind), " of tensor ", tensor.name(), " from GPU memory: it is exchanged among "
                                                 "the workers (job.exchange), which takes values in host memory; copy it there, or use "
                                                 "job.exchange=servers"));
  if (request.kind == OpKind::kPushRows)
    return absl::InvalidArgumentError(absl::StrCat("push of rows of ", tensor.name(), ": it is a tensor"));
  return CheckBuffers(request, tensor.name(), tensor.elements(), rank_, job_.workers());
}

uint64_t Exchanges::Submit(const OpRequest& request, std::function<void(const OpResult&)> done, std::function<void()> released) {
  Tensor& tensor = tensors_.at(request.tensor);
  auto op = std::make_unique<Op>();
  const uint64_t id = op->id = next_id_++;
  op->request = request;
  op->done = std::move(done);
  op->released = std::move(released);
  op->submitted = env_.clock->Now();
  if (absl::Status status = Check(*tensor.state, request); !status.ok()) {
    CallDone(*op, OpResult{.status = std::move(status)});
    deferred_.push_back(std::move(op->released));
    return id;
  }
  op->priority = request.priority == INT32_MIN ? tensor.state->priority() : request.priority;
  by_id_[id] = op.get();
  if (request.deadline != 0) deadlines_.insert({request.deadline, id});
  ++env_.stats->ops;
  tensor.ops.push_back(std::move(op));
  if (tensor.ops.size() == 1) StartFront(tensor);
  return id;
}

void Exchanges::StartFront(Tensor& tensor) {
  Op& op = *tensor.ops.front();
  op.result.round = tensor.state->next_round();
  op.result.contributors = op.result.round > 0 || op.request.kind != OpKind::kPull ? job_.workers() : 0;
  Ready(tensor, op, op.request.kind == OpKind::kPull ? Phase::kCopyOut : HasInput(op.request) ? Phase::kCheck : Phase::kSum);
}

void Exchanges::Ready(Tensor& tensor, Op& op, Phase phase) {
  op.phase = phase;
  op.at = 0;
  ready_[{op.priority, op.id}] = &tensor;
}

void Exchanges::FinishFront(Tensor& tensor) {
  const std::unique_ptr<Op> op = std::move(tensor.ops.front());
  tensor.ops.pop_front();
  ready_.erase({op->priority, op->id});
  by_id_.erase(op->id);
  deadlines_.erase({op->request.deadline, op->id});
  op->result.next_rate = Rate(*tensor.state);
  if (op->result.status.ok() && op->request.kind != OpKind::kPull) {
    env_.set_rate(op->result.next_rate);
    if (op->result.round > env_.stats->max_round) {
      env_.stats->max_round = op->result.round;
      env_.stats->max_round_at = env_.clock->Now();
    }
  }
  CallDone(*op, op->result);
  deferred_.push_back(std::move(op->released));
  if (!tensor.ops.empty()) StartFront(tensor);
}

void Exchanges::CallDone(Op& op, OpResult result) {
  if (!op.done) return;
  deferred_.push_back([done = std::exchange(op.done, nullptr), result = std::move(result)] { done(result); });
}

void Exchanges::RunDeferred() {
  while (!deferred_.empty()) {   // done may submit again
    const std::function<void()> fn = std::move(deferred_.front());
    deferred_.pop_front();
    if (fn) fn();
  }
}

// ------------------------------------------------------------------------------------------------ steps

void Exchanges::Pump() {
  for (size_t touched = 0; !ready_.empty() && touched < kTurnBytes && !held();) {
    Tensor& tensor = *ready_.begin()->second;
    touched += Step(tensor, *tensor.ops.front());
  }
}

size_t Exchanges::Step(Tensor& tensor, Op& op) {
  ExchangedTensor& state = *tensor.state;
  const auto chunk = [&](size_t elements) { return std::min(kChunk, elements - op.at); };
  const auto copy = [&](std::span<const float> from, std::span<float> to) {
    const size_t count = chunk(from.size());
    std::memcpy(to.data() + op.at, from.data() + op.at, count * sizeof(float));
    op.at += count;
    return op.at == from.size();
  };
  const bool pushes = op.request.kind == OpKind::kPush || op.request.kind == OpKind::kPushPull;
  switch (op.phase) {
    case Phase::kCheck: return StepCheck(tensor, op);
    case Phase::kCopyIn:
      if (copy(op.request.input, pushes ? std::span<float>(op.input) : state.values())) Ready(tensor, op, Phase::kSum);
      return kChunk * sizeof(float);
    case Phase::kSum: StartSum(tensor, op); return state.elements() * sizeof(float);   // it is copied there
    case Phase::kCheckSum: {
      const size_t count = chunk(op.sum.size());
      op.result.skipped = compression::FirstNonfinite(op.sum.subspan(op.at, count)) < count;
      op.at += count;
      if (op.result.skipped || op.at == op.sum.size()) Ready(tensor, op, Phase::kUpdate);
      return count * sizeof(float);
    }
    case Phase::kUpdate: {
      const size_t count = op.result.skipped ? op.sum.size() : chunk(op.sum.size());
      if (!op.result.skipped) state.Update(op.sum.subspan(op.at, count), op.at, Rate(state));
      op.at += count;
      if (op.at < op.sum.size()) return count * sizeof(float);
      state.EndStep(op.result.skipped);
      begun_ = true;
      const bool has_out = state.replies_sum() && !state.sharded() && !op.result.skipped;
      if (state.sharded()) Ready(tensor, op, Phase::kGather);
      else if (op.request.kind == OpKind::kPush || has_out) FinishFront(tensor);
      else Ready(tensor, op, Phase::kCopyOut);
      return count * sizeof(float);
    }
    case Phase::kGather: StartGather(tensor, op); return state.block() * sizeof(float);
    case Phase::kCopyOut:
      if (op.request.kind == OpKind::kBroadcast && op.at == 0) {
        state.EndBroadcast();
        begun_ = true;
      }
      if (op.request.kind == OpKind::kPush || copy(state.values(), op.request.output)) FinishFront(tensor);
      return kChunk * sizeof(float);
  }
  return kTurnBytes;
}

size_t Exchanges::StepCheck(Tensor& tensor, Op& op) {
  ExchangedTensor& state = *tensor.state;
  const bool broadcast = op.request.kind == OpKind::kBroadcast;
  const size_t count = std::min(kChunk, state.elements() - op.at);
  const std::span<const float> values = op.request.input.subspan(op.at, count);
  if (const size_t bad = compression::FirstNonfinite(values); bad < count) {
    ++env_.stats->refused_nonfinite;
    op.result.status = absl::InvalidArgumentError(absl::StrFormat("%s: element %d is %g; nothing was sent, and the round is still to be pushed",
                                                                  Describe(tensor, op), op.at + bad, values[bad]));
    FinishFront(tensor);
    return count * sizeof(float);
  }
  op.at += count;
  if (op.at < state.elements()) return count * sizeof(float);
  const bool pads = state.sharded() && !broadcast && state.padded() != state.elements();
  if (pads) op.input.resize(state.padded());
  Ready(tensor, op, pads || broadcast ? Phase::kCopyIn : Phase::kSum);
  return count * sizeof(float);
}

void Exchanges::StartSum(Tensor& tensor, Op& op) {
  ExchangedTensor& state = *tensor.state;
  collective::Request request;
  if (op.request.kind == OpKind::kBroadcast) {
    request.kind = Kind::kBroadcast;
    request.root = op.request.root;
    request.output = state.values();
    return Call(tensor, op, std::move(request), Phase::kCopyOut);
  }
  env_.stats->raw_bytes += state.elements() * sizeof(float);
  request.input = op.input.empty() ? op.request.input : std::span<const float>(op.input);
  if (state.sharded() || op.request.output.empty()) {
    op.scratch.resize(state.block());
    request.output = op.scratch;
  } else {
    request.output = op.request.output;
  }
  op.sum = request.output.first(state.own_values().size());
  request.kind = state.sharded() ? Kind::kReduceScatter : Kind::kAllReduce;
  request.reduction = job_.reduction() == proto::REDUCTION_MEAN ? collective::Reduction::kMean : collective::Reduction::kSum;
  request.codec = state.codec();
  request.residual = state.residual();
  Call(tensor, op, std::move(request), Phase::kCheckSum);
}

void Exchanges::StartGather(Tensor& tensor, Op& op) {
  collective::Request request;
  request.kind = Kind::kAllGather;
  request.input = tensor.state->own_block();   // where it belongs already
  request.output = tensor.state->padded_values();
  Call(tensor, op, std::move(request), Phase::kCopyOut);
}

void Exchanges::Call(Tensor& tensor, Op& op, collective::Request request, Phase then) {
  ready_.erase({op.priority, op.id});
  const uint32_t id = tensor.state->id();
  request.tensor = id;
  request.priority = op.priority;
  op.collective = env_.collectives->Submit(
      std::move(request),
      [this, &tensor, &op](const absl::Status& status) {   // both stay until it is released
        op.collective_status = status;
        op.again = MayRetry(tensor, op, status);
        if (status.ok() || op.again) return;
        CallDone(op, OpResult{.status = absl::Status(status.code(), absl::StrCat(Describe(tensor, op), ": ", AllAgain(status))),
                              .round = op.result.round});
        Break(status);
      },
      [this, &tensor, &op, then] {
        op.collective = 0;
        if (failed_.ok() && (op.collective_status.ok() || op.again)) return Ready(tensor, op, op.again ? Phase::kSum : then);
        op.result.status = failed_.ok() ? op.collective_status : failed_;
        FinishFront(tensor);
      });
}

// ------------------------------------------------------------------------------------------------ ends

void Exchanges::Cancel(uint64_t op) {
  if (const auto it = by_id_.find(op); it != by_id_.end())
    CallDone(*it->second, OpResult{.status = absl::CancelledError("cancelled; what was pushed stays pushed"), .round = it->second->result.round});
}

void Exchanges::OnTick() {
  const TimeNs now = env_.clock->Now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    Op& op = *by_id_.at(id);
    const Tensor& tensor = tensors_.at(op.request.tensor);
    CallDone(op, OpResult{.status = absl::DeadlineExceededError(absl::StrFormat(
                              "%s: not done %.1f s after it was submitted%s. It goes on; wait for its release before its memory is used again",
                              Describe(tensor, op), static_cast<double>(now - op.submitted) / kSecond,
                              tensor.ops.front().get() == &op ? "" : "; an earlier operation on this tensor is not finished")),
                          .round = op.result.round});
  }
}

void Exchanges::EndAll(const absl::Status& why) {
  if (!failed_.ok()) return;
  failed_ = why;
  for (auto& [id, tensor] : tensors_) {
    for (const auto& op : tensor.ops) {
      op->result.status = why;
      CallDone(*op, OpResult{.status = why, .round = op->result.round});
    }
    // One that waits for a collective ends when that lets go of the buffers.
    const size_t kept = !tensor.ops.empty() && tensor.ops.front()->collective != 0 ? 1 : 0;
    for (size_t i = kept; i < tensor.ops.size(); ++i) {
      by_id_.erase(tensor.ops[i]->id);
      deadlines_.erase({tensor.ops[i]->request.deadline, tensor.ops[i]->id});
      deferred_.push_back(std::move(tensor.ops[i]->released));
    }
    tensor.ops.resize(kept);
  }
  ready_.clear();
}

void Exchanges::Fail(const absl::Status& why) { EndAll(why); }

bool Exchanges::MayRetry(const Tensor& tensor, const Op& op, const absl::Status& why) const {
  if ((!absl::IsUnavailable(why) && !absl::IsAborted(why)) || begun_ || !failed_.ok()) return false;
  // What an all-reduce in place has left of the gradient is no gradient any more.
  return tensor.state->sharded() || op.request.kind == OpKind::kBroadcast || op.request.output.data() != op.request.input.data();
}

void Exchanges::Break(const absl::Status& why) {
  if (!failed_.ok()) return;
  EndAll(absl::Status(why.code(), AllAgain(why)));
  // Others may wait in a call that this rank will not make: it is made, and fails.
  for (auto& [id, tensor] : tensors_) {
    uint64_t call = tensor.ops.empty() ? 0 : tensor.ops.front()->collective;
    if (call == 0) {
      const auto nothing = std::make_shared<float>(0);
      call = env_.collectives->Submit({.kind = Kind::kBroadcast, .output = {nothing.get(), 1}, .tensor = id}, [](const absl::Status&) {},
                                      [nothing] {});
    }
    env_.collectives->Cancel(call, why);
  }
}

std::string Exchanges::Describe(const Tensor& tensor, const Op& op) const {
  return absl::StrCat(KindName(op.request.kind), " of tensor ", tensor.state->name(), ", round ", op.result.round);
}

}  // namespace sluice::worker
