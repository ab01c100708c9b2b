// One partition at its owner: who has contributed, and where answers go.
//
// This is the common half of all kinds. A tensor's partitions are DensePartitions: BspPartition (rounds that close when all
// have contributed) and AsyncPartition (SSP and ASP: applied on arrival). A table's are TablePartitions, one a segment.
// Protocol: docs/wire.md, "A push, step by step" and "A pull"; steps 2a to 2c are Job's, 2d is CheckPush, 2e to 2h are
// Admit's.
//
// Which ranks count in a round (docs/workers.md, "Coming back"):
//   t=0  the plan says: rank 2 is out of this partition from round 7 on. Rounds from 7 on close without it
//   t=1  the plan says: a new life of rank 2 is joining. Still nobody waits for it
//   t=2  it names round 12 (PULL with ADMIT), and this one is at 10: it counts from round 12 on. Had it come when round 12
//        was begun or closed, it would count from the next one on that is not, and would be told: it names a later round
//        everywhere then, until it counts from the same one in all partitions
// What has been named is known to this owner alone. Another one learns it when the rank asks again, or by the rank's
// contributions, which copies have; until then nobody waits for it, and a push that comes too late is REJECTED.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "proto/control.pb.h"
#include "server/block.h"
#include "server/core.h"
#include "server/replica_message.h"
#include "server/reply.h"
#include "server/semantics.h"
#include "server/step_messages.h"
#include "server/forward/forward_message.h"
#include "transport/control/tree_way.h"
#include "transport/stream/stream_receiver.h"

namespace sluice::server {

class ExactPool;
class Replication;

struct WorkerView {
  uint32_t incarnation = 0;              // 0: not seen in a plan yet
  bool alive = false;
  bool finished = false;
  std::string address;                   // for people
  std::vector<uint64_t> out_from_round;  // by partition, or empty: it counts everywhere
  uint32_t joining = 0;                  // WorkerInfo.joining
};

// What the partitions of a job share on this lane; outlives them.
struct JobContext {
  uint32_t job = 0;
  uint64_t plan_version = 0;
  std::unique_ptr<const Semantics> semantics;
  std::vector<WorkerView> workers;       // by rank; size = the job's world size
  bool only_joiners = false;             // everybody else has finished or is out
  Replier* replier = nullptr;
  BlockPool* values = nullptr;           // memory that replies are sent from
  BlockPool* scratch = nullptr;          // memory that is never sent
  ExactPool* exact = nullptr;
  Replication* replication = nullptr;    // of what this lane owns
  uint64_t max_rows_bytes = 0;           // of one answer to a pull of rows
  ServerObserver* observer = nullptr;    // may be null
  ServerCoreStats* counters = nullptr;
  const Clock* clock = nullptr;
  // Hands a record of a summed partition to the step coordinator. OnVerdict follows, never from inside the call.
  std::function<void(uint64_t step, uint32_t phase, const StepRecord& record)> submit;
  // The job cannot go on (memory): everybody is told.
  std::function<void(const absl::Status&)> fail;
};

struct PartitionShape {
  uint32_t tensor = 0;
  uint32_t partition = 0;     // job-wide index
  uint32_t position = 0;      // in its tensor, for people
  size_t elements = 0;
  std::string name;           // of the tensor
  proto::TensorKind kind = proto::TENSOR_WEIGHT;
  int32_t priority = 0;
};

class Partition {
 public:
  using Admission = transport::StreamReceiver::Admission;
  using LinkId = transport::LinkId;
  using FrameHeader = transport::FrameHeader;

  virtual ~Partition() = default;

