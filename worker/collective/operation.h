// One collective of one member, between its call and its end: what it sends, expects and computes. Private to this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/groups.h"
#include "transport/stream/buffer_pool.h"
#include "worker/collective/courier.h"
#include "worker/collective/schedule.h"

namespace sluice::collective {

// What an operation works with. All of it outlives the operation.
struct OperationEnv {
  Courier* courier = nullptr;
  transport::BufferPool* pool = nullptr;
  uint64_t op = 0;
  RankGroup group;
  int32_t priority = 0;
};

class Operation {
 public:
  virtual ~Operation() = default;
  virtual absl::Status Start() = 0;
  virtual absl::Status OnArrived(uint32_t handle, uint16_t codec, ConstBytes bytes) = 0;
  virtual absl::Status OnAcknowledged(uint32_t handle) = 0;
  // A bounded amount of computing that waits for nobody, once a turn; has_work: there is more.
  virtual absl::Status Work() { return absl::OkStatus(); }
  virtual bool has_work() const { return false; }
  virtual bool done() const = 0;
  virtual void Commit() {}                           // once, when it is done: state of the caller's that a failure must not touch
  virtual std::vector<uint32_t> peers() const = 0;   // ranks with which it shares messages, ascending
};

// Runs a schedule on fp32 values. Memory beside the caller's: what it is granted for values that are to be added, at most
// kReduceWindow (or one piece).
class ScheduleOperation final : public Operation {
 public:
  static constexpr size_t kReduceWindow = 4 << 20;   // bytes expected, or come and not added yet
  static constexpr size_t kCopyWindow = 16 << 20;    // bytes expected where they belong

  // work, input: of the steps. They stay until the operation is over.
  ScheduleOperation(OperationEnv env, Steps steps, std::span<const float> input, std::span<float> work);

  absl::Status Start() override;
  absl::Status OnArrived(uint32_t handle, uint16_t codec, ConstBytes bytes) override;
  absl::Status OnAcknowledged(uint32_t handle) override;
  bool done() const override { return finished_ == steps_.size(); }
  std::vector<uint32_t> peers() const override;

 private:
  struct State {
    uint32_t before = 0;              // earlier steps that it waits for
    uint32_t number = 0;              // of its message
    bool arrived = false;
    std::vector<uint32_t> after;      // steps that wait for it
    std::shared_ptr<std::byte> scratch;
  };

  absl::Status Issue();
  void Ready(uint32_t step);
  void Finish(uint32_t step);
  void Add(uint32_t step, ConstBytes values);
  size_t Bytes(uint32_t step) const { return steps_[step].count * sizeof(float); }

  const OperationEnv env_;
  const Steps steps_;
  const std::span<const float> input_;
  const std::span<float> work_;
  std::vector<State> states_;
  std::vector<uint32_t> reduces_, copies_;   // in order
  size_t next_reduce_ = 0, next_copy_ = 0;   // of these, the first that is not expected yet
  size_t reduce_bytes_ = 0, copy_bytes_ = 0;
  std::vector<uint32_t> to_finish_;
  bool finishing_ = false;
  size_t finished_ = 0;
};

// a[i] += b[i] for little-endian fp32 at any alignment; each byte of b is loaded once.
void AddValues(std::span<float> a, ConstBytes b);

}  // namespace sluice::collective
