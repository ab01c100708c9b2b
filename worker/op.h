// Operations: a queue per tensor, progress per partition, one list of work for the whole worker ordered by urgency.
//
// Life of an operation
//   1. Submit     joins the queue of its tensor; the first one in the queue runs.
//   2. check      (pushes) the whole input is looked through for NaN and infinity before a partition is touched, so
//   that a
//                 refused operation has changed nothing: its round is not used up. Done in chunks.
//   3. start      each partition is encoded and handed to the sender, most urgent operation first. A turn does a
//   bounded
//                 amount of 2 and 3, so frames flow meanwhile and an urgent operation gets ahead of a large one.
//   4. answers    a partition that has gone idle counts off; the last one completes the operation, and the next starts.
//   5. done       called from RunDeferred, never from inside Submit. A deadline or Cancel calls it early; 2 to 4 go on
//                 regardless, since the other workers' round needs this push; `released` follows after the last
//                 partition.
// Of a push from GPU memory (worker/device.h) 2 and the encoding are the device's: meanwhile the operation is off the list
// of work, and after 4 it waits until its output is on the device.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "proto/plan.pb.h"
#include "worker/core.h"
#include "worker/device_tensor.h"
#include "worker/partition.h"
#include "worker/rows.h"

namespace sluice::worker {

const char* KindName(OpKind kind);   // for people
inline bool Overlap(std::span<const float> a, std::span<const float> b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

// Whether input, output and root are such as this kind of operation takes on a tensor of so many elements.
absl::Status CheckBuffers(const OpRequest& request, const std::string& tensor, size_t elements, uint32_t rank, uint32_t ranks);

struct Op {
  uint64_t id = 0;
  OpRequest request;
  std::function<void(const OpResult&)> done;  // null once called
  std::function<void()> released;
  int32_t priority = 0;
  TimeNs submitted = 0;

  bool running = false;
  bool nonfinite = false;     // policy skip: push without payload
  size_t checked = 0;         // elements of the input that are known to be finite
  double squared_norm = 0;    // of these, if gradients are clipped
  size_t next_partition = 0;  // to be started
  size_t unfinished = 0;      // partitions that are not idle again
  bool on_device = false;     // a GPU works on it, and may touch its buffers
  bool has_output = false;    // some of its output is on its way to the GPU
  absl::Status device_status; // what failed there after its round was applied
  OpResult result;
};

struct TensorState {
  uint32_t id = 0;
  proto::TensorSpec spec;
  size_t elements = 0;
  uint64_t next_round = 0;
  bool admitted = false;
  std::unique_ptr<compression::CodecSchedule> codecs;      // of pushes; null for tables
  std::unique_ptr<compression::Codec> reply_codec;         // replies are changes in it; null = they are values
  std::shared_ptr<const compression::Codec> row_codec;     // tables: of the values that are pushed
  std::shared_ptr<RowResidual> row_residual;               // and their error feedback; null = none
  std::vector<std::unique_ptr<Partition>> partitions;
  std::unique_ptr<DeviceTensor> device;   // error feedback lives in GPU memory, since the first push from there
  std::deque<std::unique_ptr<Op>> ops;  // the front one runs

  TableShape table_shape() const;   // of a table
  // Choices of codecs that the plan has for this tensor and the schedule has not. Which of them it was late for: the codec
  // changes in the next round instead.
  absl::Status TakeChoices(const proto::Plan& plan);

  // Rounds that the queued operations will take.
  uint64_t RoundsWaiting() const {
    uint64_t rounds = 0;
    for (const auto& op : ops) rounds += op->request.kind != OpKind::kPull;
    return rounds;
  }
};

class OpQueue {
 public:
  struct Env {
    const Clock* clock = nullptr;
    WorkerStats* stats = nullptr;
    const PartitionEnv* partitions = nullptr;
    std::function<transport::LinkId(const Partition&, bool push)> link;  // up link for a push or pull, or 0
    std::function<void(absl::Status)> fail;                   // the worker cannot go on (no memory, say)
  };
  explicit OpQueue(Env env) : env_(std::move(env)) {}

  void set_skip_nonfinite(bool skip) { skip_nonfinite_ = skip; }
  // Gradients of tensors are clipped to this L2 norm, each tensor by itself; 0 = they are not.
  void set_clip_norm(double norm) { clip_norm_ = norm; }
  void set_momentum_correction(bool is) { momentum_ = is; }   // pushes from GPU memory are refused then
  void set_rank(uint32_t rank) { rank_ = rank; }
  void set_ranks(uint32_t ranks) { ranks_ = ranks; }

  TensorState* AddTensor(std::unique_ptr<TensorState> tensor);
  TensorState* Find(uint32_t id);
  TensorState* FindByName(const std::string& name);
  const std::map<uint32_t, std::unique_ptr<TensorState>>& tensors() const { return tensors_; }

  uint64_t Submit(const OpRequest& request, std::function<void(const OpResult&)> done, std::function<void()> released);
  void Cancel(uint64_t id);
  void OnTick();  // deadlines
  // Steps 2 and 3, a bounded amount. True if there is more.
  bool Pump();
  bool has_work() const { return !ready_.empty() || !deferred_.empty(); }
  void OnPartitionIdle(Partition* partition);
  // Ends every operation with this status, now and from now on.
  void Fail(const absl::Status& why);
  void RunDeferred();

  size_t unfinished() const { return by_id_.size(); }
  const absl::Status& failed() const { return failed_; }
  const Op* Oldest() const;  // of those whose end is waited for; null if there is none
  float next_rate() const { return next_rate_; }
  void set_next_rate(float rate) { next_rate_ = rate; }

 private:
  using ReadyKey = std::pair<int32_t, uint64_t>;  // priority, id

  absl::Status Check(const TensorState* tensor, const OpRequest& request) const;
  void StartFront(TensorState& tensor);
  // One unit of work: a chunk of the check or one partition. Returns about the bytes that it has touched.
  size_t Step(TensorState& tensor, Op& op);
  size_t StepCheck(TensorState& tensor, Op& op);
  size_t StepStart(TensorState& tensor, Op& op);
  size_t StepDevice(TensorState& tensor, Op& op);   // the check, and the encoding, of a push from GPU memory
  absl::Status CheckDevice(const TensorState& tensor, const OpRequest& request) const;
  void OnEncoded(uint64_t id, const absl::StatusOr<size_t>& first_nonfinite);
  void OnDeviceDone(uint64_t id, const absl::Status& status);
  void TakeDeviceStatus(const TensorState& tensor, Op& op);
  void SettleOnDevice(TensorState& tensor, Op& op, size_t partition, const Partition::Answer& answer);
  // The front operation ends before any partition was started: nothing was sent, and its round is still to be pushed.
  void Refuse(TensorState& tensor, Op& op, absl::Status why);
  void OnNonfinite(TensorState& tensor, Op& op, size_t element, const std::string& what);
  void FinishFront(TensorState& tensor);
  void CallDone(Op& op, OpResult result);  // deferred
  bool NeedsCheck(const Op& op) const;

  Env env_;
  bool skip_nonfinite_ = false;
  double clip_norm_ = 0;
  bool momentum_ = false;
  uint32_t rank_ = 0, ranks_ = 0;  // this worker's, and how many there are
  std::map<uint32_t, std::unique_ptr<TensorState>> tensors_;
  std::unordered_map<std::string, TensorState*> by_name_;
  std::unordered_map<uint64_t, Op*> by_id_;
  std::map<ReadyKey, TensorState*> ready_;  // tensors whose front operation has work to do
  std::set<std::pair<TimeNs, uint64_t>> deadlines_;
  std::deque<std::function<void()>> deferred_;
  uint64_t next_id_ = 1;
  float next_rate_ = 0;
  absl::Status failed_;
};

}  // namespace sluice::worker
