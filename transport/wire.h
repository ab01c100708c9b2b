// The data plane's frame header, 128 bytes, little-endian. docs/wire.md is the format's own page: change both.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace sluice::transport {

inline constexpr uint32_t kMagic = 0x31434C53;  // "SLC1" on the wire
inline constexpr uint8_t kWireVersion = 1;
inline constexpr size_t kHeaderBytes = 128;

// PULL of rows of a table: how its ids are written (header.codec).
inline constexpr uint16_t kPlainIds = 0, kPackedIds = 1;

enum class FrameType : uint8_t {
  kHello = 1,     // transport: who connects
  kWelcome = 2,   // transport: accepted
  kAnnounce = 3,  // worker -> server: I want to push, or: what became of my push?
  kGrant = 4,     // server -> worker: send it into this slot
  kPush = 5,      // worker -> server: (a stripe of) a contribution
  kState = 6,     // server -> worker: your push is queued or received; aux = PushState
  kReply = 7,     // server -> worker: (a stripe of) the round's result; implies applied
  kApplied = 8,   // server -> worker: applied, no payload wanted
  kPull = 9,      // worker -> server: send the current value
  kValue = 10,    // server -> worker: (a stripe of) the answer to kPull
  kRetry = 11,    // server -> worker: not with this term or plan; aux = RetryReason
  kError = 12,    // either way: status, payload = message in UTF-8, about (partition, round)
  kPartial = 13,  // owner -> coordinator: partial sums of a step
  kVerdict = 14,  // coordinator -> owner
  kBatch = 15,    // several small frames in one
  kPing = 16,     // transport: is the peer there?
  kPong = 17,
  kTransport = 18,  // private to a transport (shm releases and the like); never reaches a handler
};
inline constexpr uint8_t kMaxFrameType = 18;

// Flags.
inline constexpr uint16_t kFlagHash = 1 << 0;       // payload_hash is set
inline constexpr uint16_t kFlagNoReply = 1 << 1;    // push only: kApplied is answer enough
inline constexpr uint16_t kFlagAssign = 1 << 2;     // broadcast: the root's payload replaces the parameters
inline constexpr uint16_t kFlagEmpty = 1 << 3;      // contributes nothing but its presence (not the root of a broadcast)
inline constexpr uint16_t kFlagNonfinite = 1 << 4;  // the gradient was not finite: ask for the step to be skipped
inline constexpr uint16_t kFlagSkipped = 1 << 5;    // reply: the step was skipped; put the payload back
inline constexpr uint16_t kFlagRejected = 1 << 6;   // reply: this rank's push was dropped; put the payload back
inline constexpr uint16_t kFlagAdmit = 1 << 7;      // pull: I (re)join; kValue says the next round in `round`
inline constexpr uint16_t kFlagChange = 1 << 8;     // reply: payload is a change to add to the replica
inline constexpr uint16_t kFlagContributed = 1 << 9;  // value: this rank has contributed to round `round` already
inline constexpr uint16_t kFlagReplica = 1 << 10;      // push, announce: an owner's message to a backup (docs/replication.md)
inline constexpr uint16_t kFlagForward = 1 << 12;     // push, announce: the sum of several ranks' (docs/wire.md, "A push through a tree")
inline constexpr uint16_t kFlagMore = 1 << 11;         // with REPLICA: the message goes on with the stream's next number

enum class PushState : uint32_t { kQueued = 1, kReceived = 2 };
enum class RetryReason : uint32_t { kTerm = 1, kPlan = 2, kBusy = 3, kIncarnation = 4, kDirect = 5 };

struct FrameHeader {
  FrameType type = FrameType::kPing;
  uint16_t flags = 0;
  uint32_t job = 0;
  uint32_t rank = 0;         // the worker the frame is from or for; servers: index in the plan
  uint32_t incarnation = 0;  // of the sender
  uint32_t tensor = 0;
  uint32_t partition = 0;    // job-wide index
  uint32_t term = 0;         // of the partition's shard, as the sender knows it
  uint64_t round = 0;
  uint32_t attempt = 0;      // of the sender for this message; stripes of two attempts never mix
  uint16_t codec = 0;        // compression::CodecId
  uint16_t status = 0;       // kError: absl::StatusCode
  uint64_t total_bytes = 0;  // of the whole message
  uint64_t stripe_offset = 0;
  uint32_t payload_bytes = 0;  // in this frame
  uint32_t elements = 0;     // that the whole payload decodes to
  uint64_t slot = 0;         // where the payload lands at the receiver of this frame; 0 = a transport's buffer
  uint64_t reply_slot = 0;   // where the answer may land at the sender
  uint32_t rate_bits = 0;    // fp32: push: rate that the residual was scaled to; reply: the next round's rate
  uint32_t aux = 0;          // PushState, RetryReason, phase, count: by type
  uint64_t aux64 = 0;        // by type
  uint64_t plan_version = 0; // informational
  uint64_t payload_hash = 0; // XXH3-64 of the frame's payload if kFlagHash

  bool has(uint16_t flag) const { return (flags & flag) != 0; }
};

// Writes magic, version, all fields and the check. out has kHeaderBytes.
void EncodeHeader(const FrameHeader& header, std::byte* out);

// Refuses a wrong magic, version, type or check, and a stripe that does not lie inside its message. Bounds on sizes
// are the receiver's business. in has kHeaderBytes.
absl::StatusOr<FrameHeader> DecodeHeader(const std::byte* in);

uint64_t HashBytes(ConstBytes bytes);  // XXH3-64, seed 0

std::string_view FrameTypeName(FrameType type);
// "PUSH job 1 rank 0 tensor 3 partition 12 round 40 attempt 1 bytes 0+65536/262144": for logs and errors.
std::string DebugString(const FrameHeader& header);

// kBatch: payload is a run of (header, payload padded with zeros to 8 bytes). An inner frame carries no hash of its own
// and is neither a batch nor a transport's own (HELLO, WELCOME, PING, PONG, TRANSPORT). A batch has no slot, so it is bounded by the receiver's limit for frames without one.
class BatchBuilder {
 public:
  // Appends one frame; payload_bytes of the header is set from payload, and total_bytes if it is 0.
  void Add(FrameHeader header, ConstBytes payload);
  bool empty() const { return count_ == 0; }
  uint32_t count() const { return count_; }
  size_t bytes() const { return buffer_.size(); }
  // Takes what was collected: the batch's header (count in aux) and its payload.
  std::pair<FrameHeader, std::vector<std::byte>> Take();
  // Gives a taken buffer back, for the next batch to be built in.
  void Recycle(std::vector<std::byte> buffer);

 private:
  std::vector<std::byte> buffer_;
  uint32_t count_ = 0;
};

// Calls fn(const FrameHeader&, ConstBytes) for each inner frame, in order. Stops with an error at the first malformed
// one (those before it have been delivered).
absl::Status ForEachInBatch(const FrameHeader& outer, ConstBytes payload,
                            const std::function<void(const FrameHeader&, ConstBytes)>& fn);

}  // namespace sluice::transport
