#include "transport/wire.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "xxhash.h"

namespace sluice::transport {
namespace {

constexpr size_t kCheckedBytes = 120;  // the check covers everything before itself

// Offsets are those of the table in docs/wire.md.
constexpr size_t kOffMagic = 0, kOffVersion = 4, kOffType = 5, kOffFlags = 6, kOffJob = 8, kOffRank = 12,
                 kOffIncarnation = 16, kOffTensor = 20, kOffPartition = 24, kOffTerm = 28, kOffRound = 32,
                 kOffAttempt = 40, kOffCodec = 44, kOffStatus = 46, kOffTotalBytes = 48, kOffStripeOffset = 56,
                 kOffPayloadBytes = 64, kOffElements = 68, kOffSlot = 72, kOffReplySlot = 80, kOffRateBits = 88,
                 kOffAux = 92, kOffAux64 = 96, kOffPlanVersion = 104, kOffPayloadHash = 112, kOffHeaderCheck = 120;

size_t Padded(size_t bytes) { return (bytes + 7) & ~size_t{7}; }

bool TransportsOwn(FrameType type) {
  return type == FrameType::kHello || type == FrameType::kWelcome || type == FrameType::kPing ||
         type == FrameType::kPong || type == FrameType::kTransport;
}

}  // namespace

void EncodeHeader(const FrameHeader& h, std::byte* out) {
  StoreLe(out + kOffMagic, kMagic);
  StoreLe(out + kOffVersion, kWireVersion);
  StoreLe(out + kOffType, static_cast<uint8_t>(h.type));
  StoreLe(out + kOffFlags, h.flags);
  StoreLe(out + kOffJob, h.job);
  StoreLe(out + kOffRank, h.rank);
  StoreLe(out + kOffIncarnation, h.incarnation);
  StoreLe(out + kOffTensor, h.tensor);
  StoreLe(out + kOffPartition, h.partition);
  StoreLe(out + kOffTerm, h.term);
  StoreLe(out + kOffRound, h.round);
  StoreLe(out + kOffAttempt, h.attempt);
  StoreLe(out + kOffCodec, h.codec);
  StoreLe(out + kOffStatus, h.status);
  StoreLe(out + kOffTotalBytes, h.total_bytes);
  StoreLe(out + kOffStripeOffset, h.stripe_offset);
  StoreLe(out + kOffPayloadBytes, h.payload_bytes);
  StoreLe(out + kOffElements, h.elements);
  StoreLe(out + kOffSlot, h.slot);
  StoreLe(out + kOffReplySlot, h.reply_slot);
  StoreLe(out + kOffRateBits, h.rate_bits);
  StoreLe(out + kOffAux, h.aux);
  StoreLe(out + kOffAux64, h.aux64);
  StoreLe(out + kOffPlanVersion, h.plan_version);
  StoreLe(out + kOffPayloadHash, h.payload_hash);
  StoreLe(out + kOffHeaderCheck, uint64_t{XXH3_64bits(out, kCheckedBytes)});
}

absl::StatusOr<FrameHeader> DecodeHeader(const std::byte* in) {
  if (const auto magic = LoadLe<uint32_t>(in + kOffMagic); magic != kMagic)
    return absl::InvalidArgumentError(absl::StrCat("not a Sluice frame: it begins with 0x", absl::Hex(magic)));
  if (const auto version = LoadLe<uint8_t>(in + kOffVersion); version != kWireVersion)
    return absl::FailedPreconditionError(absl::StrCat("the peer speaks version ", version,
                                                      " of the data plane's format, this process version ",
                                                      kWireVersion, "; run the same release on both"));
  if (LoadLe<uint64_t>(in + kOffHeaderCheck) != XXH3_64bits(in, kCheckedBytes))
    return absl::DataLossError("the frame header fails its check");
  FrameHeader h;
  const auto type = LoadLe<uint8_t>(in + kOffType);
  if (type == 0 || type > kMaxFrameType)
    return absl::InvalidArgumentError(absl::StrCat("unknown frame type ", type));
  h.type = static_cast<FrameType>(type);
  h.flags = LoadLe<uint16_t>(in + kOffFlags);
  h.job = LoadLe<uint32_t>(in + kOffJob);
  h.rank = LoadLe<uint32_t>(in + kOffRank);
  h.incarnation = LoadLe<uint32_t>(in + kOffIncarnation);
  h.tensor = LoadLe<uint32_t>(in + kOffTensor);
  h.partition = LoadLe<uint32_t>(in + kOffPartition);
  h.term = LoadLe<uint32_t>(in + kOffTerm);
  h.round = LoadLe<uint64_t>(in + kOffRound);
  h.attempt = LoadLe<uint32_t>(in + kOffAttempt);
  h.codec = LoadLe<uint16_t>(in + kOffCodec);
  h.status = LoadLe<uint16_t>(in + kOffStatus);
  h.total_bytes = LoadLe<uint64_t>(in + kOffTotalBytes);
  h.stripe_offset = LoadLe<uint64_t>(in + kOffStripeOffset);
  h.payload_bytes = LoadLe<uint32_t>(in + kOffPayloadBytes);
  h.elements = LoadLe<uint32_t>(in + kOffElements);
  h.slot = LoadLe<uint64_t>(in + kOffSlot);
  h.reply_slot = LoadLe<uint64_t>(in + kOffReplySlot);
  h.rate_bits = LoadLe<uint32_t>(in + kOffRateBits);
  h.aux = LoadLe<uint32_t>(in + kOffAux);
  h.aux64 = LoadLe<uint64_t>(in + kOffAux64);
  h.plan_version = LoadLe<uint64_t>(in + kOffPlanVersion);
  h.payload_hash = LoadLe<uint64_t>(in + kOffPayloadHash);
  if (h.payload_bytes > h.total_bytes || h.stripe_offset > h.total_bytes - h.payload_bytes)
    return absl::InvalidArgumentError(
        absl::StrCat("a stripe lies outside its message: ", DebugString(h)));
  return h;
}

uint64_t HashBytes(ConstBytes bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string_view FrameTypeName(FrameType type) {
  switch (type) {
    case FrameType::kHello: return "HELLO";
    case FrameType::kWelcome: return "WELCOME";
    case FrameType::kAnnounce: return "ANNOUNCE";
    case FrameType::kGrant: return "GRANT";
    case FrameType::kPush: return "PUSH";
    case FrameType::kState: return "STATE";
    case FrameType::kReply: return "REPLY";
    case FrameType::kApplied: return "APPLIED";
    case FrameType::kPull: return "PULL";
    case FrameType::kValue: return "VALUE";
    case FrameType::kRetry: return "RETRY";
    case FrameType::kError: return "ERROR";
    case FrameType::kPartial: return "PARTIAL";
    case FrameType::kVerdict: return "VERDICT";
    case FrameType::kBatch: return "BATCH";
    case FrameType::kPing: return "PING";
    case FrameType::kPong: return "PONG";
    case FrameType::kTransport: return "TRANSPORT";
  }
  return "UNKNOWN";
}

std::string DebugString(const FrameHeader& h) {
  std::string text = absl::StrCat(FrameTypeName(h.type).data(), " job ", h.job, " rank ", h.rank, " tensor ", h.tensor,
                                  " partition ", h.partition, " round ", h.round, " attempt ", h.attempt, " bytes ",
                                  h.stripe_offset, "+", h.payload_bytes, "/", h.total_bytes);
  if (h.term != 0) absl::StrAppend(&text, " term ", h.term);
  if (h.slot != 0) absl::StrAppend(&text, " slot ", h.slot);
  if (h.flags != 0) absl::StrAppend(&text, " flags 0x", absl::Hex(h.flags));
  if (h.aux != 0) absl::StrAppend(&text, " aux ", h.aux);
  return text;
}

void BatchBuilder::Add(FrameHeader header, ConstBytes payload) {
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  if (header.total_bytes == 0) header.total_bytes = payload.size();
  header.flags &= static_cast<uint16_t>(~kFlagHash);
  header.payload_hash = 0;
  const size_t at = buffer_.size();
  buffer_.resize(at + kHeaderBytes + Padded(payload.size()));  // new bytes are zeros: the padding
  EncodeHeader(header, buffer_.data() + at);
  if (!payload.empty()) std::memcpy(buffer_.data() + at + kHeaderBytes, payload.data(), payload.size());
  ++count_;
}

std::pair<FrameHeader, std::vector<std::byte>> BatchBuilder::Take() {
  FrameHeader header;
  header.type = FrameType::kBatch;
  header.aux = count_;
  header.payload_bytes = static_cast<uint32_t>(buffer_.size());
  header.total_bytes = buffer_.size();
  count_ = 0;
  return {header, std::exchange(buffer_, {})};
}

void BatchBuilder::Recycle(std::vector<std::byte> buffer) {
  if (count_ != 0 || buffer.capacity() <= buffer_.capacity()) return;
  buffer.clear();
  buffer_ = std::move(buffer);
}

absl::Status ForEachInBatch(const FrameHeader& outer, ConstBytes payload,
                            const std::function<void(const FrameHeader&, ConstBytes)>& fn) {
  if (outer.slot != 0 || outer.stripe_offset != 0 || outer.total_bytes != payload.size())
    return absl::InvalidArgumentError(absl::StrCat("a batch must come whole and without a slot: ", DebugString(outer)));
  uint32_t count = 0;
  size_t at = 0;
  while (at < payload.size()) {
    const std::string where = absl::StrCat("batch, frame ", count, " at byte ", at);
    if (payload.size() - at < kHeaderBytes)
      return absl::InvalidArgumentError(absl::StrCat(where, ": no room for a header"));
    absl::StatusOr<FrameHeader> inner = DecodeHeader(payload.data() + at);
    if (!inner.ok())
      return absl::Status(inner.status().code(), absl::StrCat(where, ": ", inner.status().message()));
    at += kHeaderBytes;
    if (inner->type == FrameType::kBatch || TransportsOwn(inner->type) || inner->has(kFlagHash))
      return absl::InvalidArgumentError(absl::StrCat(where, ": may not be in a batch: ", DebugString(*inner)));
    if (Padded(inner->payload_bytes) > payload.size() - at)
      return absl::InvalidArgumentError(absl::StrCat(where, ": its payload is cut off: ", DebugString(*inner)));
    for (size_t i = at + inner->payload_bytes; i < at + Padded(inner->payload_bytes); ++i)
      if (payload[i] != std::byte{0}) return absl::InvalidArgumentError(absl::StrCat(where, ": padding is not zero"));
    if (count++ == outer.aux)
      return absl::InvalidArgumentError(absl::StrCat(where, ": the batch was to hold ", outer.aux, " frames"));
    fn(*inner, payload.subspan(at, inner->payload_bytes));
    at += Padded(inner->payload_bytes);
  }
  if (count != outer.aux)
    return absl::InvalidArgumentError(
        absl::StrCat("a batch was to hold ", outer.aux, " frames and holds ", count));
  return absl::OkStatus();
}

}  // namespace sluice::transport
