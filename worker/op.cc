#include "worker/op.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace sluice::worker {
namespace {

// Work of one turn, in bytes of fp32 looked through or encoded: about a millisecond.
constexpr size_t kTurnBytes = 4 << 20;
constexpr size_t kCheckElements = 256 << 10;

}  // namespace

const char* KindName(OpKind kind) {
  switch (kind) {
    case OpKind::kPush: return "push";
    case OpKind::kPull: return "pull";
    case OpKind::kPushPull: return "push_pull";
    case OpKind::kBroadcast: return "broadcast";
    case OpKind::kPushRows: return "push of rows";
  }
  return "operation";
}

TableShape TensorState::table_shape() const {
  TableShape shape;
  shape.name = spec.name();
  shape.dim = spec.table().dim();
  shape.segments = static_cast<uint32_t>(partitions.size());
  shape.vocabulary = spec.table().vocabulary();
  shape.unknown_as_zero = spec.table().unknown_ids() == "zero";
  shape.codec = row_codec;
  shape.residual = row_residual;
  return shape;
}

absl::Status TensorState::TakeChoices(const proto::Plan& plan) {
  if (codecs == nullptr || !codecs->chosen()) return absl::OkStatus();
  for (const proto::CodecChoice& choice : plan.codec_choices()) {
    if (choice.tensor() != id || choice.from_round() <= codecs->last_change()) continue;
    SLUICE_RETURN_IF_ERROR(codecs->Change(choice.from_round(), choice.codec()));
  }
  return absl::OkStatus();
}

TensorState* OpQueue::AddTensor(std::unique_ptr<TensorState> tensor) {
  TensorState* raw = tensor.get();
  by_name_[raw->spec.name()] = raw;
  tensors_[raw->id] = std::move(tensor);
  return raw;
}

TensorState* OpQueue::Find(uint32_t id) {
  auto it = tensors_.find(id);
  return it == tensors_.end() ? nullptr : it->second.get();
}

