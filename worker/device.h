// A GPU, as the worker uses it: memory, one stream of its own, and the kernels of compression/cuda.
//
// What a push from GPU memory comes to (the parts: worker/device_tensor.h, worker/op.h)
//   1. The client records an event on the caller's stream, on the caller's thread: when it is reached, the gradient is
//      ready and nobody reads `out` any more.
//   2. When the operation is at the front of its tensor's queue, rate and residual of its round are settled. The loop
//      enqueues: wait for the event; find the first NaN or infinity; encode all partitions, one launch a kernel, with
//      the new residual beside the old one; copy the encodings to pinned host memory. (Of codecs whose size the host
//      does not know, the size alone; the bytes in a second trip.)
//   3. A completion wakes the loop. Not finite: refused or skipped, and no residual has changed. Else each partition is
//      pushed with its bytes, as a payload that was prepared elsewhere.
//   4. At a partition's verdict the residual pair is swapped; of a rejected push, what was sent is decoded into it.
//   5. Answers land in pinned host memory and are copied to `out`, in order on the same stream. A completion after the
//      last copy ends the operation: whatever is enqueued from then on, on any stream, sees the new parameters.
//
// Rules
//   - Calls that enqueue return at once and report nothing. The next Then tells of the first error since the last one.
//   - Then calls back in a later turn of the loop, never inside a call, and always: after an error too.
//   - Memory may be dropped while enqueued work uses it; that waits for the work. (cudaFree does.)
//   - Record may be called from any thread, all else from the loop's alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compression/cuda/choice.h"

namespace sluice::worker {

class Device {
 public:
  using Memory = std::shared_ptr<void>;   // may outlive its device
  using Event = std::shared_ptr<void>;

  virtual ~Device() = default;
  virtual std::string name() const = 0;   // for people
  virtual absl::StatusOr<Memory> Allocate(size_t bytes) = 0;       // on the device
  virtual absl::StatusOr<Memory> AllocateHost(size_t bytes) = 0;   // that it reaches without a copy between
  // Reached when what is enqueued on `stream` now is done.
  virtual absl::StatusOr<Event> Record(void* stream) = 0;

  virtual void Await(const Event& event) = 0;
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;   // between host and device, any way
  virtual void Zero(void* at, size_t bytes) = 0;
  virtual void FindNonfinite(const compression::cuda::FindTask* task, uint64_t n) = 0;
  // As RunEncode and RunDecodeAdd of compression/cuda/choice.h. Tasks lie in device memory.
  virtual void Encode(const compression::cuda::Choice& choice, const void* tasks, uint32_t count, uint64_t largest) = 0;
  virtual void DecodeAdd(const compression::cuda::Choice& choice, const void* tasks, uint32_t count,
                         uint64_t largest) = 0;
  virtual uint64_t EncodeWorkspaceBytes(uint64_t n, uint64_t most) const = 0;
  virtual uint64_t DecodeWorkspaceBytes(uint64_t n, uint64_t most) const = 0;

  virtual void Then(std::function<void(absl::Status)> done) = 0;
  virtual absl::Status Finish() = 0;   // blocks until all is done: for snapshots and the end
};

// The buffers of one operation.
struct DeviceBuffers {
  std::shared_ptr<Device> device;
  Device::Event ready;                // null = ready now
  std::span<const float> gradient;    // on the device, as out
  std::span<float> out;               // empty = not wanted; may be the gradient
};

}  // namespace sluice::worker
