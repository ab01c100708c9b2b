#include "third_party/cuda/runtime.h"

namespace sluice::cuda {
namespace {

constexpr int kNoDevice = 100;

}  // namespace

std::string ErrorText(int) { return "built without CUDA: there was no nvcc"; }
bool BuiltWithCuda() { return false; }
int DeviceOfPointer(const void*, int* device) { return *device = -1, kNoDevice; }
std::string DeviceName(int) { return "none"; }
int Allocate(int, size_t, void**) { return kNoDevice; }
int AllocatePinned(int, size_t, void**) { return kNoDevice; }
int Free(int, void*) { return kNoDevice; }
int FreePinned(int, void*) { return kNoDevice; }
int CreateStream(int, void**) { return kNoDevice; }
int DestroyStream(int, void*) { return kNoDevice; }
int CreateEvent(int, void**) { return kNoDevice; }
int DestroyEvent(int, void*) { return kNoDevice; }
int RecordEvent(int, void*, void*) { return kNoDevice; }
int WaitEvent(int, void*, void*) { return kNoDevice; }
int CopyAsync(int, void*, const void*, size_t, void*) { return kNoDevice; }
int ZeroAsync(int, void*, size_t, void*) { return kNoDevice; }
int CallWhenDone(int, void*, void (*)(void*, int), void*) { return kNoDevice; }
int WaitForStream(int, void*) { return kNoDevice; }
int MakeCurrent(int) { return kNoDevice; }

}  // namespace sluice::cuda
