// One link over several paths: which bytes go where, in what order frames come out, and what is sent again when a path
// dies. No I/O, no clock, no memory registration: the endpoint has those, tests have made-up paths.
//
// A path is a queue pair of a rail, a further TCP connection, or (path 0, the base) the TCP connection that the link
// began with and lives and dies with. Small frames travel in packets (packet.h) over the lead: the first path of the best
// tier. Large ones are cut into chunks, which are written straight into the peer's slot over all paths of the best tier.
//
//   1. A slot that opens is told to the peer (SLOT), with the ways into it, before any frame that names it.
//   2. A frame with a payload for a slot is announced in order (FRAME with a range of tags); each chunk is written by the
//      path on which it will, at its measured goodput, be there first; a notice with the chunk's tag follows the bytes.
//   3. The receiver hands frames over in the order in which they were sent, each once its chunks are there.
//   4. Done for a packet or chunk means that the peer's process has it or will find it before it gives the path up.
//   5. A path that is lost has been destroyed by the endpoint, after everything that came over it was taken. Packets that
//      are in doubt go out again at once over the new lead (the receiver knows them by their sequence number). Chunks wait:
//      both sides say LOST with the tags that came last over the path, and only when the peer has said so (its end is
//      destroyed then: nothing that was on its way can land any more) the missing ones go out again, over other paths.
//   6. A slot is closed at once if all its bytes have landed, since a sender writes no byte of it twice; else CLOSE asks the
//      sender, who answers CLOSED when nothing is on its way. Memory that no path can write remotely closes at once.
//   7. Credits: a path with a bounded number of receives is not sent more than the peer has posted (CREDIT).
//   8. A chunk that is late on a path whose bytes the peer's process reads itself (PathInfo::read_by_peer) goes out once more,
//      over another such path (link_chunks.cc). The first copy that is done counts. Before the frame's payload is given back,
//      the paths of the other copies are told to read it no more (TakeBack).
//
// What keeps a second copy harmless, and must stay true:
//   - It is made of a chunk on a path that is read by the peer, and travels over one: the peer's process takes the bytes out
//     of a stream, and drops those of a closed slot. A chunk that went by remote writes is never on two paths; it goes out
//     again by 5 alone.
//   - Both copies carry the same bytes to the same place under the same tag; the receiver counts a tag once.
//   - CLOSED speaks of remote writes alone: nobody waits there for a chunk on a slow TCP path.
//   - A chunk is on one path once at most, so a path that hangs holds no more than its window.
//
// Bounds on a peer: early packets, unannounced tags, held frames and remote slots are limited; beyond is an error.
// Single-threaded.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "transport/multipath/goodput.h"
#include "transport/multipath/packet.h"
#include "transport/transport.h"

