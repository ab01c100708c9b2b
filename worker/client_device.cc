// Tensors in GPU memory: the event is recorded on the trainer's thread, the rest is the loop's (worker/device.h).
#include <memory>
#include <utility>

#include "worker/client_impl.h"
#include "worker/device.h"

namespace sluice {

Handle Client::Impl::SubmitFromDevice(worker::OpRequest request, DeviceGradient gradient, DeviceOutput out,
                                      void* stream, const OpOptions& options) {
  absl::StatusOr<std::shared_ptr<worker::Device>> device = runtime->DeviceOf(gradient.data);
  if (device.ok() && out.data != nullptr) device = runtime->DeviceOf(out.data);
  if (!device.ok()) return Ended(device.status());
  absl::StatusOr<worker::Device::Event> ready = (*device)->Record(stream);
  if (!ready.ok()) return Ended(ready.status());
  worker::DeviceBuffers buffers;
  buffers.device = *std::move(device);
  buffers.ready = *std::move(ready);
  buffers.gradient = {gradient.data, gradient.size};
  buffers.out = {out.data, out.size};
  request.device = std::make_shared<const worker::DeviceBuffers>(std::move(buffers));
  return Submit(std::move(request), options);
}

Handle Client::Push(Tensor tensor, DeviceGradient gradient, void* stream, const OpOptions& options) {
  return impl_->SubmitFromDevice({.kind = worker::OpKind::kPush, .tensor = tensor.id}, gradient, {}, stream, options);
}

Handle Client::PushPull(Tensor tensor, DeviceGradient gradient, DeviceOutput out, void* stream,
                        const OpOptions& options) {
  return impl_->SubmitFromDevice({.kind = worker::OpKind::kPushPull, .tensor = tensor.id}, gradient, out, stream,
                                 options);
}

}  // namespace sluice
