// Pulls of table rows: many at a time, beside the pushes of the same table.
//
// A pull
//   1. Submit    is cut into parts (worker/rows.h), one PULL each, with a request number of its own and, if the answer is
//                large, a slot. It names the rounds that must have been applied: all that this worker had submitted to the
//                table before. A few parts a lane are asked for at a time.
//   2. OnValue   brings a part's rows: whole, by reference or in stripes; they are copied to their places in the output.
//   3. done      after the last part. A deadline or Cancel calls it early; `released` follows when nothing writes to the
//                output any more, which is at once: only OnValue writes to it.
// A part that hears nothing for resend_ms is asked for again with a new number and slot, so that the bytes of two answers
// never mix; after a lost link or a change of owner, likewise. Reading changes nothing, so repeats are harmless.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "transport/stream/reassembler.h"
#include "worker/op.h"
#include "worker/rows.h"

namespace sluice::worker {

struct RowPullRequest {
  uint32_t table = 0;
  std::shared_ptr<const RowPull> pull;
  std::span<float> output;        // ids x dim
  uint64_t round = 0;             // rounds that must have been applied
  TimeNs deadline = 0;            // absolute; 0 = none
};

class RowPulls {
 public:
  struct Env {
    PartitionEnv* partitions = nullptr;
    std::function<transport::LinkId(const Partition&)> link;    // up link, or 0: Pump again later
    std::function<TensorState*(uint32_t table)> find;
    std::function<std::string(const Partition&)> describe;
  };
  explicit RowPulls(Env env) : env_(std::move(env)) {}

  // Callbacks come from RunDeferred, never from inside Submit.
  uint64_t Submit(const RowPullRequest& request, std::function<void(const OpResult&)> done,
                  std::function<void()> released);
  // One that cannot be; ends like others.
  uint64_t Refuse(absl::Status why, std::function<void(const OpResult&)> done, std::function<void()> released);
  bool Cancel(uint64_t id);        // false: not one of ours

  void Pump();                     // sends what may be sent
  void RunDeferred();
  bool has_work() const { return !deferred_.empty(); }
  void OnTick();
  void LinkDown(transport::LinkId link);
  void OnSlotClosed(transport::SlotId slot) { closing_.erase(slot); }
  // False: not an answer to one of these. An error ends the link.
  absl::StatusOr<bool> OnValue(const transport::FrameHeader& header, const transport::Payload& payload);
  bool OnRetry(const transport::FrameHeader& header);
  bool OnError(const transport::FrameHeader& header, const absl::Status& status, bool permanent);
  void Fail(const absl::Status& why);

  size_t unfinished() const { return pulls_.size(); }
  std::optional<TimeNs> oldest() const;
  std::string Waiting() const;     // of the oldest pull, or ""

 private:
  static constexpr size_t kPartsPerLane = 32;   // asked for at a time

  struct Running {
    RowPullRequest request;
    std::function<void(const OpResult&)> done;   // null once called
    std::function<void()> released;
    TimeNs submitted = 0;
    size_t unfinished = 0;
    OpResult result;
  };
  struct Ask {
    uint64_t pull = 0;
    size_t part = 0;
    Partition* partition = nullptr;
    LaneKey lane{0, 0};
    transport::LinkId link = 0;
    transport::SlotId slot = 0;
    std::shared_ptr<std::byte> memory;   // behind the slot
    size_t bytes = 0;                    // of the answer
    TimeNs heard = 0, interval = 0;
    std::optional<transport::Reassembler> stripes;
    uint32_t attempt = 0;
  };
  struct Part {
    uint64_t pull = 0;
    size_t part = 0;
    TimeNs not_before = 0;
    TimeNs interval = 0;
  };

  LaneKey LaneOf(const Running& running, size_t part) const;
  void Wait(const Part& part);
  bool Send(const Part& part);    // false: no link yet
  void Withdraw(std::map<uint64_t, Ask>::iterator it, TimeNs not_before);   // to be asked for again
  void Forget(std::map<uint64_t, Ask>::iterator it);
  void CloseSlot(Ask& ask);
  void PartDone(std::map<uint64_t, Ask>::iterator it, uint64_t round, uint32_t rate_bits);
  void CallDone(Running& running, OpResult result);
  void End(uint64_t id, absl::Status status);
  std::shared_ptr<std::byte> Memory(size_t bytes);
  std::string Describe(const Running& running, uint64_t id) const;

  Env env_;
  std::map<uint64_t, Running> pulls_;
  std::map<uint64_t, Ask> asks_;             // by request number
  std::map<LaneKey, std::deque<Part>> waiting_;   // to be sent, by who owned their segments when they came
  std::vector<Part> moved_;                  // scratch
  std::map<LaneKey, size_t> asked_;          // of each lane
  std::map<transport::SlotId, std::shared_ptr<std::byte>> closing_;   // memory that a peer may still be writing to
  std::map<size_t, std::vector<std::shared_ptr<std::byte>>> free_;    // by size
  std::set<std::pair<TimeNs, uint64_t>> deadlines_;
  std::deque<std::function<void()>> deferred_;
  uint64_t next_id_ = uint64_t{1} << 62;     // apart from the operations'
};

}  // namespace sluice::worker
