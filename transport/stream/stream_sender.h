// The exactly-once sender: brings one contribution for each (partition, round) to its owner, over whatever link there
// is, verbatim, until the owner says applied. Protocol: docs/wire.md, "A push, step by step"; the numbers below are its.
//
// States of a push: waiting for a link -> ready -> announced (1) [-> queued] -> sending (3) -> sent (5) [-> received (2g)]
// -> gone (7: Finish). Eager ones and those by reference go from ready to sending or sent.
//
// Frames go out at the LinkQueue's Flush(), the most urgent first: eager ones while the link is writable, announcements
// up to max_announced a link. An announcement that was answered QUEUED no longer counts, nor does what was sent, so
// workers that begin with different partitions cannot wait for each other.
//
// Single-threaded. Owns no payload memory: the caller keeps bytes alive until released(partition).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "transport/stream/link_queue.h"
#include "transport/transport.h"

namespace sluice::transport {

struct StreamSenderOptions {
  size_t eager_bytes = 16 << 10;
  TimeNs resend = kSecond;
  size_t max_announced = 64;     // pushes announced or being sent a link; the most urgent ones first
};

class StreamSender {
 public:
  // released(partition): after Finish or Abandon, nothing touches the payload any more; once a push, perhaps from inside
  // those calls, for pushes of one partition in their order. Attaches itself to the queue (LinkQueue::AttachSender), whose
  // Flush, OnWritable and OnSent the caller drives.
  StreamSender(Endpoint* endpoint, LinkQueue* queue, const Clock* clock, StreamSenderOptions options,
               std::function<void(uint32_t partition)> released);
  ~StreamSender();

  // Begins a push. header: job, rank, incarnation, tensor, partition, term, round, codec, elements, flags, rate_bits,
  // plan_version; total_bytes and attempt are set here.
  // One unfinished push a partition (FAILED_PRECONDITION else). link 0 = none yet: Route follows.
  // reply_slot of the header belongs to `link`.
  absl::Status Start(LinkId link, const FrameHeader& header, ConstBytes payload, int32_t priority);

  // Sends the push of this partition over this link from now on (step "After a link is lost"; also on a new term), with a
  // new attempt and this term and reply slot. Same link: used after RETRY. 0 = wait.
  // stamp: the push's aux64 from now on; else it stays.
  void Route(uint32_t partition, LinkId link, uint32_t term, uint32_t incarnation, SlotId reply_slot,
             std::optional<uint64_t> stamp = std::nullopt);

  void LinkDown(LinkId link);   // its pushes wait for Route

  // GRANT and STATE frames. Returns false for other types. RETRY, ERROR, REPLY and APPLIED are the caller's, which answers
  // them by Route, Abandon or Finish.
  bool OnFrame(LinkId link, const FrameHeader& header);

  // REPLY or APPLIED came: true if it ends the current push of this partition (round matches); false = a repeat, drop it.
  bool Finish(uint32_t partition, uint64_t round);
  // Forgets a push without an answer (the client shuts down, or an error ended it).
  void Abandon(uint32_t partition);

  bool active(uint32_t partition) const;
  size_t unfinished() const;
  uint64_t replays() const;     // attempts beyond the first, for metrics
  void OnTick();                // step 5

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::transport
