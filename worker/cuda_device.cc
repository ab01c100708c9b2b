#include "worker/cuda_device.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "third_party/cuda/probe.h"
#include "third_party/cuda/runtime.h"

namespace sluice::worker {
namespace {

absl::Status ToStatus(int error) {
  constexpr int kMemoryAllocation = 2;
  if (error == 0) return absl::OkStatus();
  return absl::Status(error == kMemoryAllocation ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                      cuda::ErrorText(error));
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int number, void* stream, std::function<void(std::function<void()>)> post)
      : number_(number),
        stream_(stream),
        name_(absl::StrCat("gpu ", number, " (", cuda::DeviceName(number), ")")),
        post_(std::move(post)) {}
  ~CudaDevice() override {
    (void)cuda::WaitForStream(number_, stream_);  // and for the callbacks of Then
    (void)cuda::DestroyStream(number_, stream_);
  }

  std::string name() const override { return name_; }
  absl::StatusOr<Memory> Allocate(size_t bytes) override {
    void* memory = nullptr;
    SLUICE_RETURN_IF_ERROR(ToStatus(cuda::Allocate(number_, bytes, &memory)));
    return Memory(memory, [number = number_](void* p) { (void)cuda::Free(number, p); });
  }
  absl::StatusOr<Memory> AllocateHost(size_t bytes) override {
    void* memory = nullptr;
    SLUICE_RETURN_IF_ERROR(ToStatus(cuda::AllocatePinned(number_, bytes, &memory)));
    return Memory(memory, [number = number_](void* p) { (void)cuda::FreePinned(number, p); });
  }
  absl::StatusOr<Event> Record(void* stream) override {
    void* event = nullptr;
    SLUICE_RETURN_IF_ERROR(ToStatus(cuda::CreateEvent(number_, &event)));
    Event owned(event, [number = number_](void* e) { (void)cuda::DestroyEvent(number, e); });
    SLUICE_RETURN_IF_ERROR(ToStatus(cuda::RecordEvent(number_, event, stream)));
    return owned;
  }

  void Await(const Event& event) override { Note(cuda::WaitEvent(number_, stream_, event.get())); }
  void Copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) Note(cuda::CopyAsync(number_, to, from, bytes, stream_));
  }
  void Zero(void* at, size_t bytes) override { Note(cuda::ZeroAsync(number_, at, bytes, stream_)); }
  void FindNonfinite(const compression::cuda::FindTask* task, uint64_t n) override {
    Note(cuda::MakeCurrent(number_));
    Note(compression::cuda::FirstNonfinite({task, 1, n}, stream_));
  }
  void Encode(const compression::cuda::Choice& choice, const void* tasks, uint32_t count, uint64_t largest) override {
    Note(cuda::MakeCurrent(number_));
    Note(compression::cuda::RunEncode(choice, tasks, count, largest, stream_));
  }
  void DecodeAdd(const compression::cuda::Choice& choice, const void* tasks, uint32_t count,
                 uint64_t largest) override {
    Note(cuda::MakeCurrent(number_));
    Note(compression::cuda::RunDecodeAdd(choice, tasks, count, largest, stream_));
  }
  uint64_t EncodeWorkspaceBytes(uint64_t n, uint64_t most) const override {
    return compression::cuda::SparseWorkspaceBytes(n, most);
  }
  uint64_t DecodeWorkspaceBytes(uint64_t n, uint64_t most) const override {
    return compression::cuda::SparseDecodeWorkspaceBytes(n, most);
  }

  void Then(std::function<void(absl::Status)> done) override {
    auto* pending = new Pending{post_, std::move(done), std::exchange(error_, 0)};
    const int refused = cuda::CallWhenDone(
        number_, stream_, [](void* data, int error) { static_cast<Pending*>(data)->Call(error); }, pending);
    if (refused == 0) return;
    (void)cuda::WaitForStream(number_, stream_);  // a context that is broken does not wait
    pending->Call(refused);
  }
  absl::Status Finish() override {
    const int waited = cuda::WaitForStream(number_, stream_);
    const int before = std::exchange(error_, 0);
    return ToStatus(before != 0 ? before : waited);
  }

 private:
  struct Pending {
    std::function<void(std::function<void()>)> post;
    std::function<void(absl::Status)> done;
    int error;  // of a call that enqueues
    void Call(int later_error) {
      // Its text is made on the loop: here nothing of CUDA may be called.
      post([done = std::move(done), code = error != 0 ? error : later_error] { done(ToStatus(code)); });
      delete this;
    }
  };

  void Note(int error) {
    if (error_ == 0) error_ = error;
  }

  const int number_;
  void* const stream_;
  const std::string name_;
  const std::function<void(std::function<void()>)> post_;
  int error_ = 0;  // the first since the last Then; the loop's
};

}  // namespace

absl::StatusOr<int> CudaDeviceOf(const void* memory) {
  const cuda::Probe probe = cuda::ProbeDevices();
  if (probe.devices == 0) {
    return absl::UnimplementedError(absl::StrCat(
        "tensors in GPU memory: ", probe.why_none,
        probe.built ? " (nvidia-smi shows driver and devices)" : "; build where CUDA's nvcc is (docs/gpu.md)",
        ", or push from host memory"));
  }
  int number = -1;
  SLUICE_RETURN_IF_ERROR(ToStatus(cuda::DeviceOfPointer(memory, &number)));
  if (number < 0) {
    return absl::InvalidArgumentError("this is host memory, not a GPU's: use the calls that take a std::span");
  }
  return number;
}

absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(const void* memory,
                                                       std::function<void(std::function<void()>)> post) {
  SLUICE_ASSIGN_OR_RETURN(const int number, CudaDeviceOf(memory));
  void* stream = nullptr;
  SLUICE_RETURN_IF_ERROR(ToStatus(cuda::CreateStream(number, &stream)));
  return std::make_shared<CudaDevice>(number, stream, std::move(post));
}

}  // namespace sluice::worker
