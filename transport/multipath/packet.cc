#include "transport/multipath/packet.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::transport::multipath {
namespace {

enum RecordType : uint32_t { kFrame = 1, kFragment, kSlot, kClose, kClosed, kCredit, kLost };

constexpr size_t kTargetBytes = 24;

constexpr size_t Padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a malformed packet of a multipath link: ", what));
}

absl::Status ReadFrame(ConstBytes body, PacketVisitor& visitor) {
  if (body.size() < kHeaderBytes + 8) return Malformed("a short frame");
  SLUICE_ASSIGN_OR_RETURN(const FrameHeader header, DecodeHeader(body.data()));
  const auto first_tag = LoadLe<uint32_t>(body.data() + kHeaderBytes);
  const auto chunks = LoadLe<uint32_t>(body.data() + kHeaderBytes + 4);
  const ConstBytes payload = body.subspan(kHeaderBytes + 8);
  if (payload.size() > header.payload_bytes) return Malformed("a frame with more payload than its header says");
  if (chunks > 0 && (!payload.empty() || chunks > header.payload_bytes)) return Malformed("a frame with wrong chunks");
  return visitor.OnFrame(header, first_tag, chunks, payload);
}

absl::Status ReadSlot(ConstBytes body, PacketVisitor& visitor) {
  if (body.size() < 16 || (body.size() - 16) % kTargetBytes != 0) return Malformed("a slot of a wrong size");
  std::vector<SlotTarget> targets((body.size() - 16) / kTargetBytes);
  if (targets.size() > kMaxTargets) return Malformed("a slot with too many targets");
  const std::byte* at = body.data() + 16;
  for (SlotTarget& target : targets) {
    target = {LoadLe<uint32_t>(at), LoadLe<uint64_t>(at + 8), LoadLe<uint64_t>(at + 16)};
    at += kTargetBytes;
  }
  return visitor.OnSlot(LoadLe<uint64_t>(body.data()), LoadLe<uint64_t>(body.data() + 8), std::move(targets));
}

absl::Status ReadLost(ConstBytes body, PacketVisitor& visitor) {
  if (body.size() < 8) return Malformed("a short loss");
  const auto count = LoadLe<uint32_t>(body.data() + 4);
  if (count > kRecentTags || body.size() != 8 + 4 * size_t{count}) return Malformed("a loss of a wrong size");
  std::vector<uint32_t> tags(count);
  for (uint32_t i = 0; i < count; ++i) tags[i] = LoadLe<uint32_t>(body.data() + 8 + 4 * i);
  return visitor.OnLost(LoadLe<uint32_t>(body.data()), std::move(tags));
}

absl::Status ReadRecord(uint32_t type, ConstBytes body, PacketVisitor& visitor) {
  switch (type) {
    case kFrame: return ReadFrame(body, visitor);
    case kFragment: return visitor.OnFragment(body);
    case kSlot: return ReadSlot(body, visitor);
    case kClose:
      if (body.size() != 16) return Malformed("a close of a wrong size");
      return visitor.OnClose(LoadLe<uint64_t>(body.data()), LoadLe<uint32_t>(body.data() + 8) != 0);
    case kClosed:
      if (body.size() != 8) return Malformed("an answer to a close of a wrong size");
      return visitor.OnClosed(LoadLe<uint64_t>(body.data()));
    case kCredit:
      if (body.size() != 8) return Malformed("a credit of a wrong size");
      return visitor.OnCredit(LoadLe<uint32_t>(body.data()), LoadLe<uint32_t>(body.data() + 4));
    case kLost: return ReadLost(body, visitor);
    default: return Malformed(absl::StrCat("record type ", type));
  }
}

}  // namespace

void PacketBuilder::Clear() {
  bytes_.assign(kPacketHeaderBytes, std::byte{0});
  records_ = 0;
}

std::byte* PacketBuilder::Begin(uint32_t type, size_t body) {
  const size_t at = bytes_.size();
  bytes_.resize(at + kRecordHeaderBytes + Padded(body));  // zeros
  StoreLe<uint32_t>(bytes_.data() + at, type);
  StoreLe<uint32_t>(bytes_.data() + at + 4, static_cast<uint32_t>(body));
  ++records_;
  return bytes_.data() + at + kRecordHeaderBytes;
}

