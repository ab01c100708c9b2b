// Where kernel tests run: on the emulator (backend.cc), or on a GPU (tests/gpu/backend.cu). The tests are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace sluice::simt {

// Memory that both the host and kernels reach; never null.
void* AllocateShared(size_t bytes);
void FreeShared(void* memory);

// Calls enqueue(stream), waits for the stream, and returns what went wrong, "" = nothing. `schedule` is the emulator's
// seed.
std::string RunOnDevice(uint64_t schedule, const std::function<int(void* stream)>& enqueue);

}  // namespace sluice::simt
