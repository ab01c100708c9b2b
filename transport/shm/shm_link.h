// One link of the shared-memory transport. layout.h says what is shared; this is the protocol over it.
//
//  1. Connect: the connector sends HELLO with its outbox's file. The acceptor checks user, HELLO and outbox, answers
//     WELCOME with its own, and is up; the connector is up when it has WELCOME. Else ERROR says why not.
//  2. Send. A frame with a slot in a slab of the receiver is written there by the sender, and a kPlaced follows. Else a
//     payload in a slab of the sender goes as kReference. Any other goes through the arena: kFrame, kChunk, …
//     Where no room is left the frame waits in `pending_`, and everything behind it.
//  3. Slabs are passed over the socket before the first descriptor or slot that names them; a reader that meets an
//     unknown one looks into the socket first.
//  4. Receive. The socket's packets first, then the ring until it is empty or the turn's budget is used up; then sleep.
//     A kReference for a slot that is not in a slab is copied into it and released at once; without a slot the payload
//     views the peer's slab, and its drop sends kRelease. A worker does not wake a server for that alone: a server lends
//     blocks of its pools, so nobody waits, and what the worker sends next comes behind it. A late wake-up sees to the rest.
//  5. Close, by this side or because the peer cheated: held payloads are cut loose from the peer's memory, slots
//     closed, ERROR sent and the socket shut down. If the peer may still read a payload of ours or write into a slot,
//     the link lingers until its socket hangs up; only then come the OnSent of lent payloads and OnDown. (A peer that
//     is stopped holds us up here for as long: only its death or its answer makes the memory ours again.)
//  6. The peer's hang-up (it closed, or died): what it had sent is delivered, then as 5 without lingering: a process
//     that has closed its end neither reads nor writes our memory.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "transport/loop.h"
#include "transport/shm/outbox.h"
#include "transport/shm/packet_socket.h"
#include "transport/shm/peer_memory.h"
#include "transport/shm/slab.h"
#include "transport/shm/slots.h"
#include "transport/transport.h"

namespace sluice::transport {

// What the links of one endpoint have in common; the endpoint owns it.
struct ShmContext {
  Loop* loop = nullptr;
  Handler* handler = nullptr;
  std::shared_ptr<SlabAllocator> slabs;
  EndpointLimits limits;
  OutboxShape shape;
  size_t min_reference_bytes = 0;
  TimeNs handshake_timeout = 0;
  uint64_t last_slot = 0;
  // Runs a callback of the handler after the call or event at hand, in order.
  std::function<void(std::function<void()>)> defer;
  std::function<void(LinkId)> forget;  // nothing more comes of this link
  std::function<absl::Status(const Hello&)> admit;
  std::function<void(const absl::Status&)> refused;
};

class ShmLink : public std::enable_shared_from_this<ShmLink> {
 public:
  ShmLink(ShmContext* context, LinkId id, const Hello& self);
  ~ShmLink();

  void StartConnect(const std::string& name);
  void StartAccept(UniqueFd socket, const PeerProcess& peer);
  // OnDown(reason) follows; for a link that cannot even start.
  void Refuse(const absl::Status& reason);

  void Send(const FrameHeader& header, ConstBytes payload, uint64_t cookie);
  bool Writable();
  void Close(const absl::Status& reason);
  SlotId OpenSlot(MutableBytes memory);
  bool CloseSlot(SlotId slot) { return !slots_.has_value() || slots_->Close(slot); }
  bool ByReference(ConstBytes payload) const;
  LinkStats Stats() const;

  void SlabRetired(uint32_t slab);   // one of our own was freed
  void Release(uint64_t token);      // the application has dropped a payload by reference
  // The endpoint goes away: no callback any more. Held payloads stay readable.
  void Abandon();

 private:
  enum class State { kConnecting, kHandshake, kUp, kLingering, kDown };
  enum class Progress { kDone, kBlocked };

  struct Outgoing {
    FrameHeader header;
    ConstBytes payload;
    uint64_t cookie = 0;
    std::vector<std::byte> copy;  // of the payload, if it was not lent
    bool started = false;
    size_t sent = 0;
  };
  struct Incoming {  // a payload that comes in chunks
    FrameHeader header;
    std::shared_ptr<std::byte[]> buffer;  // without a slot
    size_t received = 0;
  };

