// CUDA's runtime, as far as it is used outside of kernels: thin calls without CUDA's own headers, so that what uses them
// is compiled everywhere. An int is a cudaError_t, 0 if all is well; without CUDA it is 100 (no device).
#pragma once

#include <cstddef>
#include <string>

namespace sluice::cuda {

std::string ErrorText(int error);
bool BuiltWithCuda();

// Where a pointer lies: *device is the GPU's number, or -1 for host memory (pinned or not).
int DeviceOfPointer(const void* pointer, int* device);
std::string DeviceName(int device);

// All of these with that GPU as the thread's, which is put back before they return.
int Allocate(int device, size_t bytes, void** memory);
int AllocatePinned(int device, size_t bytes, void** memory);
int Free(int device, void* memory);          // waits for what uses it
int FreePinned(int device, void* memory);
int CreateStream(int device, void** stream);  // beside others: the legacy default stream does not hold it back
int DestroyStream(int device, void* stream);
int CreateEvent(int device, void** event);
int DestroyEvent(int device, void* event);
int RecordEvent(int device, void* event, void* stream);
int WaitEvent(int device, void* stream, void* event);
int CopyAsync(int device, void* to, const void* from, size_t bytes, void* stream);
int ZeroAsync(int device, void* at, size_t bytes, void* stream);
// call(data, error) on a thread of the driver's when what is enqueued is done, or has failed. It may not call CUDA.
int CallWhenDone(int device, void* stream, void (*call)(void* data, int error), void* data);
int WaitForStream(int device, void* stream);
int MakeCurrent(int device);   // for kernels that are launched next, on this thread

}  // namespace sluice::cuda
