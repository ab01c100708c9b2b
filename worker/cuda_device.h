// The GPU behind worker/device.h, by CUDA.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/device.h"

namespace sluice::worker {

// The GPU that `memory` lies on. UNIMPLEMENTED says what is missing: a build with CUDA, a driver, a GPU.
// INVALID_ARGUMENT: host memory. post: runs its argument on the loop, from any thread, for as long as the device lives.
absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(const void* memory,
                                                       std::function<void(std::function<void()>)> post);
// The number of the GPU that `memory` lies on; errors as above.
absl::StatusOr<int> CudaDeviceOf(const void* memory);

}  // namespace sluice::worker
