#include "third_party/cuda/runtime.h"

#include <cuda_runtime.h>

namespace sluice::cuda {
namespace {

class OnDevice {
 public:
  explicit OnDevice(int device) {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != device) {
      error_ = cudaSetDevice(device);
      changed_ = error_ == cudaSuccess;
    }
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  template <typename F>
  int Do(F f) {
    return error_ != cudaSuccess ? error_ : f();
  }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_;
};

cudaStream_t Stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t Event(void* event) { return static_cast<cudaEvent_t>(event); }

struct Call {
  void (*call)(void* data, int error);
  void* data;
};

void CUDART_CB RunCall(cudaStream_t, cudaError_t error, void* data) {
  const Call call = *static_cast<Call*>(data);
  delete static_cast<Call*>(data);
  call.call(call.data, error);
}

}  // namespace

std::string ErrorText(int error) {
  const auto code = static_cast<cudaError_t>(error);
  return std::string(cudaGetErrorName(code)) + ": " + cudaGetErrorString(code);
}
bool BuiltWithCuda() { return true; }

int DeviceOfPointer(const void* pointer, int* device) {
  cudaPointerAttributes attributes{};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, pointer);
  const bool on_device = attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  *device = error == cudaSuccess && on_device ? attributes.device : -1;
  return error;
}

std::string DeviceName(int device) {
  cudaDeviceProp properties{};
  return cudaGetDeviceProperties(&properties, device) == cudaSuccess ? properties.name : "unknown";
}

int Allocate(int device, size_t bytes, void** memory) {
  return OnDevice(device).Do([&] { return cudaMalloc(memory, bytes == 0 ? 1 : bytes); });
}
int AllocatePinned(int device, size_t bytes, void** memory) {
  return OnDevice(device).Do([&] { return cudaHostAlloc(memory, bytes == 0 ? 1 : bytes, cudaHostAllocPortable); });
}
int Free(int device, void* memory) {
  return OnDevice(device).Do([&] { return cudaFree(memory); });
}
int FreePinned(int device, void* memory) {
  return OnDevice(device).Do([&] { return cudaFreeHost(memory); });
}
int CreateStream(int device, void** stream) {
  return OnDevice(device).Do(
      [&] { return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking); });
}
int DestroyStream(int device, void* stream) {
  return OnDevice(device).Do([&] { return cudaStreamDestroy(Stream(stream)); });
}
int CreateEvent(int device, void** event) {
  return OnDevice(device).Do(
      [&] { return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming); });
}
int DestroyEvent(int device, void* event) {
  return OnDevice(device).Do([&] { return cudaEventDestroy(Event(event)); });
}
int RecordEvent(int device, void* event, void* stream) {
  return OnDevice(device).Do([&] { return cudaEventRecord(Event(event), Stream(stream)); });
}
int WaitEvent(int device, void* stream, void* event) {
  return OnDevice(device).Do([&] { return cudaStreamWaitEvent(Stream(stream), Event(event), 0); });
}
int CopyAsync(int device, void* to, const void* from, size_t bytes, void* stream) {
  return OnDevice(device).Do([&] { return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Stream(stream)); });
}
int ZeroAsync(int device, void* at, size_t bytes, void* stream) {
  return OnDevice(device).Do([&] { return cudaMemsetAsync(at, 0, bytes, Stream(stream)); });
}
// Not cudaLaunchHostFunc: after an error that one is never called.
int CallWhenDone(int device, void* stream, void (*call)(void* data, int error), void* data) {
  return OnDevice(device).Do([&] {
    auto* pending = new Call{call, data};
    const cudaError_t error = cudaStreamAddCallback(Stream(stream), RunCall, pending, 0);
    if (error != cudaSuccess) delete pending;
    return error;
  });
}
int WaitForStream(int device, void* stream) {
  return OnDevice(device).Do([&] { return cudaStreamSynchronize(Stream(stream)); });
}
int MakeCurrent(int device) { return cudaSetDevice(device); }

}  // namespace sluice::cuda