  // Step 2d. Pushes of other sizes, codecs or flags than can be end the link.
  virtual absl::Status CheckPush(const FrameHeader& push, uint64_t max_message_bytes) const = 0;
  virtual Admission Admit(LinkId link, const FrameHeader& push) = 0;
  virtual bool Urgent(const FrameHeader& push) const = 0;
  // A whole payload that was admitted (perhaps long ago: it is looked at again). An error was not counted.
  virtual absl::Status Contribute(LinkId link, const FrameHeader& push, transport::Payload payload) = 0;
  virtual void MembershipChanged() = 0;   // JobContext::workers is another
  // This rank takes part from this round on, if it is one that joins and has not said so yet. by_name: or has said so, and
  // has not begun; then a later round takes the place of the one that it named. Before Admit and Pull.
  void Named(uint32_t rank, uint64_t round, bool by_name);
  // Whether its pushes come through a tree, and which (null: none). True: it is another one, and what the open round had is
  // forgotten unless it is summed already. Everybody sends again.
  virtual bool SetWay(std::shared_ptr<const control::TreeWay> way) {
    (void)way;
    return false;
  }
  virtual const control::TreeWay* way() const { return nullptr; }
  uint64_t stamp() const { return way() == nullptr ? 0 : way()->stamp; }
  virtual void OnTick() {}                // where rounds have a deadline
  virtual void OnVerdict(uint64_t step, uint32_t phase, const Verdict& verdict) { (void)step, (void)phase, (void)verdict; }
  virtual void Report(proto::PartitionState* state) const = 0;
  virtual std::string WaitingFor() const = 0;   // for people: whom the open round waits for, or ""
  virtual uint64_t OldestOpenRound() const = 0;

  // An error ends the link: it is a request that cannot be.
  virtual absl::Status Pull(LinkId link, const FrameHeader& pull, ConstBytes payload) = 0;
  virtual void LinkDown(LinkId link);

  // --- copies (docs/replication.md). At the owner:
  // The whole state between two rounds, of the last one that was closed.
  virtual absl::StatusOr<ReplicaMessage> Save() const = 0;
  // Every backup that counts has what was closed: what waited for that goes on.
  virtual void OnSettled() = 0;
  // The step coordinator is another: it needs what the last one had been told. Rounds that are not decided ask by themselves.
  virtual void Resubmit() {}
  virtual uint64_t copy_bytes() const = 0;   // of Save, about
  // At a backup; an error has changed nothing.
  virtual absl::Status Load(const proto::ReplicaHead& head, ConstBytes bulk) = 0;   // nothing has happened to it yet
  virtual absl::Status Replay(const proto::ReplicaHead& head, ConstBytes bulk) = 0;
  bool owner() const { return owner_; }
  void set_owner(bool owner) { owner_ = owner; }
  bool pristine() const { return applied_rounds_ == 0; }

  const PartitionShape& shape() const { return shape_; }
  uint32_t term() const { return term_; }
  void set_term(uint32_t term) { term_ = term; }
  uint64_t applied_rounds() const { return applied_rounds_; }
  virtual bool is_table() const { return false; }
  virtual uint64_t state_bytes() const = 0;   // besides blocks

 protected:
  // Where the answers for a rank go, and which contributions it has made.
  struct Seat {
    LinkId link = 0;               // of the last announce; 0 = none that lives
    transport::SlotId slot = 0;
    uint64_t round = 0;            // that link, slot and attempt are for
    uint64_t contributed = 0;      // 1 + the last round that this rank contributed to
    uint64_t before = 0;           // the same before that round
    uint16_t verdict = 0;          // flags of that round's verdict: BSP
    uint64_t reply_key = 0;        // of a reply that may still be under way
    uint64_t value_key = 0;        // of a VALUE
    transport::SlotId value_slot = 0;
    uint32_t incarnation = 0;
    uint32_t attempt = 0;
    uint32_t answers = 0;          // REPLY and VALUE messages sent: their attempt, so that stripes of two never mix
    uint32_t joined = 0;           // the life (WorkerView::joining) that has named its round,
    uint64_t joins_at = 0;         // and the first round that it counts in
    bool no_reply = false;

    bool HasContributed(uint64_t to_round) const { return contributed == to_round + 1; }
  };

  Partition(PartitionShape shape, JobContext* job);

  // The round that a pull by this rank is answered with.
  virtual uint64_t NextRound(uint32_t rank) const = 0;
  virtual uint32_t NextRateBits(uint32_t rank) const = 0;
  virtual bool ContributedToNext(uint32_t rank) const = 0;

