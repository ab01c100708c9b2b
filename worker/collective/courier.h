// Brings messages between workers exactly once, over whatever link there is. docs/wire.md, "Between workers", has the frames;
// the numbers below are its steps.
//
//   source                                        destination
//   Send: bytes are there                         Expect: memory is there
//     |                                             | 1 GRANT(slot, attempt)
//     | 2 PUSH … (small ones without a grant)       |
//     |                                             v 3 all there, slot closed -> OnArrived, APPLIED
//     v APPLIED, and the link has let go of the bytes -> OnAcknowledged
//
//   - 4: frames that come before Send or Expect are kept, within bounds a peer (kEarly…); what finds no room is asked for again.
//   - 5, 6: only silence and lost links make anything be sent twice, and always the same bytes.
//   - A message may land only where Expect says, and only while it is expected: slots are closed before OnArrived and in Close.
//
// An operation is a set of messages that end together: Open, then Send and Expect in any order, then Close, which gives the
// memory back (OnReleased) once no link can touch it.
//
// No I/O, no clock, no thread of its own. Owner's callbacks come from Run() alone, never from inside another call.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "transport/stream/link_queue.h"
#include "transport/stream/reassembler.h"
#include "transport/transport.h"

namespace sluice::collective {

inline constexpr size_t kEagerBytes = 16 << 10;
inline constexpr size_t kEagerUnacknowledged = 1 << 20;   // to one peer
inline constexpr size_t kEarlyBytes = 4 << 20;            // from one peer
inline constexpr size_t kEarlyFrames = 4096;              // from one peer

inline constexpr uint64_t kTagChannel = uint64_t{1} << 63;      // | tag
inline constexpr uint64_t kTensorChannel = uint64_t{1} << 62;   // | tensor

// What OnFailed says where a peer's signature is another one.
inline constexpr absl::string_view kAnotherCall = "its call is another one";

// Which operation, the same on all its members.
struct OpName {
  uint32_t group = 0;
  uint32_t epoch = 0;
  uint64_t channel = 0;
  uint64_t sequence = 0;
  // With a tag the two directions between two ranks count apart, and so do their pairs: the source and the destination.
  // Not on the wire: the frame's rank and link say it.
  uint32_t source = UINT32_MAX, destination = UINT32_MAX;
  auto operator<=>(const OpName&) const = default;
};

class Courier {
 public:
  enum class Place {
    kPast,      // done here
    kFuture,    // not begun here
    kFailed,    // failed here: why() says so
    kStranger,  // of another epoch, or not to be judged yet: dropped
    kNever,     // no such group, or not one of this rank and that peer: the link ends
  };
  class Owner {
   public:
    virtual ~Owner() = default;
    // Of an operation that is not open.
    virtual Place Where(const OpName& name, uint32_t peer, absl::Status* why) const = 0;
    // bytes are valid during the call; they lie in the memory that was given, or elsewhere.
    virtual void OnArrived(uint64_t op, uint32_t handle, uint16_t codec, ConstBytes bytes) = 0;
    virtual void OnAcknowledged(uint64_t op, uint32_t handle) = 0;   // nothing touches the bytes any more
    // A peer says so, or its call is another one. The owner closes the operation.
    virtual void OnFailed(uint64_t op, uint32_t peer, const absl::Status& why) = 0;
    virtual void OnReleased(uint64_t op) = 0;                        // after Close
    virtual void EndLink(transport::LinkId link, const absl::Status& why) = 0;
  };
  struct Options {
    uint32_t job = 0, rank = 0, incarnation = 0;
    TimeNs resend = kSecond;
  };

  Courier(transport::Endpoint* endpoint, transport::LinkQueue* queue, const Clock* clock, Owner* owner);
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;
  void SetIdentity(const Options& options) { options_ = options; }