namespace sluice::transport::multipath {

inline constexpr PathId kBasePath = 0;
// What SendPacket and SendChunk are given and Done takes back; 0 = nobody wants to know.
inline constexpr uint64_t kChunkToken = uint64_t{1} << 63;

struct PathInfo {
  uint32_t tier = 0;           // higher is better: chunks use the best tier that can take them
  uint32_t remote_group = 0;   // of the peer's slot targets (SlotTarget::group); the base path needs none
  bool packets = true;         // may be the lead
  std::optional<uint32_t> credits;  // receives that the peer has posted; none: it needs no credits
  uint32_t credits_used = 0;        // of them, before it was up
  uint32_t receives = 0;            // that were posted here before the peer was told, with credits
  bool read_by_peer = false;        // a stream: the peer's process reads chunks out of it, so that it can drop late ones
};

struct Chunk {
  ConstBytes payload;
  SlotId slot = 0;
  uint64_t offset = 0;     // in the slot
  SlotTarget target;       // not on the base path
  uint32_t tag = 0;
};

struct PathState {         // for people
  PathId path = 0;
  uint32_t tier = 0;
  double goodput = 0;      // bytes a second; 0 = not measured yet
  uint64_t chunks = 0, bytes = 0, packets = 0;   // sent; bytes: of chunks
  uint64_t packet_bytes = 0;
  uint64_t messages_in = 0, bytes_in = 0;        // chunks and packets
};

class MultipathLink {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // Work requests that this path takes now: a packet needs 1, a chunk 2.
    virtual size_t Room(PathId path) = 0;
    // Can chunks be sent from this memory over this path?
    virtual bool CanSendFrom(PathId path, ConstBytes payload) = 0;
    virtual void SendPacket(PathId path, ConstBytes packet, uint64_t token) = 0;   // copies
    virtual void SendChunk(PathId path, const Chunk& chunk, uint64_t token) = 0;   // payload is lent until Done, PathLost or TakeBack
    // This chunk has arrived another way, or nobody wants it: its payload is not read from now on; what has not left yet is
    // copied. Done follows all the same. Only of paths that are read_by_peer.
    virtual void TakeBack(PathId path, uint64_t token) = 0;
    virtual uint32_t ReceivesPosted(PathId path) = 0;                              // for paths with credits
    // The peer has lost this path: destroy it, then call PathLost (from inside if it likes).
    virtual void BreakPath(PathId path, const absl::Status& why) = 0;
    // For the handler; from inside OnPacket, OnChunk, Done, PathLost and Pump only. It may call Send, OpenSlot,
    // CloseSlot and Stop from there.
    virtual void Deliver(const FrameHeader& header, Payload payload) = 0;
    virtual void Sent(uint64_t cookie) = 0;
    virtual void SlotClosed(SlotId slot) = 0;
  };

  MultipathLink(Owner* owner, EndpointLimits limits, size_t chunk_bytes);

  // ---- the handler's side ----
  void Send(const FrameHeader& header, ConstBytes payload, uint64_t cookie);
  size_t queued_bytes() const { return queued_bytes_; }
  // targets: the ways into the memory by paths other than the base.
  // remote: somebody else than this process's own thread writes through one of the targets, so that closing takes time.
  void OpenSlot(SlotId slot, MutableBytes memory, std::vector<SlotTarget> targets, bool remote);
  bool CloseSlot(SlotId slot, TimeNs now);   // see Endpoint::CloseSlot

  // ---- the endpoint's side ----
  // The first packet, over the base path, behind all that was sent there before. Once, after its PathUp.
  void Begin();
  void PathUp(PathId path, const PathInfo& info, TimeNs now);
  void PathLost(PathId path, TimeNs now);    // destroyed, and drained before that
  void Done(PathId path, uint64_t token, TimeNs now);
  absl::Status OnPacket(PathId path, ConstBytes packet);
  absl::Status OnChunk(PathId path, uint32_t tag);
  // Sends what can be sent: after events, and at the end of each turn.
  void Pump(TimeNs now);
  // An error if the peer has owed an answer for longer than kAnswerWithin: to a CLOSE, or LOST for a path that is lost here.
  // Memory and frames would wait for it for ever.
  absl::Status Overdue(TimeNs now) const;
  // How long this path has carried nothing although it has something to carry.
  TimeNs OldestChunk(PathId path, TimeNs now) const;
  // The link is about to be closed in order: all packets in doubt and all small frames go to the base path now.
  // Nobody is called back.
  void Finish();
  // Nothing is handed over, sent or called back any more. Returns the cookies that have not come back; the paths must have
  // been destroyed before the payloads are touched.
  std::vector<uint64_t> Stop();

  bool HasPath(PathId path) const { return paths_.contains(path); }
  std::vector<PathState> States() const;
  uint64_t paths_lost() const { return paths_lost_; }
  uint64_t resent_chunks() const { return resent_chunks_; }   // because their path was lost, or they were late on it
  bool WaitsForChunks() const { return !open_.empty(); }       // so that Pump must be called as time passes
  uint64_t duplicates() const { return duplicates_; }
  TimeNs credit_stall() const { return credit_stall_; }   // of all paths, while there was something to send
  uint64_t frames_in() const { return frames_in_; }
  uint64_t frames_out() const { return frames_out_; }
  uint64_t payload_in() const { return payload_in_; }
  uint64_t payload_out() const { return payload_out_; }
  uint64_t bytes_in_beside_base() const { return beside_in_; }
  uint64_t bytes_out_beside_base() const { return beside_out_; }

