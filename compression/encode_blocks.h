// What all encoders share: checks of the arguments, and p = g + scale * e block by block, so that a block stays in the
// first-level cache from the gradient to its residual and every byte moves once between memory and core.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/stream_copy.h"
#include "compression/codec.h"
#include "compression/compensate.h"

namespace sluice::compression {

// Small enough that memory hardly rests while a block is encoded; a multiple of all codecs' blocks.
inline constexpr size_t kCompensateBlock = 256;

inline absl::Status CheckEncodeArguments(const Codec& codec, const EncodeInput& input, MutableBytes out) {
  const size_t n = input.gradient.size();
  if (!input.residual.empty() && input.residual.size() != n)
    return absl::InvalidArgumentError(
        absl::StrCat(codec.name(), ": the residual has ", input.residual.size(), " elements, the gradient ", n));
  if (!input.residual_out.empty() && input.residual_out.size() != n)
    return absl::InvalidArgumentError(absl::StrCat(codec.name(), ": the new residual has ", input.residual_out.size(),
                                                   " elements, the gradient ", n));
  if (const size_t state = codec.StateBytes(n); (!input.state.empty() && input.state.size() != state) ||
                                                (!input.state_out.empty() && input.state_out.size() != state))
    return absl::InvalidArgumentError(absl::StrCat(codec.name(), ": a state of ", input.state.size(), " bytes, a new one of ",
                                                   input.state_out.size(), "; ", n, " elements have ", state));
  if (out.size() < codec.MaxEncodedBytes(n))
    return absl::InvalidArgumentError(absl::StrCat(codec.name(), ": room for ", out.size(), " bytes, ", n,
                                                   " elements may take ", codec.MaxEncodedBytes(n)));
  return absl::OkStatus();
}

inline absl::Status WrongSize(const Codec& codec, size_t got, size_t n, uint64_t expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(codec.name(), ": an encoding of ", n, " elements has ", expected, " bytes, not ", got));
}

// Scales of blocks, fp32, at the head of `in`. As bits: negative ones, infinities and NaNs lie above.
inline absl::Status CheckScales(const Codec& codec, ConstBytes in, size_t blocks, float largest) {
  for (size_t b = 0; b < blocks; ++b)
    if (LoadLe<uint32_t>(in.data() + 4 * b) > std::bit_cast<uint32_t>(largest))
      return absl::InvalidArgumentError(
          absl::StrCat(codec.name(), ": scale ", b, " of ", blocks, " is negative, too large or not finite"));
  return absl::OkStatus();
}

// p of elements [begin, begin + n).
inline void Compensate(const EncodeInput& input, size_t begin, size_t n, float* p) {
  const float* e = input.residual.empty() ? nullptr : input.residual.data() + begin;
  Compensate(input.gradient.data() + begin, e, input.residual_scale, n, p);
}

// From so many elements on, a new residual goes past the cache: nobody looks at it before the next round, and an ordinary store
// would read each line before it is overwritten, a quarter of what an encoder moves.
inline constexpr size_t kStreamFrom = 64 << 10;
inline constexpr size_t kLineFloats = 16;   // of a line of 64 bytes

// Elements before the first line of `out`.
inline size_t UpToLine(const float* out) {
  return (kLineFloats - reinterpret_cast<uintptr_t>(out) / sizeof(float) % kLineFloats) % kLineFloats;
}

// Writes all of p and calls visit(begin, n, p of the block) for each block of it.
template <typename Visit>
void CompensateAll(const EncodeInput& input, float* p, Visit visit) {
  const size_t n = input.gradient.size();
  for (size_t begin = 0; begin < n; begin += kCompensateBlock) {
    const size_t length = std::min(kCompensateBlock, n - begin);
    Compensate(input, begin, length, p + begin);
    visit(begin, length, p + begin);
  }
}

// The new residual, if it is wanted, becomes p; calls visit(begin, n, p of the block) for each block, of any length up to
// kCompensateBlock: the first one ends where lines of the new residual begin.
template <typename Visit>
void CompensateInBlocks(const EncodeInput& input, Visit visit) {
  const size_t n = input.gradient.size();
  if (!input.residual_out.empty() && n < kStreamFrom) return CompensateAll(input, input.residual_out.data(), visit);
  const bool stream = !input.residual_out.empty();
  size_t next = UpToLine(input.residual_out.data());
  if (next == 0) next = kCompensateBlock;
  alignas(64) float block[kCompensateBlock];
  for (size_t begin = 0; begin < n; begin = next, next += kCompensateBlock) {
    const size_t length = std::min(next, n) - begin;
    if (stream)
      CompensateAndStream(input.gradient.data() + begin, input.residual.empty() ? nullptr : input.residual.data() + begin,
                          input.residual_scale, length, block, input.residual_out.data() + begin);
    else
      Compensate(input, begin, length, block);
    visit(begin, length, block);
  }
  if (stream) StreamFence();
}

// Calls encode(begin, n, p) for each block of kCompensateBlock elements (the last may be shorter). encode reads p and
// leaves the residual there.
template <typename EncodeBlock>
void EncodeInBlocks(const EncodeInput& input, EncodeBlock encode) {
  const size_t n = input.gradient.size();
  float* const out = input.residual_out.data();
  const bool stream = out != nullptr && n >= kStreamFrom;
  // Only whole lines go past the cache: what a block leaves of one lies before the next block's elements.
  alignas(64) float buffer[kLineFloats + kCompensateBlock];
  size_t written = stream ? UpToLine(out) : 0;
  for (size_t begin = 0; begin < n; begin += kCompensateBlock) {
    const size_t length = std::min(kCompensateBlock, n - begin);
    float* p = out == nullptr || stream ? buffer + kLineFloats : out + begin;
    Compensate(input, begin, length, p);
    encode(begin, length, p);
    if (!stream) continue;
    if (begin == 0) std::memcpy(out, p, written * sizeof(float));
    const float* from = p + written - begin;   // elements [written, begin + length) are to be written
    const size_t left = (begin + length - written) % kLineFloats, lines = begin + length - written - left;
    StreamPiece(AsBytes({from, lines}), AsWritableBytes({out + written, lines}));
    written += lines;
    std::memmove(p - left, p + length - left, left * sizeof(float));
    if (begin + length == n) std::memcpy(out + written, p - left, left * sizeof(float));
  }
  if (stream) StreamFence();
}

}  // namespace sluice::compression