  const Semantics& semantics() const { return *job_->semantics; }
  // A closed round is not at every backup that counts yet: nothing is answered, pulled or closed until OnSettled.
  bool waits() const;
  // This closed round is to be sent to somebody.
  bool followed() const;
  void Append(const absl::StatusOr<ReplicaMessage>& message);
  // Now and then a round's message has a digest of what it has led to.
  static constexpr uint64_t kDigestEvery = 64;
  static bool HasDigest(uint64_t round) { return round % kDigestEvery == 0; }
  absl::Status CheckDigest(uint64_t round, uint64_t owners, uint64_t own) const;
  // Of a message: ranks of this job.
  absl::Status CheckRanks(const google::protobuf::RepeatedField<uint32_t>& ranks) const;
  // False: this round does not wait for this rank (it was declared out, or has finished).
  bool Counts(uint32_t rank, uint64_t round) const;
  // It was declared out here and its new life is there: Counts is, or will be, true of some round.
  bool Joins(uint32_t rank) const;
  // A joiner has named `round`, for the first time or another one: raises joins_at.
  virtual void Join(uint32_t rank, uint64_t round, bool first) = 0;
  // One that joins has contributed.
  bool Returned(uint32_t rank) const;
  // BSP: where JobContext::only_joiners, all who join take part from this round on, the first that is not begun: nobody else
  // would bring the round that they have named. (The plan says it, and not who has named a round here: let in at once in one
  // partition and not in the other, two of them would wait for each other.) They are told so at once also where the open
  // round is begun (IsIn): it may wait for the verdict of a step that has no part of theirs in another partition yet.
  void LetIn(uint64_t free);
  // BSP: a joiner waits to be let in at a later round, and takes part in this one already.
  bool IsIn(uint32_t rank, uint64_t open) const;
  // BSP: the lowest rank that counts and has not contributed to this round; the number of ranks if nobody is missing.
  uint32_t LowestMissing(uint64_t round) const;
  // BSP: how many ranks that count have not contributed to this round, and how many of them it can be closed without.
  uint32_t CountMissing(uint64_t round) const;
  uint32_t MayMiss() const { return overdue_ ? UINT32_MAX : semantics().backup_workers; }
  void RoundBegins() { begun_at_ = job_->clock != nullptr ? job_->clock->Now() : 0; }   // with its first contribution
  void RoundEnds() { begun_at_ = 0, overdue_ = false; }
  bool BecomesOverdue();                  // its deadline has passed, and that is news
  // BSP: this round and who has contributed to it.
  void ReportRound(uint64_t round, proto::PartitionState* state) const;
  // Of a rank, or of a server that forwards (kForwardRank).
  Seat& SeatOf(uint32_t rank) { return (rank & kForwardRank) == 0 ? seats_[rank] : forwarders_[rank]; }
  const Seat& SeatOf(uint32_t rank) const;
  // Takes the answer's address from an ANNOUNCE or PUSH. False: it is of an older attempt or life, ignore it.
  bool TakeSeat(LinkId link, const FrameHeader& push);
  // Of the answer to this rank's last push: everything but type, codec and payload.
  FrameHeader AnswerHeader(uint32_t rank, uint64_t round, uint16_t flags) const;
  // True if the answer that was asked for again is still on its way there.
  bool UnderWay(const Seat& seat, LinkId link, transport::SlotId slot) const;
  // "tensor 'fc1' partition 2 (job-wide 7)"
  std::string Name() const;
  // "rank 3 (host-a:4711, lost)"
  std::string WorkerName(uint32_t rank) const;
  absl::Status RankIsOut(uint32_t rank, uint64_t round) const;

  const PartitionShape shape_;
  JobContext* const job_;
  std::vector<Seat> seats_;            // by rank
  std::map<uint32_t, Seat> forwarders_;   // by FrameHeader.rank, of the present way
  uint64_t applied_rounds_ = 0;

 private:
  uint32_t term_ = 0;
  bool owner_ = true;
  TimeNs begun_at_ = 0;                // the open round has had its first contribution; 0 = not yet
  bool overdue_ = false;
};

}  // namespace sluice::server