size_t PacketBuilder::Frame(const FrameHeader& header, uint32_t first_tag, uint32_t chunks, ConstBytes payload) {
  const size_t taken = chunks > 0 ? 0 : std::min(payload.size(), (room() - kFrameRecordBytes) / 8 * 8);
  std::byte* body = Begin(kFrame, kHeaderBytes + 8 + taken);
  EncodeHeader(header, body);
  StoreLe<uint32_t>(body + kHeaderBytes, first_tag);
  StoreLe<uint32_t>(body + kHeaderBytes + 4, chunks);
  if (taken > 0) std::memcpy(body + kHeaderBytes + 8, payload.data(), taken);
  return taken;
}

size_t PacketBuilder::Fragment(ConstBytes payload) {
  const size_t taken = std::min(payload.size(), (room() - kRecordHeaderBytes) / 8 * 8);
  std::byte* body = Begin(kFragment, taken);
  if (taken > 0) std::memcpy(body, payload.data(), taken);
  return taken;
}

void PacketBuilder::Slot(SlotId slot, uint64_t bytes, const std::vector<SlotTarget>& targets) {
  const size_t count = std::min(targets.size(), kMaxTargets);
  std::byte* body = Begin(kSlot, 16 + kTargetBytes * count);
  StoreLe<uint64_t>(body, slot);
  StoreLe<uint64_t>(body + 8, bytes);
  for (size_t i = 0; i < count; ++i) {
    std::byte* at = body + 16 + kTargetBytes * i;
    StoreLe<uint32_t>(at, targets[i].group);
    StoreLe<uint64_t>(at + 8, targets[i].address);
    StoreLe<uint64_t>(at + 16, targets[i].key);
  }
}

void PacketBuilder::Close(SlotId slot, bool answer) {
  std::byte* body = Begin(kClose, 16);
  StoreLe<uint64_t>(body, slot);
  StoreLe<uint32_t>(body + 8, answer ? 1 : 0);
}

void PacketBuilder::Closed(SlotId slot) { StoreLe<uint64_t>(Begin(kClosed, 8), slot); }

void PacketBuilder::Credit(PathId path, uint32_t receives) {
  std::byte* body = Begin(kCredit, 8);
  StoreLe<uint32_t>(body, path);
  StoreLe<uint32_t>(body + 4, receives);
}

void PacketBuilder::Lost(PathId path, const std::vector<uint32_t>& tags) {
  const size_t count = std::min(tags.size(), kRecentTags);
  std::byte* body = Begin(kLost, 8 + 4 * count);
  StoreLe<uint32_t>(body, path);
  StoreLe<uint32_t>(body + 4, static_cast<uint32_t>(count));
  for (size_t i = 0; i < count; ++i) StoreLe<uint32_t>(body + 8 + 4 * i, tags[i]);
}

std::vector<std::byte> PacketBuilder::Take(uint64_t sequence) {
  StoreLe<uint64_t>(bytes_.data(), sequence);
  StoreLe<uint32_t>(bytes_.data() + 8, records_);
  std::vector<std::byte> packet = std::move(bytes_);
  bytes_ = {};
  Clear();
  return packet;
}

absl::StatusOr<uint64_t> PacketSequence(ConstBytes packet) {
  if (packet.size() < kPacketHeaderBytes || packet.size() > kPacketBytes)
    return Malformed(absl::StrCat(packet.size(), " bytes"));
  return LoadLe<uint64_t>(packet.data());
}

absl::Status ReadPacket(ConstBytes packet, Records which, PacketVisitor& visitor) {
  SLUICE_RETURN_IF_ERROR(PacketSequence(packet).status());
  const auto records = LoadLe<uint32_t>(packet.data() + 8);
  ConstBytes rest = packet.subspan(kPacketHeaderBytes);
  for (uint32_t i = 0; i < records; ++i) {
    if (rest.size() < kRecordHeaderBytes) return Malformed("it ends in the middle of a record");
    const auto type = LoadLe<uint32_t>(rest.data());
    const auto bytes = LoadLe<uint32_t>(rest.data() + 4);
    rest = rest.subspan(kRecordHeaderBytes);
    if (bytes > rest.size() || Padded(bytes) > rest.size()) return Malformed("a record longer than its packet");
    const bool on_arrival = type == kCredit || type == kLost;
    if (on_arrival == (which == Records::kOnArrival)) {
      SLUICE_RETURN_IF_ERROR(ReadRecord(type, rest.first(bytes), visitor));
    }
    rest = rest.subspan(Padded(bytes));
  }
  if (!rest.empty()) return Malformed("bytes behind its last record");
  return absl::OkStatus();
}

}  // namespace sluice::transport::multipath