 private:
  class Reader;

  struct OutFrame {
    FrameHeader header;
    ConstBytes payload;
    std::vector<std::byte> copy;
    uint64_t cookie = 0;
    size_t taken = 0;          // of the payload, by packets
    bool begun = false;
    uint32_t chunks_left = 0;  // not Done
    uint64_t mark = 0;         // packet_bytes_ when it was announced
  };
  struct OutChunk {
    std::shared_ptr<OutFrame> frame;   // null: another copy was done, or nobody wants it; this one only measures its path
    size_t offset = 0, bytes = 0;  // in the frame's payload
    uint32_t tag = 0;
    TimeNs sent = 0;
    TimeNs expected = 0, due = 0;  // when it should be done by its path's estimate, and from when on it is late
  };
  struct Path {
    PathInfo info;
    bool up = true;
    TimeNs lost_at = 0;
    uint32_t credits_used = 0, credits_granted = 0, credits_told = 0;
    bool tell_credits = false;                       // whatever was told
    std::map<uint32_t, OutChunk> flying;
    size_t flying_bytes = 0;
    Goodput goodput;
    LeastTime latency;                               // of chunks, from SendChunk to Done
    TimeNs last_done = 0, last_service = 0;          // of a chunk: when, and how long after the one before it
    std::deque<uint32_t> recent;                     // tags that came over it
    std::optional<std::vector<uint32_t>> peer_tags;  // from the peer's LOST
    uint64_t chunks = 0, bytes = 0, packets = 0, packet_bytes = 0;
    uint64_t messages_in = 0, bytes_in = 0;
    std::optional<TimeNs> stalled;                   // since when it has had no credit for what waits
  };
  struct OutPacket {
    std::vector<std::byte> bytes;
    PathId path = 0;
  };
  struct RemoteSlot {
    uint64_t bytes = 0, sent = 0;
    std::vector<SlotTarget> targets;
    uint32_t flying = 0;    // chunks sent or in doubt, by remote writes
    bool closing = false, answer = false;
  };
  struct LocalSlot {
    MutableBytes memory;
    bool remote = false;    // paths other than the base can write it
    bool closing = false;
    TimeNs closing_since = 0;
    uint64_t landed = 0;
  };
  struct InFrame {
    FrameHeader header;
    std::shared_ptr<std::byte[]> buffer;
    std::byte* target = nullptr;   // null: dropped
    size_t received = 0;
    uint32_t chunks = 0, missing = 0, first_tag = 0;
    bool dropped = false;
    bool complete() const { return chunks > 0 ? missing == 0 || dropped : received == header.payload_bytes; }
  };

  // link_send.cc
  Path* Lead();
  bool LeadHasRoom();
  bool MakeRoom(size_t bytes);
  void FlushPacket();
  void Post(PathId id, Path& path, uint64_t sequence, std::vector<std::byte> bytes);
  void SendCredits();
  void Resend();
  bool Announce();
  size_t Ahead();
  bool TakeFrames();
  bool TakeFragments(OutFrame& frame);
  void FrameDone(OutFrame& frame);
  void SendAll(TimeNs now);
  uint64_t HeldByPeer() const;

  // link_paths.cc
  void SendLost();
  void ChunkDone(const OutChunk& chunk);
  void Unfly(const Path& path, SlotId slot);
  void TakeBackCopies(uint32_t tag);
  bool OnAnotherPath(PathId id, uint32_t tag) const;
  void Settle(PathId id, Path& path);
  void CountStalls(TimeNs now);

