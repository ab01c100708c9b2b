// Outgoing messages of one endpoint, most urgent first, cut into stripes, small ones fused into batches. A large message that
// was begun is finished first, so a partition is the unit of priority.
//
// Keeps each link's own queue short (Endpoint::Writable), so that an urgent message overtakes bulk that waits. Used by
// the worker's StreamSender and by the server for replies. Single-threaded, on the endpoint's loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "transport/transport.h"

namespace sluice::transport {

struct LinkQueueOptions {
  size_t stripe_bytes = 1 << 20;
  size_t fusion_bytes = 64 << 10;        // 0 = no fusion
  // Small payloads wait up to this for company; 0 = until Flush() of the same turn. A frame without payload (a grant, an
  // announcement) never waits longer than Flush(), and takes along what waits on its link.
  TimeNs fusion_cycle = 0;
  size_t fuse_below = 16 << 10;          // payloads up to this are fused
};

// The way of one message through the queue: told to it, its first byte handed to the endpoint, all of it let go of.
struct SendTimes {
  TimeNs queued = 0, begun = 0, done = 0;
};

// Keys with this bit belong to the StreamSenders that are attached: below it the sender's number, then its own count.
inline constexpr uint64_t kSenderKeyBit = uint64_t{1} << 63;
inline constexpr unsigned kSenderKeyShift = 40;

class LinkQueue {
 public:
  // released(key): the memory of the messages enqueued with this key is no longer touched by anything (called when the
  // last of them is out; a key may be used again at any time). It may call back into the queue.
  // The queue lends memory of its own to the endpoint: it must outlive the endpoint's links, as the handler does.
  LinkQueue(Endpoint* endpoint, const Clock* clock, LinkQueueOptions options,
            std::function<void(uint64_t key)> released);
  ~LinkQueue();

  void LinkUp(LinkId link);
  void LinkDown(LinkId link);   // queued messages of the link are dropped (released follows)

  // A control frame, or a small message that may be fused: the payload is copied.
  void SendSmall(LinkId link, const FrameHeader& header, ConstBytes payload);

  // A large message: header.total_bytes = payload.size(); it goes out in stripes of header.slot (or whole if by_reference
  // or if it has no slot). payload stays untouched until released(key), which is never called from inside this call.
  // Goes out at the next Flush(), as far as the link has room. Lower priority values go first; ties in order.
  void SendLarge(LinkId link, const FrameHeader& header, ConstBytes payload, int32_t priority, uint64_t key,
                 bool by_reference);

  // Drops what has not been handed to the link yet of the messages with this key. released(key) follows once the rest is out,
  // perhaps from inside the call.
  void Cancel(uint64_t key);

  // The next Flush does not wait for the cycle. For Nagle's rule: nothing is under way, so nothing better will come soon.
  void SendBatchesNow();
  // Hands fused frames to their links. The owner calls it at the end of each turn (after a burst of events) and on tick.
  void Flush();
  void OnWritable(LinkId link);
  // Forward Handler::OnSent here; returns false if the cookie is not ours.
  bool OnSent(LinkId link, uint64_t cookie);

  // For StreamSender: released of its keys, and what runs at the beginning of every Flush() and OnWritable(), so that what
  // the sender holds back goes out in order of priority. Returns the base of its keys: base + 1 to base + 2^40 - 1.
  uint64_t AttachSender(std::function<void(uint64_t key)> released, std::function<void()> before_flush);
  // Nothing is called any more; payloads of its messages must stay untouched all the same until the link has let go.
  void DetachSender(uint64_t base);

  // For traces, set before anything is sent; without it no clock is read for them. Told of each message with a payload,
  // also of those inside a batch, once the endpoint has let go of it (at once where it copies): before released(key), also
  // where the link went in the middle of it, and not where nothing of it was handed over. It must not call the queue.
  void ObserveSends(std::function<void(const FrameHeader& header, const SendTimes& times)> sent);

  // When the oldest waiting small frame must go (fusion_cycle), or INT64_MAX.
  TimeNs NextDeadline() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::transport