  // --- operations. `op` is the owner's number, not used before; handles are the owner's, unique in the operation.
  void Open(uint64_t op, const OpName& name, uint32_t signature);
  // bytes stay as they are until OnAcknowledged or OnReleased. elements: that they decode to.
  void Send(uint64_t op, uint32_t handle, uint32_t peer, uint32_t number, ConstBytes bytes, uint16_t codec, uint32_t elements,
            int32_t priority);
  // The message has memory.size() bytes if `exact`, else at most that. memory is not read before OnArrived.
  void Expect(uint64_t op, uint32_t handle, uint32_t peer, uint32_t number, MutableBytes memory, bool exact);
  // Forgets it; OnReleased follows. Not OK: peers of its messages, and `tell`, are told.
  void Close(uint64_t op, const absl::Status& why, const std::vector<uint32_t>& tell = {});

  // --- links and peers
  void LinkUp(uint32_t peer, transport::LinkId link);   // takes the place of the peer's former link
  void LinkDown(uint32_t peer, transport::LinkId link);
  void OnFrame(uint32_t peer, transport::LinkId link, const transport::FrameHeader& header, transport::Payload payload);
  void OnSlotClosed(transport::SlotId slot);
  // The peer has left in order, after all of its operations: what it was sent has arrived.
  void PeerFinished(uint32_t peer);
  void ForgetGroup(uint32_t group);   // what has come early for it: its epoch has changed

  void OnTick();
  void Run();
  bool has_work() const { return !events_.empty(); }

  // --- for people and tests
  // The longest silence of an operation: "nothing of message 3 from rank 2 for 1.5 s"; "" if it waits for nobody.
  struct Silence {
    bool waits = false;
    uint32_t peer = 0;
    std::string what;
  };
  Silence Waits(uint64_t op) const;
  bool Needs(uint64_t op, uint32_t peer) const;   // something of this peer is expected, or not taken by it
  size_t early_bytes(uint32_t peer) const;
  size_t early_frames(uint32_t peer) const;
  size_t operations() const { return ops_.size(); }
  uint64_t resent() const { return resent_; }

 private:
  using Where = std::pair<uint32_t, uint32_t>;   // peer, number

  struct Outgoing {
    uint32_t handle = 0;
    ConstBytes bytes;
    uint16_t codec = 0;
    uint32_t elements = 0;
    int32_t priority = 0;
    uint64_t key = 0;             // in the queue, or lent to a link; 0 = neither
    bool sent = false;            // over the link that is up, or with a grant
    bool was_sent = false;        // ever
    bool counted = false;         // in its peer's eager_unacknowledged
    bool acknowledged = false;
    uint32_t answered = 0;        // the largest attempt that was sent
    // The latest grant; link 0 = none.
    transport::LinkId link = 0;
    transport::SlotId slot = 0;
    uint32_t attempt = 0;
    TimeNs since = 0, ask_at = 0, backoff = 0;
  };
  struct Incoming {
    enum class State { kWaits, kClosing, kArrived };   // kClosing: all there, but its slot may still be written to
    State state = State::kWaits;
    uint32_t handle = 0;
    MutableBytes memory;
    bool exact = true;
    transport::SlotId slot = 0;   // 0 = none
    transport::LinkId link = 0;
    uint32_t attempt = 0;         // of the last grant
    std::optional<transport::Reassembler> stripes;
    uint16_t codec = 0;
    transport::Payload payload;   // what has arrived, if it did not land in `memory`
    bool in_memory = false;
    size_t size = 0;
    TimeNs since = 0, heard = 0, ask_at = 0, backoff = 0;
  };
  struct Op {
    uint64_t id = 0;
    OpName name;
    uint32_t signature = 0;
    std::map<Where, Outgoing> out;
    std::map<Where, Incoming> in;
    bool failed = false;          // OnFailed was said
    bool closed = false;
    size_t held = 0;              // after Close: keys and slots that are not free yet
  };
  // What has come before it could be used.
  struct Early {
    enum class Kind { kGrant, kBytes, kError } kind = Kind::kGrant;
    uint32_t signature = 0;
    transport::LinkId link = 0;
    transport::SlotId slot = 0;
    uint32_t attempt = 0;
    uint16_t codec = 0;
    std::vector<std::byte> bytes;
    absl::Status error;
  };
  // bool: to be sent (grants), as against received. Errors are received under a number of their own.
  static constexpr uint32_t kErrorNumber = UINT32_MAX;
  using EarlyKey = std::tuple<OpName, bool, uint32_t>;
  struct Peer {
    transport::LinkId link = 0;   // 0 = none
    std::map<EarlyKey, Early> early;
    size_t early_bytes = 0;
    size_t eager_unacknowledged = 0;
    TimeNs heard = 0;             // when the last PUSH came
    std::deque<std::pair<uint64_t, Where>> held_back;   // small messages that wait for acknowledgements
  };
  struct Event {
    enum class Kind { kArrived, kAcknowledged, kFailed, kReleased } kind = Kind::kArrived;
    uint64_t op = 0;
    Where where;
    uint32_t handle = 0;
    absl::Status why;
  };

