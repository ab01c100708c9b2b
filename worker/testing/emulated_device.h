// A GPU in host memory for tests: kernels run on tests/simt's emulator, and nothing that is enqueued happens before a
// later turn.
#pragma once

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simt/machine.h"
#include "worker/device.h"

namespace sluice::worker {

// What a trainer enqueues on its stream: done when a device that waits for an event of it comes to that.
struct CallersStream {
  std::deque<std::function<void()>> work;
};

class EmulatedDevice final : public Device {
 public:
  // later: runs it in a later turn of the loop.
  explicit EmulatedDevice(std::function<void(std::function<void()>)> later) : later_(std::move(later)) {}

  // Faults and delays that tests ask for.
  std::string fail_next;  // not empty: the next thing that is enqueued fails so
  bool out_of_memory = false;
  void Hold() { held_ = true; }
  void LetGo() {
    held_ = false;
    later_([queue = queue_] { queue->Run(); });
  }
  uint64_t encodes = 0;  // calls of Encode

  std::string name() const override { return "gpu 0 (emulated)"; }
  absl::StatusOr<Memory> Allocate(size_t bytes) override {
    if (out_of_memory) return absl::ResourceExhaustedError("out of memory");
    void* memory = std::malloc(bytes + 1);
    std::memset(memory, 0xEE, bytes);
    return Memory(memory, [queue = queue_](void* p) {
      queue->Run();  // as cudaFree waits
      std::free(p);
    });
  }
  absl::StatusOr<Memory> AllocateHost(size_t bytes) override { return Allocate(bytes); }
  absl::StatusOr<Event> Record(void* stream) override {
    auto* callers = static_cast<CallersStream*>(stream);
    auto work = std::make_shared<std::deque<std::function<void()>>>(std::move(callers->work));
    callers->work.clear();
    return Event(work, work.get());
  }

  void Await(const Event& event) override {
    Enqueue([event] {
      auto* work = static_cast<std::deque<std::function<void()>>*>(event.get());
      for (; !work->empty(); work->pop_front()) work->front()();
      return std::string();
    });
  }
  void Copy(void* to, const void* from, size_t bytes) override {
    Enqueue([to, from, bytes] {
      if (bytes > 0) std::memcpy(to, from, bytes);
      return std::string();
    });
  }
  void Zero(void* at, size_t bytes) override {
    Enqueue([at, bytes] {
      std::memset(at, 0, bytes);
      return std::string();
    });
  }
  void FindNonfinite(const compression::cuda::FindTask* task, uint64_t n) override {
    Launch([task, n](void* machine) { return compression::cuda::FirstNonfinite({task, 1, n}, machine); });
  }
  void Encode(const compression::cuda::Choice& choice, const void* tasks, uint32_t count, uint64_t largest) override {
    ++encodes;
    Launch([choice, tasks, count, largest](void* machine) {
      return compression::cuda::RunEncode(choice, tasks, count, largest, machine);
    });
  }
  void DecodeAdd(const compression::cuda::Choice& choice, const void* tasks, uint32_t count,
                 uint64_t largest) override {
    Launch([choice, tasks, count, largest](void* machine) {
      return compression::cuda::RunDecodeAdd(choice, tasks, count, largest, machine);
    });
  }
  uint64_t EncodeWorkspaceBytes(uint64_t n, uint64_t most) const override {
    return compression::cuda::SparseWorkspaceBytes(n, most);
  }
  uint64_t DecodeWorkspaceBytes(uint64_t n, uint64_t most) const override {
    return compression::cuda::SparseDecodeWorkspaceBytes(n, most);
  }
  void Then(std::function<void(absl::Status)> done) override {
    queue_->work.push_back([queue = queue_.get(), later = later_, done = std::move(done)] {
      const std::string error = std::exchange(queue->error, "");
      later([done, error] { done(error.empty() ? absl::OkStatus() : absl::InternalError(error)); });
    });
    if (!held_) LetGo();
  }
  absl::Status Finish() override {
    queue_->Run();
    const std::string error = std::exchange(queue_->error, "");
    return error.empty() ? absl::OkStatus() : absl::InternalError(error);
  }

 private:
  struct Queue {
    std::deque<std::function<void()>> work;
    std::string error;  // the first since the last Then
    void Run() {
      while (!work.empty()) {
        const auto next = std::move(work.front());
        work.pop_front();
        next();
      }
    }
  };
  void Enqueue(std::function<std::string()> work) {
    queue_->work.push_back([queue = queue_.get(), work = std::move(work), fails = std::exchange(fail_next, "")] {
      const std::string error = fails.empty() ? work() : fails;
      if (queue->error.empty()) queue->error = error;
    });
  }
  void Launch(std::function<int(void*)> kernels) {
    Enqueue([kernels = std::move(kernels), seed = seed_++] {
      simt::Machine machine(seed);
      const int error = kernels(&machine);
      return error == 0 ? std::string() : absl::StrCat("error ", error, " ", machine.report());
    });
  }

  const std::function<void(std::function<void()>)> later_;
  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  bool held_ = false;
  uint64_t seed_ = 1;
};

}  // namespace sluice::worker
