// What travels on a multipath link besides the bytes of large payloads: packets of records, little-endian.
//
//   packet   u64 sequence (0: handled on arrival, out of order), u32 records, u32 zero; then the records
//   record   u32 type, u32 bytes of its body; the body, padded with zeros to a multiple of 8
//
//   FRAME     header (128), u32 first tag, u32 chunks, then payload: with chunks, none (they come by other ways, each with
//             a notice of its tag: first tag + i, modulo 2^32); without, as much of it as fits, the rest in FRAGMENTs
//   FRAGMENT  the next bytes of the payload of the last frame
//   SLOT      u64 slot, u64 bytes, then for each way: u32 group, u32 zero, u64 address, u64 key
//   CLOSE     u64 slot, u32 answer wanted, u32 zero: send nothing more there; CLOSED follows once nothing is on its way
//   CLOSED    u64 slot
//   CREDIT    u32 path, u32 receives posted on it so far, modulo 2^32                     (handled on arrival)
//   LOST      u32 path, u32 count, then the tags of the last chunks that came over it     (handled on arrival)
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/transport.h"
#include "transport/wire.h"

namespace sluice::transport::multipath {

using PathId = uint32_t;

inline constexpr size_t kPacketBytes = 8192;       // at most, on every path
inline constexpr size_t kPacketHeaderBytes = 16;
inline constexpr size_t kRecordHeaderBytes = 8;
inline constexpr size_t kFrameRecordBytes = kRecordHeaderBytes + kHeaderBytes + 8;  // without payload
inline constexpr size_t kMaxTargets = 64;          // ways into one slot
inline constexpr size_t kRecentTags = 64;          // of LOST: no path has more chunks in flight

// One way into a slot, for paths of its receiver's group: what a remote write must name.
struct SlotTarget {
  uint32_t group = 0;
  uint64_t address = 0;
  uint64_t key = 0;
  bool operator==(const SlotTarget&) const = default;
};

class PacketBuilder {
 public:
  PacketBuilder() { Clear(); }
  bool empty() const { return records_ == 0; }
  size_t room() const { return kPacketBytes - bytes_.size(); }
  // Each needs room for its record; see the constants. Fragment and Frame take as much of the payload as fits, and return how much.
  size_t Frame(const FrameHeader& header, uint32_t first_tag, uint32_t chunks, ConstBytes payload);
  size_t Fragment(ConstBytes payload);
  void Slot(SlotId slot, uint64_t bytes, const std::vector<SlotTarget>& targets);
  void Close(SlotId slot, bool answer);
  void Closed(SlotId slot);
  void Credit(PathId path, uint32_t receives);
  void Lost(PathId path, const std::vector<uint32_t>& tags);
  // The packet with this sequence number; the builder is empty then.
  std::vector<std::byte> Take(uint64_t sequence);

 private:
  void Clear();
  std::byte* Begin(uint32_t type, size_t body);

  std::vector<std::byte> bytes_;
  uint32_t records_ = 0;
};

// Told of a packet's records, in order. An error ends the reading and is returned.
class PacketVisitor {
 public:
  virtual ~PacketVisitor() = default;
  virtual absl::Status OnFrame(const FrameHeader& header, uint32_t first_tag, uint32_t chunks, ConstBytes payload) = 0;
  virtual absl::Status OnFragment(ConstBytes payload) = 0;
  virtual absl::Status OnSlot(SlotId slot, uint64_t bytes, std::vector<SlotTarget> targets) = 0;
  virtual absl::Status OnClose(SlotId slot, bool answer) = 0;
  virtual absl::Status OnClosed(SlotId slot) = 0;
  virtual absl::Status OnCredit(PathId path, uint32_t receives) = 0;
  virtual absl::Status OnLost(PathId path, std::vector<uint32_t> tags) = 0;
};

// The sequence number, if the packet is long enough and not longer than kPacketBytes.
absl::StatusOr<uint64_t> PacketSequence(ConstBytes packet);
enum class Records { kOnArrival, kInOrder };  // which of them the visitor is told of
// Refuses what is malformed, before or after records that were right.
absl::Status ReadPacket(ConstBytes packet, Records which, PacketVisitor& visitor);

}  // namespace sluice::transport::multipath
