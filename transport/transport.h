// The one interface of every transport (TCP, shared memory, simulated, later RDMA).
//
// An Endpoint belongs to one event loop: all calls and all callbacks happen on that loop's thread, and no callback is
// made from inside a call (so a handler never sees itself re-entered).
//
// A link is one connection to one peer. Frames of a link arrive in order, once, or the link goes down; the simulated
// transport may also drop, repeat and reorder them, and everything above must bear that. A message (a push, a reply)
// may travel in stripes over several links.
//
// Buffers. Send() lends the payload to the transport until OnSent(cookie); a send's completion means only that. A
// receiver opens a slot (a piece of memory, revocable) and names it to the sender; a frame with header.slot lands there
// at header.stripe_offset. Frames without a slot land in a buffer of the transport's own and are small
// (EndpointLimits::max_slotless_bytes). Where sender and receiver share memory, a payload in shared memory may arrive by
// reference: Payload then views the sender's memory, and the sender's OnSent comes when the Payload is dropped.
//
// Timeline of a large push over TCP:
//   t=0  worker  Send(ANNOUNCE)                          small, no slot
//   t=1  server  OnFrame(ANNOUNCE): OpenSlot(memory)=7, Send(GRANT slot 7)
//   t=2  worker  OnFrame(GRANT): Send(PUSH, slot 7, stripe 0), Send(PUSH, slot 7, stripe 1)
//   t=3  server  OnFrame(PUSH stripe 0), OnFrame(PUSH stripe 1): payloads are views of its own memory
//   t=3  worker  OnSent(stripe 0), OnSent(stripe 1): the transport no longer reads the buffer; nothing more is known
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/wire.h"

namespace sluice::transport {

using LinkId = uint64_t;  // never reused within an endpoint; 0 = none
using SlotId = uint64_t;  // never reused within an endpoint; 0 = none

struct Address {
  std::string host;         // name or number; empty = no TCP
  uint32_t port = 0;
  std::string unix_socket;  // abstract name of the shm transport's rendezvous; empty = no shm
  std::string host_id;      // shm is possible only if both ends' ids are equal

  std::string ToString() const;  // "10.0.0.1:7000" or "shm:@name"
};

enum class PeerRole : uint32_t { kUnknown = 0, kWorker = 1, kServer = 2 };

// Who connects, checked by the acceptor: payload of HELLO and WELCOME (docs/wire.md).
struct Hello {
  PeerRole role = PeerRole::kUnknown;
  uint32_t job = 0;          // 0 = any (server to server links carry all jobs)
  uint64_t job_uid = 0;
  uint32_t index = 0;        // rank of a worker, index of a server
  uint32_t lane = 0;         // of the sender
  uint32_t incarnation = 0;
  uint32_t connection = 0;   // which of several parallel connections
  std::string name;          // host, pid: for messages to people; at most 255 bytes
};

struct EndpointLimits {
  size_t max_slotless_bytes = 1 << 20;  // a larger frame without a slot takes the link down
  size_t max_queued_bytes = 4 << 20;    // see Endpoint::Writable
  size_t max_links = 4096;              // further peers are refused with RESOURCE_EXHAUSTED
};

// A received payload. Move-only; dropping it gives the memory back. Views stay valid until then.
class Payload {
 public:
  Payload() = default;
  Payload(ConstBytes bytes, std::shared_ptr<const void> owner, bool by_reference = false)
      : bytes_(bytes), owner_(std::move(owner)), by_reference_(by_reference) {}
  ConstBytes bytes() const { return bytes_; }
  const std::byte* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  // The bytes lie in the sender's memory: to hold them costs the receiver nothing. (They count in no pool.)
  bool by_reference() const { return by_reference_; }
  // Keeps the memory alive for a part of it, e.g. one frame of a batch.
  Payload Slice(ConstBytes part) const { return Payload(part, owner_, by_reference_); }
  Payload(Payload&&) = default;
  Payload& operator=(Payload&&) = default;
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;

 private:
  ConstBytes bytes_;
  std::shared_ptr<const void> owner_;  // null: the bytes lie in the receiver's own slot
  bool by_reference_ = false;
};

class Handler {
 public:
  virtual ~Handler() = default;
  // The peer was accepted (both ways). peer.role is never kUnknown.
  virtual void OnUp(LinkId link, const Hello& peer) = 0;
  // The link is gone: no later callback names it, its slots are closed, every cookie lent to it has had
  // its OnSent. Also the outcome of a Connect that failed. reason says who, where, how long.
  virtual void OnDown(LinkId link, const absl::Status& reason) = 0;
  virtual void OnFrame(LinkId link, const FrameHeader& header, Payload payload) = 0;
  // The transport no longer touches the payload that was lent with this cookie.
  virtual void OnSent(LinkId link, uint64_t cookie) = 0;
  // A CloseSlot that returned false has finished: nobody writes there any more.
  virtual void OnSlotClosed(LinkId link, SlotId slot) = 0;
  // The link's queue has fallen below half of max_queued_bytes after Writable() was false.
  virtual void OnWritable(LinkId link) = 0;
};

struct LinkStats {
  uint64_t bytes_in = 0, bytes_out = 0;    // on the wire: headers, payloads and private frames
  uint64_t frames_in = 0, frames_out = 0;
  uint64_t payload_in = 0, payload_out = 0;
  std::string kind;   // "tcp", "rdma" (while a queue pair is up), "shm", "sim"
  std::string peer;   // address, for people
  // As the kernel measured them; 0 = not known.
  double rtt_s = 0;
  double delivery_rate = 0;                // bytes a second that the peer acknowledged
  uint64_t retransmits = 0, congestion_marks = 0;   // segments
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  // Must be called once before any other call; the handler outlives the endpoint.
  virtual void SetHandler(Handler* handler) = 0;

  // Starts to connect; OnUp or OnDown follows, never from inside the call.
  virtual LinkId Connect(const Address& address, const Hello& self) = 0;

  // Queues a frame. header.payload_bytes must equal payload.size(); the hash is the transport's business. If cookie is
  // not 0, exactly one OnSent(link, cookie) follows, and payload stays untouched and alive until then; if cookie is 0
  // the payload is copied before Send returns. On an unknown or dead link the frame is dropped (OnSent follows).
  virtual void Send(LinkId link, const FrameHeader& header, ConstBytes payload, uint64_t cookie) = 0;

  // False: the queue is longer than max_queued_bytes; wait for OnWritable with anything that can wait. Send() still
  // takes frames (control frames are small), so senders must look.
  virtual bool Writable(LinkId link) const = 0;

  // Takes the link down from this side; OnDown follows (with this reason), and the peer is told if it can be.
  virtual void Close(LinkId link, const absl::Status& reason) = 0;

  // Opens memory for frames that name the slot. Stripes may land in any order.
  virtual SlotId OpenSlot(LinkId link, MutableBytes memory) = 0;
  // Revokes it. True: nobody writes there any more. False: the peer is in the middle; OnSlotClosed follows. Frames that
  // name a closed slot are dropped. Unknown slots: true.
  virtual bool CloseSlot(LinkId link, SlotId slot) = 0;

  // True if this payload would arrive by reference on this link, so that no grant is needed for it.
  virtual bool ByReference(LinkId link, ConstBytes payload) const = 0;

  // Page-aligned memory (zeroed) that this endpoint sends and receives without a copy where it can (shared memory).
  // Freed with the last copy of the pointer; thread-safe.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes) = 0;

  virtual LinkStats Stats(LinkId link) const = 0;
  virtual const EndpointLimits& limits() const = 0;
};

}  // namespace sluice::transport
