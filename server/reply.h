// Answers to workers: headers, and payloads that the transport reads while others go on.
//
// A payload that is small is copied into a batch. A large one is lent: it goes whole where the link carries it by
// reference, else in stripes into the receiver's slot, and its owner (a Block) is held until the transport has let go.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "base/clock.h"
#include "transport/stream/link_queue.h"
#include "transport/transport.h"

namespace sluice::server {

class Replier {
 public:
  // settle: how long after a payload was handed to its link UnderWay still takes it to be on its way.
  Replier(transport::Endpoint* endpoint, const Clock* clock, transport::LinkQueueOptions options, TimeNs settle);
  ~Replier();

  transport::LinkQueue* queue() { return &queue_; }

  // Answers without payload. `answer` comes from AnswerTo.
  void Send(transport::LinkId link, const transport::FrameHeader& answer);
  void SendState(transport::LinkId link, const transport::FrameHeader& request, transport::PushState state);
  // term: the server's own.
  void SendRetry(transport::LinkId link, const transport::FrameHeader& request, transport::RetryReason reason,
                 uint32_t term);
  void SendError(transport::LinkId link, const transport::FrameHeader& request, const absl::Status& status);

  // header.slot names where it goes. Returns a key for InFlight and Cancel, or 0 if the payload was copied. A payload that
  // is too large for a frame without slot, and has none, is answered by an ERROR.
  uint64_t SendPayload(transport::LinkId link, transport::FrameHeader header, ConstBytes payload,
                       std::shared_ptr<const void> owner, int32_t priority);
  bool InFlight(uint64_t key) const { return key != 0 && lent_.contains(key); }
  // In flight, or handed to the link so lately that the receiver may not have it yet: whoever asks for it again has asked
  // before it came. On a busy link that is the common case, and a second copy would make the link busier still.
  bool UnderWay(uint64_t key);
  void Cancel(uint64_t key);

  uint64_t payload_out() const { return payload_out_; }
  // Called for each payload that goes out.
  void set_on_payload(std::function<void(const transport::FrameHeader& header, size_t bytes)> fn) {
    on_payload_ = std::move(fn);
  }

 private:
  void Count(const transport::FrameHeader& header, size_t bytes);
  void Release(uint64_t key);
  void ForgetSettled();

  transport::Endpoint* const endpoint_;
  const Clock* const clock_;
  const TimeNs settle_;
  const size_t copy_up_to_;
  uint64_t next_key_ = 1;
  uint64_t payload_out_ = 0;
  std::function<void(const transport::FrameHeader&, size_t)> on_payload_;
  std::unordered_map<uint64_t, std::shared_ptr<const void>> lent_;   // by key, its owner
  std::deque<std::pair<TimeNs, uint64_t>> released_;   // within settle_, in order of time
  std::unordered_set<uint64_t> recent_;                // their keys
  transport::LinkQueue queue_;   // last: it calls back into lent_
};

// An answer to this frame: the same job, worker, partition, round, attempt and request number.
transport::FrameHeader AnswerTo(const transport::FrameHeader& request, transport::FrameType type);

}  // namespace sluice::server