TensorState* OpQueue::FindByName(const std::string& name) {
  auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

absl::Status CheckBuffers(const OpRequest& request, const std::string& tensor, size_t elements, uint32_t rank, uint32_t ranks) {
  // Without a root everybody would contribute presence alone, and the round would make the parameters zeros.
  if (request.kind == OpKind::kBroadcast && request.root >= ranks) {
    return absl::InvalidArgumentError(absl::StrCat("broadcast of tensor ", tensor, ": root ",
                                                   static_cast<int32_t>(request.root), ", but ranks go from 0 to ",
                                                   ranks - 1));
  }
  const bool push = request.kind == OpKind::kPush || request.kind == OpKind::kPushPull;
  const bool root = request.kind == OpKind::kBroadcast && request.root == rank;
  const auto wrong = [&](const char* what, size_t size) {
    return absl::InvalidArgumentError(absl::StrFormat("%s of tensor %s: the %s has %d elements, the tensor %d",
                                                      KindName(request.kind), tensor, what, size,
                                                      elements));
  };
  if ((push || root) && request.input.size() != elements) return wrong("input", request.input.size());
  if (request.kind != OpKind::kPush && request.output.size() != elements) {
    return wrong("output", request.output.size());
  }
  if ((push || root) && Overlap(request.input, request.output) && request.input.data() != request.output.data()) {
    return absl::InvalidArgumentError(
        absl::StrCat(KindName(request.kind), " of tensor ", tensor,
                     ": input and output overlap in part; give the same memory or apart"));
  }
  return absl::OkStatus();
}

absl::Status OpQueue::Check(const TensorState* tensor, const OpRequest& request) const {
  if (!failed_.ok()) return failed_;
  if (tensor == nullptr || !tensor->admitted) {
    return absl::NotFoundError(absl::StrCat("tensor ", request.tensor, " is not registered; register it first"));
  }
  if (tensor->spec.has_table() != (request.kind == OpKind::kPushRows)) {
    return absl::InvalidArgumentError(absl::StrCat(KindName(request.kind), " of ", tensor->spec.name(), ": it is a ",
                                                   tensor->spec.has_table() ? "table" : "tensor"));
  }
  if (request.device != nullptr) return CheckDevice(*tensor, request);
  if (request.kind == OpKind::kPushRows) {
    if (request.rows != nullptr && request.rows->parts.size() == tensor->partitions.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("push of rows of table ", tensor->spec.name(), ": prepared for ",
                                                   request.rows == nullptr ? 0 : request.rows->parts.size(),
                                                   " segments, the table has ", tensor->partitions.size()));
  }
  return CheckBuffers(request, tensor->spec.name(), tensor->elements, rank_, ranks_);
}

uint64_t OpQueue::Submit(const OpRequest& request, std::function<void(const OpResult&)> done,
                         std::function<void()> released) {
  TensorState* tensor = Find(request.tensor);
  auto op = std::make_unique<Op>();
  op->id = next_id_++;
  op->request = request;
  op->done = std::move(done);
  op->released = std::move(released);
  op->submitted = env_.clock->Now();
  const uint64_t id = op->id;
  if (absl::Status status = Check(tensor, request); !status.ok()) {
    CallDone(*op, OpResult{.status = std::move(status)});
    if (op->released) deferred_.push_back(std::move(op->released));
    return id;
  }
  op->priority = request.priority == INT32_MIN ? tensor->spec.priority() : request.priority;
  by_id_[id] = op.get();
  if (request.deadline != 0) deadlines_.insert({request.deadline, id});
  ++env_.stats->ops;
  tensor->ops.push_back(std::move(op));
  if (tensor->ops.size() == 1) StartFront(*tensor);
  return id;
}

bool OpQueue::NeedsCheck(const Op& op) const {
  const OpRequest& request = op.request;
  return request.kind == OpKind::kPush || request.kind == OpKind::kPushPull ||
         (request.kind == OpKind::kBroadcast && request.root == rank_);
}

void OpQueue::StartFront(TensorState& tensor) {
  Op& op = *tensor.ops.front();
  op.running = true;
  op.unfinished = tensor.partitions.size();
  op.result.round = tensor.next_round;
  op.result.contributors = UINT32_MAX;
  if (!NeedsCheck(op)) op.checked = tensor.elements;
  ready_[{op.priority, op.id}] = &tensor;
}

bool OpQueue::Pump() {
  size_t touched = 0;
  while (!ready_.empty() && touched < kTurnBytes) {
    auto it = ready_.begin();
    TensorState& tensor = *it->second;
    Op& op = *tensor.ops.front();
    const ReadyKey key = it->first;
    touched += Step(tensor, op);  // may end the operation, or all of them
    auto again = ready_.find(key);
    if (again != ready_.end() && !tensor.ops.empty() && tensor.ops.front()->id == key.second &&
        tensor.ops.front()->next_partition == tensor.partitions.size() &&
        tensor.ops.front()->checked == tensor.elements) {
      ready_.erase(again);
    }
  }
  return !ready_.empty();
}

size_t OpQueue::Step(TensorState& tensor, Op& op) {
  if (op.checked == tensor.elements) return StepStart(tensor, op);
  return op.request.device != nullptr ? StepDevice(tensor, op) : StepCheck(tensor, op);
}

size_t OpQueue::StepCheck(TensorState& tensor, Op& op) {
  if (tensor.device != nullptr && op.request.kind != OpKind::kBroadcast) {
    Refuse(tensor, op, absl::FailedPreconditionError(absl::StrFormat(
        "%s of tensor %s from host memory: it was pushed from GPU memory before, and what its codec left out lies "
        "there; go on from there", KindName(op.request.kind), tensor.spec.name())));
    return 0;
  }
  const size_t count = std::min(kCheckElements, tensor.elements - op.checked);
  const std::span<const float> chunk = op.request.input.subspan(op.checked, count);
  const size_t bad = compression::FirstNonfinite(chunk);
  if (bad == count) {
    op.checked += count;
    if (clip_norm_ > 0 && op.request.kind != OpKind::kBroadcast) op.squared_norm += compression::SquaredNorm(chunk);
    return count * sizeof(float);
  }
  OnNonfinite(tensor, op, op.checked + bad, absl::StrFormat("%g", static_cast<double>(chunk[bad])));
  return count * sizeof(float);
}

void OpQueue::OnNonfinite(TensorState& tensor, Op& op, size_t element, const std::string& what) {
  if (skip_nonfinite_ && op.request.kind != OpKind::kBroadcast) {
    op.nonfinite = true;
    op.checked = tensor.elements;
    return;
  }
  ++env_.stats->refused_nonfinite;
  Refuse(tensor, op,
         absl::InvalidArgumentError(absl::StrFormat("%s of tensor %s: element %d is %s; nothing was sent, and round %d "
                                                    "is still to be pushed (job.on_nonfinite=skip skips "
                                                    "such a step on all workers)",
                                                    KindName(op.request.kind), tensor.spec.name(), element, what,
                                                    op.result.round)));
}

void OpQueue::Refuse(TensorState& tensor, Op& op, absl::Status why) {
  op.result.status = std::move(why);
  ready_.erase({op.priority, op.id});
  FinishFront(tensor);
}

size_t OpQueue::StepStart(TensorState& tensor, Op& op) {
  if (op.next_partition == tensor.partitions.size()) return 0;
  Partition& partition = *tensor.partitions[op.next_partition++];
  const Partition::Shape& shape = partition.shape();
  const auto part = [&](auto whole) { return whole.empty() ? whole : whole.subspan(shape.offset, shape.elements); };
  const OpRequest& request = op.request;
  const transport::LinkId link = env_.link(partition, /*push=*/request.kind != OpKind::kPull);
  absl::Status status;
  size_t touched = shape.elements * sizeof(float);
  if (request.kind == OpKind::kPushRows) {
    const RowPush::Part& rows = request.rows->parts[op.next_partition - 1];
    Partition::Push push;
    push.round = op.result.round;
    push.priority = op.priority;
    push.submitted = op.submitted;
    push.prepared = rows.payload;
    push.prepared_count = rows.rows;
    push.prepared_codec = request.rows->codec;
    if (rows.rows == 0) push.flags = transport::kFlagEmpty;
    if (op.next_partition == 1) env_.stats->raw_bytes += request.rows->raw_bytes;
    touched = rows.payload.size();
    status = partition.StartPush(push, link);
  } else if (request.kind == OpKind::kPull) {
    Partition::Pull pull;
    pull.round = op.result.round;
    pull.output = part(request.output);
    status = partition.StartPull(pull, link);
  } else {
    Partition::Push push;
    push.round = op.result.round;
    push.priority = op.priority;
    push.submitted = op.submitted;
    push.output = part(request.output);
    if (request.device != nullptr && !request.device->out.empty()) {
      absl::StatusOr<std::span<float>> output = tensor.device->Output();
      if (output.ok()) push.output = part(*output);
      status.Update(output.status());
    }
    if (request.kind == OpKind::kBroadcast) {
      push.flags = request.root == rank_ ? transport::kFlagAssign : transport::kFlagEmpty;
    } else if (op.nonfinite) {
      push.flags = transport::kFlagNonfinite;
    }
    if ((push.flags & (transport::kFlagEmpty | transport::kFlagNonfinite)) == 0) {
      push.gradient = part(request.input);
      if (request.device != nullptr) {
        push.prepared = tensor.device->payload(op.next_partition - 1);
        push.prepared_count = static_cast<uint32_t>(shape.elements);
        push.prepared_codec = tensor.device->codec();
        push.plain = push.prepared_codec == static_cast<uint16_t>(compression::CodecId::kNone);
        touched = push.prepared.size();
      }
      if (clip_norm_ > 0 && request.kind != OpKind::kBroadcast && op.squared_norm > clip_norm_ * clip_norm_) {
        push.factor = static_cast<float>(clip_norm_ / std::sqrt(op.squared_norm));
      }
      env_.stats->raw_bytes += shape.elements * sizeof(float);
    }
    if (status.ok()) status = partition.StartPush(push, link);
  }
  if (!status.ok()) {
    env_.fail(absl::Status(status.code(), absl::StrCat(KindName(request.kind), " of tensor ", tensor.spec.name(), ": ",
                                                       status.message())));
    return kTurnBytes;
  }
  return touched;
}

void OpQueue::OnPartitionIdle(Partition* partition) {
  TensorState* tensor = Find(partition->shape().tensor);
  if (tensor == nullptr || tensor->ops.empty() || !tensor->ops.front()->running) return;
  Op& op = *tensor->ops.front();
  const Partition::Answer& answer = partition->answer();
  if (answer.status.ok()) {
    if ((answer.flags & (transport::kFlagSkipped | transport::kFlagRejected)) != 0) op.result.skipped = true;
    op.result.rejected = op.result.rejected || (answer.flags & transport::kFlagRejected) != 0;
    if ((answer.flags & transport::kFlagRejected) != 0 && tensor->row_residual != nullptr) {
      const uint32_t segment = partition->shape().index - tensor->partitions.front()->shape().index;
      ReturnRows(tensor->table_shape(), op.request.rows->parts[segment]);
    }
    if (op.request.device != nullptr) {
      SettleOnDevice(*tensor, op, partition->shape().index - tensor->partitions.front()->shape().index, answer);
    }
    op.result.contributors = std::min(op.result.contributors, answer.contributors);
    next_rate_ = partition->next_rate();
  } else if (op.result.status.ok()) {
    op.result.status = answer.status;
  }
  if (--op.unfinished == 0) {
    if (op.result.status.ok() && op.request.kind != OpKind::kPull) {
      tensor->next_round = op.result.round + 1;
      if (op.result.round > env_.stats->max_round) {
        env_.stats->max_round = op.result.round;
        env_.stats->max_round_at = env_.clock->Now();
      }
    }
    op.result.next_rate = next_rate_;
    if (!op.has_output) {
      TakeDeviceStatus(*tensor, op);
      return FinishFront(*tensor);
    }
    op.on_device = true;
    op.request.device->device->Then([this, id = op.id](const absl::Status& status) { OnDeviceDone(id, status); });
  }
}

void OpQueue::FinishFront(TensorState& tensor) {
  std::unique_ptr<Op> op = std::move(tensor.ops.front());
  tensor.ops.pop_front();
  if (op->result.contributors == UINT32_MAX) op->result.contributors = 0;
  by_id_.erase(op->id);
  if (op->request.deadline != 0) deadlines_.erase({op->request.deadline, op->id});
  CallDone(*op, op->result);
  if (op->released) deferred_.push_back(std::move(op->released));
  if (!tensor.ops.empty()) StartFront(tensor);
}

void OpQueue::CallDone(Op& op, OpResult result) {
  if (!op.done) return;
  deferred_.push_back([done = std::move(op.done), result = std::move(result)] { done(result); });
  op.done = nullptr;
}

void OpQueue::Cancel(uint64_t id) {
  auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  CallDone(*it->second, OpResult{.status = absl::CancelledError("cancelled; what was pushed stays pushed"),
                                 .round = it->second->result.round});
}

void OpQueue::OnTick() {
  const TimeNs now = env_.clock->Now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    auto it = by_id_.find(id);
    if (it == by_id_.end() || !it->second->done) continue;
    Op& op = *it->second;
    const TensorState* tensor = Find(op.request.tensor);
    std::string where = op.running ? "" : "; an earlier operation on this tensor is not finished";
    if (op.on_device) where = absl::StrCat("; ", op.request.device->device->name(), " still works on it");
    for (const auto& partition : tensor->partitions) {
      if (!op.running || partition->phase() == Partition::Phase::kIdle) continue;
      where = absl::StrCat("; partition ", partition->shape().index, ": ", partition->Progress());
      break;
    }
    CallDone(
        op,
        OpResult{.status = absl::DeadlineExceededError(absl::StrFormat(
                     "%s of tensor %s, round %d: not done %.1f s after it was submitted%s. It goes on; wait for its "
                     "release before its memory is used again",
                     KindName(op.request.kind), tensor->spec.name(), op.result.round,
                     static_cast<double>(now - op.submitted) / kSecond, where)),
                 .round = op.result.round});
  }
}

