// PushPull, Push, Pull and Broadcast of tensors that go among the workers instead of over servers (job.exchange;
// docs/topology/collectives.md, "The hybrid"). No I/O, no clock, no thread of its own.
//
// Life of an operation. Those of a tensor run one after the other, in the order of their calls; those of different tensors
// beside each other, in any order on any rank.
//   1. check     (pushes, and the root of a broadcast) NaN and infinity are refused before anything is sent: the round is not
//                used up, and the others wait for this rank.
//   2. sum       gradients: an all-reduce, into `out` where there is one; or a reduce-scatter, which brings the sum of the own
//                block. Broadcast: the root's values become everybody's parameters.
//   3. update    the optimizer's, of all elements or of the own block. A sum that is not finite changes nothing ("skipped"): of
//                the whole tensor, or of that block.
//   4. gather    (sharded) all blocks of the new parameters, as fp32.
//   5. out       parameters are copied out. A pull is this alone.
// A turn does a bounded amount of 1, 3 and 5. A deadline or Cancel ends the wait alone, as with servers.
//
// A collective that fails may have been done at some ranks and not at others, so parameters may differ from then on: it ends all
// operations, now and from now on, of all tensors that are exchanged like this, and the other ranks are told. So does a rank
// that was started again, which has none of this state. All workers start again from what the trainer has saved.
// Where no round has been done yet there is nothing to lose: operations wait until all ranks live, and those that a loss has cut
// off begin again. (A broadcast may be done at its root, and not elsewhere: then it is as above.)
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/optimizer/schedule.h"
#include "proto/plan.pb.h"
#include "worker/collective/collectives.h"
#include "worker/core.h"
#include "worker/exchange/tensor.h"
#include "worker/slab.h"

namespace sluice::worker {

class Exchanges {
 public:
  struct Env {
    const Clock* clock = nullptr;
    WorkerStats* stats = nullptr;
    SlabAllocator* memory = nullptr;
    collective::Collectives* collectives = nullptr;
    std::function<void(float)> set_rate;   // the learning rate of the next round
  };
  explicit Exchanges(Env env) : env_(std::move(env)) {}

  void OnPlan(const proto::Plan& plan, uint32_t rank);
  // A tensor of that plan which is not of servers. The same again: nothing happens.
  absl::Status Add(const proto::TensorInfo& info);
  const ExchangedTensor* Find(uint32_t id) const;   // null: none of these
  uint64_t NextRound(uint32_t id) const;            // that the tensor's next operation takes

  // As WorkerCore::Submit, of a tensor that Find has. done and released are called from RunDeferred alone.
  uint64_t Submit(const OpRequest& request, std::function<void(const OpResult&)> done, std::function<void()> released);
  void Cancel(uint64_t op);
  void OnTick();    // deadlines
  void Pump();      // a bounded amount of computing; calls of collectives
  void RunDeferred();
  bool has_work() const { return !deferred_.empty() || (!ready_.empty() && !held()); }
  // When the oldest operation came of those that wait for ranks to come; nothing if none does.
  std::optional<TimeNs> held_since() const;
  void Fail(const absl::Status& why);   // all, and whatever comes later
  size_t unfinished() const { return by_id_.size(); }

 private:
  enum class Phase { kCheck, kCopyIn, kSum, kCheckSum, kUpdate, kGather, kCopyOut };
  struct Op {
    uint64_t id = 0;
    OpRequest request;
    std::function<void(const OpResult&)> done;   // null once called
    std::function<void()> released;
    int32_t priority = 0;
    TimeNs submitted = 0;
    Phase phase = Phase::kCheck;
    size_t at = 0;                  // elements of the phase that are done
    uint64_t collective = 0;        // that it waits for; 0 = none
    absl::Status collective_status;
    bool again = false;             // that collective is called again
    std::vector<float> input;       // padded gradients, where the tensor's blocks have padding
    std::vector<float> scratch;     // for the sum, where it does not go to the caller's output
    std::span<float> sum;           // of what own_values() has
    OpResult result;
  };
  struct Tensor {
    std::unique_ptr<ExchangedTensor> state;
    std::deque<std::unique_ptr<Op>> ops;   // the front one runs
  };
  using ReadyKey = std::pair<int32_t, uint64_t>;   // priority, operation

  absl::Status Check(const ExchangedTensor& tensor, const OpRequest& request) const;
  bool HasInput(const OpRequest& request) const;
  void StartFront(Tensor& tensor);
  size_t Step(Tensor& tensor, Op& op);   // returns about the bytes that it has touched
  size_t StepCheck(Tensor& tensor, Op& op);
  void StartSum(Tensor& tensor, Op& op);
  void StartGather(Tensor& tensor, Op& op);
  void Call(Tensor& tensor, Op& op, collective::Request request, Phase then);
  void Ready(Tensor& tensor, Op& op, Phase phase);
  void FinishFront(Tensor& tensor);
  void CallDone(Op& op, OpResult result);   // deferred
  bool held() const { return !everybody_ && !begun_; }
  bool MayRetry(const Tensor& tensor, const Op& op, const absl::Status& why) const;
  void Break(const absl::Status& why);
  void EndAll(const absl::Status& why);
  std::string Describe(const Tensor& tensor, const Op& op) const;   // "push_pull of tensor w, round 3"
  float Rate(const ExchangedTensor& tensor) const { return schedule_.has_value() ? schedule_->Rate(tensor.steps()) : 0; }

  const Env env_;
  proto::JobConfig job_;
  uint32_t rank_ = 0;
  std::vector<uint32_t> lives_;          // of the ranks: incarnations
  bool everybody_ = false;               // lives
  bool begun_ = false;                   // some round has been done here
  std::optional<Schedule> schedule_;
  std::map<uint32_t, Tensor> tensors_;
  std::map<uint64_t, Op*> by_id_;
  std::map<ReadyKey, Tensor*> ready_;    // whose front operation has something to do
  std::set<std::pair<TimeNs, uint64_t>> deadlines_;
  std::deque<std::function<void()>> deferred_;
  uint64_t next_id_ = 1;
  absl::Status failed_;
};

}  // namespace sluice::worker
