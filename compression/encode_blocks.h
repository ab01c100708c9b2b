// What all encoders share: checks of the arguments, and p = g + scale * e block by block, so that a block stays in the
// first-level cache from the gradient to its residual and every byte moves once between memory and core.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/stream_copy.h"
#include "compression/codec.h"
#include "compression/half.h"

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

// p[i] = g[i] + scale * e[i] for elements [begin, begin + n), held to the finite range of fp32. Finite arguments give a
// finite p, hence a finite residual, for ever. A missing residual is zeros, to the bit: -0 becomes +0 either way.
inline void Compensate(const EncodeInput& input, size_t begin, size_t n, float* __restrict p) {
  const float* __restrict g = input.gradient.data() + begin;
  if (input.residual.empty()) {
    for (size_t i = 0; i < n; ++i) p[i] = g[i] + 0.0f;
    return;
  }
  const float* __restrict e = input.residual.data() + begin;
  const float scale = input.residual_scale;
  for (size_t i = 0; i < n; ++i) p[i] = Saturate(g[i] + scale * e[i], std::numeric_limits<float>::max());
}

// Asks for the block after [begin, begin + kCompensateBlock), so that it comes from memory while this one is encoded.
inline void PrefetchNext(const EncodeInput& input, size_t begin) {
  if (begin + 2 * kCompensateBlock > input.gradient.size()) return;
  const float* g = input.gradient.data() + begin + kCompensateBlock;
  for (size_t i = 0; i < kCompensateBlock; i += 16) __builtin_prefetch(g + i);
  if (input.residual.empty()) return;
  const float* e = input.residual.data() + begin + kCompensateBlock;
  for (size_t i = 0; i < kCompensateBlock; i += 16) __builtin_prefetch(e + i);
}

// Writes all of p and calls visit(begin, n, p of the block) for each block of it.
template <typename Visit>
void CompensateAll(const EncodeInput& input, float* p, Visit visit) {
  const size_t n = input.gradient.size();
  for (size_t begin = 0; begin < n; begin += kCompensateBlock) {
    const size_t length = std::min(kCompensateBlock, n - begin);
    Compensate(input, begin, length, p + begin);
    PrefetchNext(input, begin);
    visit(begin, length, p + begin);
  }
}

// Calls encode(begin, n, p) for each block of kCompensateBlock elements (the last may be shorter). encode reads p and
// leaves the residual there. A large residual goes past the cache: nobody looks at it before the next round, and an ordinary
// store would read each line before it is overwritten, a quarter of what an encoder moves.
template <typename EncodeBlock>
void EncodeInBlocks(const EncodeInput& input, EncodeBlock encode) {
  constexpr size_t kStreamFrom = 64 << 10;   // elements
  const size_t n = input.gradient.size();
  const bool wanted = !input.residual_out.empty(), stream = wanted && n >= kStreamFrom;
  alignas(64) float scratch[kCompensateBlock];
  for (size_t begin = 0; begin < n; begin += kCompensateBlock) {
    const size_t length = std::min(kCompensateBlock, n - begin);
    float* p = wanted && !stream ? input.residual_out.data() + begin : scratch;
    Compensate(input, begin, length, p);
    PrefetchNext(input, begin);
    encode(begin, length, p);
    if (stream) StreamPiece(AsBytes({p, length}), AsWritableBytes(input.residual_out.subspan(begin, length)));
  }
  if (stream) StreamFence();
}

}  // namespace sluice::compression