void OpQueue::Fail(const absl::Status& why) {
  if (!failed_.ok()) return;
  failed_ = why;
  ready_.clear();
  for (auto& [id, tensor] : tensors_) {
    // Those that have not started end here; of the front one, partitions that the transport may still touch come first.
    while (tensor->ops.size() > 1) {
      std::unique_ptr<Op> op = std::move(tensor->ops.back());
      tensor->ops.pop_back();
      by_id_.erase(op->id);
      CallDone(*op, OpResult{.status = why});
      if (op->released) deferred_.push_back(std::move(op->released));
    }
    if (tensor->ops.empty()) continue;
    Op& op = *tensor->ops.front();
    CallDone(op, OpResult{.status = why, .round = op.result.round});
    op.result.status = why;
    // A partition not started yet has nothing to wait for. Held at one more, so that the last of them ends the
    // operation.
    op.unfinished -= tensor->partitions.size() - op.next_partition;
    op.next_partition = tensor->partitions.size();
    op.checked = tensor->elements;
    op.unfinished += 1 + (op.on_device ? 1 : 0);   // OnEncoded or OnDeviceDone counts that one off
    for (auto& partition : tensor->partitions) partition->Abandon(why);
    if (--op.unfinished == 0) FinishFront(*tensor);
  }
}

void OpQueue::RunDeferred() {
  // done may submit again, which only adds to the queue.
  while (!deferred_.empty()) {
    std::function<void()> fn = std::move(deferred_.front());
    deferred_.pop_front();
    fn();
  }
}

const Op* OpQueue::Oldest() const {
  const Op* oldest = nullptr;
  for (const auto& [id, op] : by_id_) {
    if (op->running && (oldest == nullptr || op->id < oldest->id)) oldest = op;
  }
  return oldest;
}

}  // namespace sluice::worker
