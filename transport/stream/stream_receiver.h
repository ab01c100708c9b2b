// The exactly-once receiver: admits, grants from a shared pool, reassembles, and hands each contribution over once.
// Protocol: docs/wire.md, "A push, step by step".
//
// Memory: pool_bytes in all, whatever the number of workers. A push that the owner calls urgent (the lowest missing rank
// of the oldest open round of its partition) may use the reserve (the last max_message_bytes of the pool), so the round
// that everyone waits for can always close. Urgent pushes are consumed on arrival, which frees the reserve again.
// The pool counts what it grants and, until the owner drops them, payloads that come without a grant and fit the
// endpoint's max_slotless_bytes; larger ones without a slot lie in the sender's memory and cost nothing here.
// A push of more than max_message_bytes (to a table: max_oversize_bytes at most) fits neither pool nor reserve. It is granted
// memory of its own beside the pool, one such push at a time, and only if the owner consumes it on arrival: an urgent one, or
// one of a round that is not joint. So memory is at most pool_bytes + max_oversize_bytes, and nothing deadlocks: the one that
// has the grant waits for nobody but its own link; the lowest missing rank of each partition may always be next; and pushes
// that wait in the pool for that rank take nothing from it. They wait apart from GrantQueue, whose order they neither follow
// nor hold up: the sender's priority goes first, then the order of coming.
// Waiting announcements are a few bytes each, at most one for each (job, rank, partition). At the end of each turn they are
// granted in the order of GrantQueue while their links have room and the pool has memory; where memory is short, urgent ones
// first as far as the reserve takes them. Those that go on waiting are told so (STATE QUEUED).
// Single-threaded, on the endpoint's loop.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "transport/stream/link_queue.h"
#include "transport/transport.h"

namespace sluice::transport {

struct StreamReceiverOptions {
  size_t pool_bytes = 256 << 20;
  size_t max_message_bytes = 8 << 20;   // of what the pool takes, which must hold at least two
  size_t max_oversize_bytes = 0;        // larger ones are taken up to this, one at a time; 0 = refused
  // What one link may have granted and unfinished before the next grant: enough to keep it busy while a grant travels, and
  // little, so that all workers send the same partitions at about the same time.
  size_t granted_bytes = 8 << 20;
  size_t max_waiting = 1 << 20;         // announcements that may wait in all; further ones get RETRY(BUSY)
};

struct StreamReceiverStats {
  size_t pool_used = 0, pool_peak = 0, waiting = 0, partial = 0;
  size_t oversize_used = 0, oversize_peak = 0;   // bytes beside the pool
  uint64_t duplicates = 0, stale_attempts = 0, corrupt = 0, grants = 0, dropped_eager = 0;
};

class StreamReceiver {
 public:
  enum class Admission {
    kAccept,     // wanted: grant or take it
    kAnswered,   // the owner has answered (steps a to g): drop it
  };
  class Owner {
   public:
    virtual ~Owner() = default;
    // Step 2, a to g, before memory is spent. Called for ANNOUNCE, for each first stripe or eager PUSH, and again before
    // OnContribution where the stripes took more than one frame.
    virtual Admission Admit(LinkId link, const FrameHeader& header) = 0;
    // May this push use the reserve? Asked again for waiting pushes at each Pump.
    virtual bool Urgent(const FrameHeader& header) const = 0;
    // Does this round close when the parts of all ranks are there (BSP)? See GrantQueue.
    virtual bool Joint(const FrameHeader& header) const = 0;
    // Step 4: the whole payload; header is the push's own, with payload_bytes of the whole. The owner validates it (an error makes the receiver answer ERROR and forget the push),
    // keeps it or drops it at once; dropping it gives the memory back to the pool. Not called twice for the same
    // (rank, partition, round) once it returned OK, as long as Admit says kAnswered from then on.
    virtual absl::Status OnContribution(LinkId link, const FrameHeader& header, Payload payload) = 0;
  };

  StreamReceiver(Endpoint* endpoint, LinkQueue* replies, Owner* owner, StreamReceiverOptions options);
  ~StreamReceiver();

  void LinkDown(LinkId link);   // partial messages and waiting announcements of the link are forgotten
  // ANNOUNCE and PUSH (already unpacked from batches). Returns false for other types.
  bool OnFrame(LinkId link, const FrameHeader& header, Payload payload);
  void OnSlotClosed(LinkId link, SlotId slot);
  // Grants waiting announcements; the owner calls it at the end of each turn.
  void Pump();
  // Forgets everything of a rank below this incarnation, or of a partition that moved away. job 0 = of any job: those
  // that were meant by mistake are announced again.
  void ForgetRank(uint32_t rank, uint32_t below_incarnation, uint32_t job = 0);
  void ForgetPartition(uint32_t partition, uint32_t job = 0);

  StreamReceiverStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::transport