  // shm_link.cc: life and socket.
  void TryConnect(const std::string& name, TimeNs waited);
  absl::Status BeginHandshake(UniqueFd socket);
  absl::Status SendFrame(FrameHeader header, ConstBytes payload, int file);
  void OnEvent(uint32_t events);
  // all: else up to the first wake-up, as the loop calls again if there is more.
  void ReadPackets(bool all);
  absl::Status OnPacket(const Packet& packet);
  absl::Status OnGreeting(const FrameHeader& header, const Packet& packet);
  void GoUp(const Hello& peer);
  void OnHangUp();
  void ShutDown(const absl::Status& reason, bool may_linger);
  void Finish();
  void DeliverDown();
  void Wake();
  void WaitForSocket();
  absl::Status Describe(const absl::Status& reason) const;  // with the peer's name
  void Fail(const absl::Status& reason) { ShutDown(Describe(reason), /*may_linger=*/true); }

  // shm_link_send.cc
  void Flush();
  void FlushPending();
  Progress Publish(Outgoing& frame);
  Progress PublishPlaced(Outgoing& frame, SlotWrite& write);
  Progress PublishReference(Outgoing& frame, const SlabRange& range);
  Progress PublishCopied(Outgoing& frame);
  bool HasEntry();
  enum class Announced { kYes, kLater, kNever };  // kLater: the socket is full
  Announced AnnounceSlab(uint32_t slab);
  void TellRetired();
  void Publish(const Descriptor& descriptor, size_t accounted);
  void WakeLater();
  void Sent(uint64_t cookie);
  Descriptor MakeDescriptor(DescriptorKind kind, const FrameHeader& header) const;
  size_t queued_bytes() const { return pending_bytes_ + (writer_.has_value() ? writer_->queued_bytes() : 0); }

  // shm_link_receive.cc
  void Receive(bool everything);
  void ReceiveLater();   // in the next turn
  absl::Status OnDescriptor(const Descriptor& descriptor);
  absl::Status OnChunk(const Descriptor& descriptor);
  absl::Status OnReference(const Descriptor& descriptor);
  absl::Status OnPlaced(const Descriptor& descriptor);
  absl::Status OnRelease(const Descriptor& descriptor);
  absl::StatusOr<std::shared_ptr<Mapping>> FindPeerMemory(const SlabRange& range);
  absl::StatusOr<const MutableBytes*> FindSlot(const FrameHeader& header);
  void Deliver(const FrameHeader& header, Payload payload);

  ShmContext* const context_;  // not used once down
  const LinkId id_;
  const Hello self_;
  std::string peer_name_;
  State state_ = State::kConnecting;
  bool accepted_ = false;
  UniqueFd socket_;
  uint64_t timer_ = 0;
  absl::Status peer_reason_;  // of its ERROR
  absl::Status down_reason_;
  bool hung_up_ = false;
  bool was_up_ = false;
  size_t owed_ = 0;  // calls of OnSent that are on their way

  std::optional<Outbox> own_, peer_;
  std::optional<OutboxWriter> writer_;
  std::optional<OutboxReader> reader_;
  std::optional<SlotTable> slots_;
  PeerMemory peer_memory_;

  std::deque<Outgoing> pending_;
  size_t pending_bytes_ = 0;
  uint64_t publishing_ = 0;  // cookie of the frame that is being published, and is in no queue
  std::deque<uint64_t> pending_releases_;
  bool wants_writable_ = false;
  bool socket_full_ = false;  // EPOLLOUT is awaited
  bool wake_scheduled_ = false;
  std::unordered_set<uint32_t> announced_;
  std::deque<uint32_t> retired_;  // to be told when the socket has room
  uint64_t last_token_ = 0;
  std::unordered_map<uint64_t, uint64_t> lent_;  // token -> cookie

  std::optional<Incoming> incoming_;
  bool receive_scheduled_ = false;
  LinkStats stats_;
};

}  // namespace sluice::transport