  Op* Find(uint64_t op);
  Op* FindOpen(const OpName& name);
  OpName NameOf(uint32_t peer, bool outgoing, const transport::FrameHeader& header) const;
  transport::FrameHeader Header(transport::FrameType type, const Op& op, uint32_t source, uint32_t number) const;

  void TrySend(Op& op, Where where, Outgoing& message);
  void SendEager(Op& op, Where where, Outgoing& message, Peer& peer);
  void Acknowledged(Op& op, Where where, Outgoing& message);
  void Settle(Op& op, Where where, Outgoing& message);
  void SendHeldBack(Peer& peer);
  void Grant(Op& op, Where where, Incoming& message);
  void Arrived(Op& op, Where where, Incoming& message);
  bool TakeEarly(Op& op, Where where, Incoming& message);
  void Keep(Peer& peer, const EarlyKey& key, Early early);
  void Drop(Peer& peer, std::map<EarlyKey, Early>::iterator it);
  void Fail(Op& op, uint32_t peer, absl::Status why);
  void SendError(uint32_t peer, const OpName& name, uint32_t source, const absl::Status& why);
  void Reply(transport::LinkId link, const transport::FrameHeader& about, transport::FrameType type);
  void Released(uint64_t key);
  void Unhold(Op& op);

  absl::Status OnGrant(uint32_t peer, transport::LinkId link, const transport::FrameHeader& header);
  absl::Status OnPush(uint32_t peer, transport::LinkId link, const transport::FrameHeader& header, transport::Payload payload);
  absl::Status OnAnnounce(uint32_t peer, transport::LinkId link, const transport::FrameHeader& header);
  absl::Status OnAppliedFrame(uint32_t peer, const transport::FrameHeader& header);
  absl::Status OnError(uint32_t peer, const transport::FrameHeader& header, ConstBytes text);
  // False: it was dealt with, or *status says what is wrong.
  bool Judge(uint32_t peer, transport::LinkId link, const transport::FrameHeader& header, const OpName& name, bool* future,
             absl::Status* status);

  transport::Endpoint* const endpoint_;
  transport::LinkQueue* const queue_;
  const Clock* const clock_;
  Owner* const owner_;
  Options options_;
  uint64_t key_base_ = 0, next_key_ = 1;
  std::map<uint64_t, Op> ops_;
  std::map<OpName, uint64_t> by_name_;   // open ones
  std::map<uint32_t, Peer> peers_;
  std::unordered_map<uint64_t, std::pair<uint64_t, Where>> by_key_;             // of the queue
  std::unordered_map<transport::SlotId, std::pair<uint64_t, Where>> by_slot_;   // open, or closing
  std::deque<Event> events_;
  uint64_t resent_ = 0;
};

}  // namespace sluice::collective
