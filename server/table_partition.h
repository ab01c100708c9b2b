// One segment of a table at its owner: the exactly-once rule, the order of sums and the answers. What happens to rows is
// TableSegment's (server/table/segment.h).
//
// Pushes are contributions like those of tensors, one a rank and round, and a rank that has no row of this segment in a
// round pushes an EMPTY one, so that rounds close. The answer is always APPLIED; rows come by PULL (docs/wire.md, "Rows").
//   BSP        a round closes when all counted ranks (or all but job.backup_workers of them) have contributed: sums in
//              order of rank (orders rank and exact) or of arrival (fast), the mean if configured, one update a row, then
//              eviction, in one act
//   SSP, ASP   each push is applied on arrival, as one round of its rank; the answer waits for the slowest rank under SSP
//   While a round is on its way to copies (Partition::waits) contributions are kept, and no pull is served.
//   A pull names how many rounds must have been applied (its rank's own, under SSP and ASP) and waits here until they are.
// A step-wide verdict (clipping, skipping) does not look at tables; a sum that is not finite leaves out that row alone.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compression/row_payload.h"
#include "base/optimizer/schedule.h"
#include "server/partition.h"
#include "server/table/row_sum.h"
#include "server/table/segment.h"

namespace sluice::server {

class TablePartition final : public Partition {
 public:
  // segments: of the whole table; shape.position is this one's number, shape.elements the values of a row.
  static absl::StatusOr<std::unique_ptr<Partition>> Create(PartitionShape shape, const proto::TableSpec& spec,
                                                           uint32_t segments, const SegmentLimits& limits,
                                                           JobContext* job);

  absl::Status CheckPush(const FrameHeader& push, uint64_t max_message_bytes) const override;
  Admission Admit(LinkId link, const FrameHeader& push) override;
  bool Urgent(const FrameHeader& push) const override;
  absl::Status Contribute(LinkId link, const FrameHeader& push, transport::Payload payload) override;
  void MembershipChanged() override;
  void OnTick() override;
  absl::Status Pull(LinkId link, const FrameHeader& pull, ConstBytes payload) override;
  void LinkDown(LinkId link) override;
  void Report(proto::PartitionState* state) const override;
  std::string WaitingFor() const override;
  uint64_t OldestOpenRound() const override { return async_ ? Slowest() : open_; }
  bool is_table() const override { return true; }
  uint64_t state_bytes() const override;
  uint64_t copy_bytes() const override { return segment_->stats().bytes; }
  absl::StatusOr<ReplicaMessage> Save() const override;
  void OnSettled() override;
  absl::Status Load(const proto::ReplicaHead& head, ConstBytes bulk) override;
  absl::Status Replay(const proto::ReplicaHead& head, ConstBytes bulk) override;
  const TableSegment& segment() const { return *segment_; }

 protected:
  uint64_t NextRound(uint32_t rank) const override {
    if (!async_) return open_;
    return clocks_[rank].counted ? clocks_[rank].next : std::max(clocks_[rank].next, Slowest());
  }
  uint32_t NextRateBits(uint32_t rank) const override { return semantics().RateBits(NextRound(rank)); }
  bool ContributedToNext(uint32_t rank) const override { return seats_[rank].HasContributed(NextRound(rank)); }

 private:
  // A contribution that waits for its turn in the order of ranks.
  struct Held {
    std::vector<uint64_t> ids;
    const compression::Codec* codec = nullptr;
    ConstBytes values;
    transport::Payload payload;   // owns them
  };
  struct Clock {                  // SSP, ASP
    uint64_t next = 0;
    bool counted = true;
    bool owed = false;            // the answer to round next - 1 waits for the slowest rank
    bool held = false;            // a contribution waits in queued_
  };
  struct Parked {
    LinkId link = 0;
    FrameHeader request;
    std::vector<uint64_t> ids;
  };
  struct Sent {
    uint64_t request = 0;
    transport::SlotId slot = 0;
    uint64_t key = 0;
  };

  TablePartition(PartitionShape shape, const proto::TableSpec& spec, uint32_t segments, Schedule schedule,
                 std::unique_ptr<TableSegment> segment, JobContext* job);

  absl::Status CheckIds(std::span<const uint64_t> ids) const;
  // Views ids_, until the next call.
  absl::StatusOr<std::span<const uint64_t>> ParseIds(const FrameHeader& pull, ConstBytes payload);
  absl::StatusOr<Held> Parse(const FrameHeader& push, transport::Payload payload) const;
  void AnswerAgain(LinkId link, const FrameHeader& push);
  void SendApplied(uint32_t rank, uint64_t round, uint16_t flags, uint32_t contributors);
  absl::Status Add(Held held);
  void Consume(bool all);         // what is held, as far as its turn has come
  bool Complete() const;          // nobody is missing whom the open round waits for
  void Join(uint32_t rank, uint64_t round, bool first) override;
  bool Due(const FrameHeader& pull, bool rows) const;
  void CloseIfComplete();
  void SendAnswers();
  void ApplyNow(uint32_t rank, const Held& held);
  // One round of these rows, here and at whoever follows.
  void ApplyRound(uint64_t round, const std::vector<uint32_t>& contributors, std::span<const uint64_t> ids,
                  std::span<const float> values, std::span<const uint32_t> sightings, float rate);
  void AdvanceClock(uint32_t rank);
  absl::Status Malformed(const std::string& what) const;
  void Record(uint64_t round, const std::vector<uint32_t>& contributors, std::span<const uint64_t> ids, float rate);
  uint64_t Slowest() const;
  void ReleaseAnswers();
  absl::Status SendRows(LinkId link, const FrameHeader& pull, std::span<const uint64_t> ids);
  void ServeParked();

  const proto::TableSpec spec_;
  const uint32_t segments_;
  const Schedule schedule_;
  const bool async_;
  std::unique_ptr<TableSegment> segment_;

  uint64_t open_ = 0;                     // BSP: the open round = rounds applied
  uint32_t last_contributors_ = 0;
  std::vector<uint32_t> contributors_;    // of the open round, in the order of summation
  uint32_t contributed_ = 0;
  std::map<uint32_t, Held> held_;
  RowSum sum_;
  std::vector<float> decoded_;            // scratch
  std::vector<uint64_t> ids_;             // scratch, of a pull

  std::vector<uint32_t> unanswered_;      // BSP: contributors of round open_ - 1, until it is settled

  std::vector<Clock> clocks_;             // SSP, ASP: by rank
  std::deque<std::pair<uint32_t, Held>> queued_;   // SSP, ASP: rank and contribution, while a round goes to copies
  std::map<std::pair<uint32_t, uint64_t>, Parked> parked_;   // by rank, request number
  std::map<uint32_t, std::deque<Sent>> sent_;                // by rank: the latest answers to pulls
  uint32_t answers_ = 0;
};

}  // namespace sluice::server
