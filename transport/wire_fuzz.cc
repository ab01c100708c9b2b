// libFuzzer's entry: what a peer can send before anything else is known about it.
#include <cstddef>
#include <cstdint>

#include "transport/hello.h"
#include "transport/wire.h"

namespace {

// A byte sum of what was delivered, so that a sanitizer sees a payload that lies outside the input.
uint64_t Touch(sluice::ConstBytes bytes) {
  uint64_t sum = 0;
  for (const std::byte b : bytes) sum += std::to_integer<uint64_t>(b);
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;             // NOLINT
  using namespace sluice::transport;  // NOLINT
  const ConstBytes input{reinterpret_cast<const std::byte*>(data), size};
  volatile uint64_t sink = 0;
  if (absl::StatusOr<Hello> hello = DecodeHello(input); hello.ok()) sink = DebugString(*hello).size();

  // The input as a batch's payload, the number of frames by its last byte. The header check would stop nearly every
  // input at once, so frames are re-checked with their own fields written back.
  FrameHeader outer;
  outer.type = FrameType::kBatch;
  outer.total_bytes = size;
  outer.aux = size == 0 ? 0 : data[size - 1];
  (void)ForEachInBatch(outer, input, [&](const FrameHeader&, ConstBytes payload) { sink = Touch(payload); });

  if (size >= kHeaderBytes) {
    if (absl::StatusOr<FrameHeader> header = DecodeHeader(input.data()); header.ok()) {
      sink = DebugString(*header).size();
      std::byte again[kHeaderBytes];
      EncodeHeader(*header, again);
      if (!DecodeHeader(again).ok()) __builtin_trap();
      if (header->type == FrameType::kBatch)
        (void)ForEachInBatch(*header, input.subspan(kHeaderBytes),
                             [&](const FrameHeader&, ConstBytes payload) { sink = Touch(payload); });
    }
    // The same fields under a good check: reaches what lies behind it.
    std::vector<std::byte> checked(input.begin(), input.end());
    for (size_t at = 0; at + kHeaderBytes <= checked.size();) {
      StoreLe(checked.data() + at, kMagic);
      StoreLe(checked.data() + at + 4, kWireVersion);
      StoreLe(checked.data() + at + 120, HashBytes({checked.data() + at, 120}));
      absl::StatusOr<FrameHeader> header = DecodeHeader(checked.data() + at);
      if (!header.ok()) break;
      sink = DebugString(*header).size();
      at += kHeaderBytes;
      const size_t padded = (size_t{header->payload_bytes} + 7) & ~size_t{7};
      if (padded > checked.size() - at) break;
      at += padded;
    }
    outer.total_bytes = checked.size();
    (void)ForEachInBatch(outer, checked, [&](const FrameHeader&, ConstBytes payload) { sink = Touch(payload); });
  }
  (void)sink;
  return 0;
}
