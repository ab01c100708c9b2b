// Pushes from GPU memory: the part of an operation's life that a device works on. worker/device.h has the steps.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/op.h"

namespace sluice::worker {

absl::Status OpQueue::CheckDevice(const TensorState& tensor, const OpRequest& request) const {
  const DeviceBuffers& buffers = *request.device;
  const auto what = [&] {
    return absl::StrCat(KindName(request.kind), " of tensor ", tensor.spec.name(), " from GPU memory: ");
  };
  if (request.kind != OpKind::kPush && request.kind != OpKind::kPushPull) {
    return absl::InvalidArgumentError(absl::StrCat(what(), "only pushes may come from there"));
  }
  const bool wants_output = request.kind == OpKind::kPushPull;
  const size_t out = wants_output ? tensor.elements : 0;
  if (buffers.gradient.size() != tensor.elements || buffers.out.size() != out) {
    return absl::InvalidArgumentError(absl::StrCat(what(), "the gradient has ", buffers.gradient.size(),
                                                   " elements, the output ", buffers.out.size(), ", the tensor ",
                                                   tensor.elements));
  }
  if (wants_output && Overlap(buffers.gradient, buffers.out) && buffers.gradient.data() != buffers.out.data()) {
    return absl::InvalidArgumentError(absl::StrCat(what(),
                                                   "gradient and output overlap in part; give the same memory or "
                                                   "apart"));
  }
  if (momentum_) {
    return absl::UnimplementedError(
        absl::StrCat(what(), "job.momentum_correction keeps its velocity on the host only; push from host memory, or unset it"));
  }
  if (clip_norm_ > 0) {
    return absl::UnimplementedError(absl::StrCat(what(),
                                                 "job.local_clip_norm is for host memory; let the servers clip "
                                                 "(job.optimizer.clip_norm), or clip on the device"));
  }
  return absl::OkStatus();
}

size_t OpQueue::StepDevice(TensorState& tensor, Op& op) {
  const DeviceBuffers& buffers = *op.request.device;
  absl::Status status;
  if (tensor.device == nullptr) {
    tensor.device =
        std::make_unique<DeviceTensor>(buffers.device, tensor.partitions, tensor.codecs.get(), env_.partitions);
  } else if (tensor.device->device() != buffers.device) {
    status = absl::FailedPreconditionError(absl::StrCat("it was pushed from ", tensor.device->device()->name(),
                                                        " before, and what its codec left out lies there"));
  }
  // Before anything is sent: later it would be the end of the worker.
  if (status.ok() && !buffers.out.empty()) status = tensor.device->Output().status();
  if (status.ok()) {
    status = tensor.device->Encode(
        op.result.round, buffers,
        [this, id = op.id](const absl::StatusOr<size_t>& first_nonfinite) { OnEncoded(id, first_nonfinite); });
  }
  if (!status.ok()) {
    if (!tensor.device->in_use()) tensor.device.reset();  // the next push may come from host memory
    Refuse(tensor, op,
           absl::Status(status.code(), absl::StrCat(KindName(op.request.kind), " of tensor ", tensor.spec.name(),
                                                    " from ", buffers.device->name(), ": ", status.message())));
    return 0;
  }
  op.on_device = true;
  ready_.erase({op.priority, op.id});  // until OnEncoded
  return 0;
}

void OpQueue::OnEncoded(uint64_t id, const absl::StatusOr<size_t>& first_nonfinite) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  Op& op = *it->second;
  TensorState& tensor = *Find(op.request.tensor);
  op.on_device = false;
  if (!failed_.ok()) {
    if (--op.unfinished == 0) FinishFront(tensor);
    return;
  }
  if (!first_nonfinite.ok()) {
    Refuse(
        tensor, op,
        absl::Status(first_nonfinite.status().code(),
                     absl::StrFormat("%s of tensor %s, round %d: %s failed to encode it: %s; nothing was sent, and the "
                                     "round is still to be pushed",
                                     KindName(op.request.kind), tensor.spec.name(), op.result.round,
                                     op.request.device->device->name(), first_nonfinite.status().message())));
    return;
  }
  if (*first_nonfinite < tensor.elements) {
    OnNonfinite(tensor, op, *first_nonfinite, "not finite");
    if (!skip_nonfinite_) return;
  }
  op.checked = tensor.elements;
  ready_[{op.priority, op.id}] = &tensor;
}

void OpQueue::SettleOnDevice(TensorState& tensor, Op& op, size_t partition, const Partition::Answer& answer) {
  op.device_status.Update(tensor.device->Settle(partition, answer.flags));
  if (op.request.device->out.empty() || !answer.has_output) return;
  tensor.device->CopyOutput(partition, op.request.device->out);
  op.has_output = true;
}

void OpQueue::OnDeviceDone(uint64_t id, const absl::Status& status) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  Op& op = *it->second;
  TensorState& tensor = *Find(op.request.tensor);
  op.on_device = false;
  if (!failed_.ok() && --op.unfinished != 0) return;
  op.device_status.Update(status);
  TakeDeviceStatus(tensor, op);
  FinishFront(tensor);
}

void OpQueue::TakeDeviceStatus(const TensorState& tensor, Op& op) {
  if (op.device_status.ok() || !op.result.status.ok()) return;
  op.result.status = absl::Status(
      op.device_status.code(),
      absl::StrFormat(
          "%s of tensor %s, round %d: the round was applied, but %s failed: %s; its output and what its codec "
          "left out are lost",
          KindName(op.request.kind), tensor.spec.name(), op.result.round, op.request.device->device->name(),
          op.device_status.message()));
}

}  // namespace sluice::worker
