// Stand-ins for a build without nvcc. gpu_check says so and ends before any of them is called.
#include <cstdlib>
#include <new>

#include "tests/gpu/table.h"
#include "tests/simt/backend.h"

namespace sluice {

int gpu::PrintTable() { return 1; }
void* simt::AllocateShared(size_t bytes) { return ::operator new(bytes); }
void simt::FreeShared(void* memory) { ::operator delete(memory); }
std::string simt::RunOnDevice(uint64_t, const std::function<int(void*)>&) { return "built without CUDA"; }

}  // namespace sluice