  // link_chunks.cc
  struct Way {               // a path that can take a chunk
    PathId id = 0;
    Path* path = nullptr;
    SlotTarget target;
    double rate = 0;         // 0 = not known
    bool late = false;       // a chunk on it should have been done by now
  };
  bool OpenChunks(const std::shared_ptr<OutFrame>& frame);
  size_t ChunkBytes(size_t payload);
  bool AnyWay(const OutFrame& frame);
  std::vector<Way> Ways(const OutChunk& chunk, TimeNs now);
  bool Full(const Way& way, size_t bytes, double best_rate, bool only_one);
  std::optional<Way> Choose(const OutChunk& chunk, TimeNs now);
  std::optional<Way> ChooseForTail(const OutChunk& chunk, TimeNs now);
  void Issue(const Way& way, OutChunk chunk, TimeNs now);
  bool IssueChunks(TimeNs now);
  void SendAgain(TimeNs now, bool idle);

  // link_receive.cc
  absl::Status InOrder(ConstBytes packet);
  absl::Status Opens(const FrameHeader& header, uint32_t first_tag, uint32_t chunks, ConstBytes payload);
  absl::Status Continue(ConstBytes payload);
  absl::Status PeerCloses(SlotId slot, bool answer);
  absl::Status PeerClosed(SlotId slot);
  absl::Status PeerLost(PathId path, std::vector<uint32_t> tags);
  void Drop(InFrame& frame);
  void CountLanded(PathId path, const InFrame& frame);
  void HandOver();

  Owner* const owner_;
  const EndpointLimits limits_;
  const size_t chunk_bytes_;
  bool stopped_ = false;

  std::map<PathId, Path> paths_;      // also those that are lost and not settled
  uint64_t paths_lost_ = 0;
  std::vector<PathId> lost_to_tell_;
  std::map<PathId, std::vector<uint32_t>> early_lost_;    // the peer's LOST for a path that is not up here yet
  std::map<PathId, std::deque<uint32_t>> early_recent_;   // tags that came over a path before its PathUp

  // sending
  std::deque<std::shared_ptr<OutFrame>> queue_;
  std::map<uint64_t, std::shared_ptr<OutFrame>> open_;   // announced, chunks not all Done; by mark, then order
  size_t queued_bytes_ = 0;
  std::deque<OutChunk> pending_;
  size_t pending_bytes_ = 0;
  PacketBuilder builder_;
  uint64_t next_sequence_ = 1;
  uint32_t next_tag_ = 0;
  uint64_t packet_bytes_ = 0;         // payload that went into packets so far
  uint64_t next_open_ = 1;
  std::map<uint64_t, OutPacket> in_doubt_;               // posted, not Done
  std::map<uint64_t, std::vector<std::byte>> resend_;
  std::unordered_map<SlotId, RemoteSlot> remote_slots_;
  struct Control {
    enum Kind { kSlot, kClose, kClosed } kind;
    SlotId slot = 0;
    uint64_t bytes = 0;
    std::vector<SlotTarget> targets;
    bool answer = false;
  };
  std::deque<Control> control_;
  size_t answers_owed_ = 0;           // CLOSED in control_
  std::vector<uint64_t> finished_;    // cookies of what Finish took
  uint64_t frames_out_ = 0, payload_out_ = 0, beside_out_ = 0, resent_chunks_ = 0;
  TimeNs credit_stall_ = 0;

  // receiving
  std::unordered_map<SlotId, LocalSlot> slots_;
  uint64_t expected_ = 1;
  std::map<uint64_t, std::vector<std::byte>> early_packets_;
  std::list<InFrame> incoming_;
  size_t held_bytes_ = 0;
  uint32_t announced_tag_ = 0;                           // the next tag that a header will announce
  std::unordered_map<uint32_t, InFrame*> tags_;          // announced, not there yet
  std::unordered_map<uint32_t, PathId> early_tags_;      // came before they were announced
  bool handing_over_ = false;
  uint64_t duplicates_ = 0, frames_in_ = 0, payload_in_ = 0, beside_in_ = 0;
};

}  // namespace sluice::transport::multipath
