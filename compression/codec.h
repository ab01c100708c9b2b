// Gradient codecs: encode with error feedback, decode, decode-and-add. Pure functions of their arguments: no clock, no
// state, no threads; an object may be used from several threads at once.
//
// Error feedback (Seide et al. 2014; Karimireddy et al. 2019, algorithm 1): with p = g + scale * e the codec writes
// C(p) and the new residual e' = p - decode(C(p)). e' goes to another buffer than e, so that a skipped step keeps e.
// The residual is in gradient units; `residual_scale` is old rate / new rate when the learning rate changed.
//
// All arithmetic is fp32 with one rounding an operation, in a fixed order: every implementation writes the same bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "compression/draws.h"

namespace sluice::compression {

// On the wire (FrameHeader::codec); never renumber.
enum class CodecId : uint16_t {
  kNone = 0, kFp16 = 1, kBf16 = 2, kInt8 = 3, kTopK = 4, kInt4 = 5, kOneBit = 6, kQsgd = 7, kMxfp8 = 8, kSparse = 9,
  kLowRank = 10, kNvfp4 = 11
};

struct EncodeInput {
  std::span<const float> gradient;
  std::span<const float> residual;   // empty = zeros
  float residual_scale = 1.0f;
  std::span<float> residual_out;     // empty = not wanted; may not overlap the inputs
  RandomKey random;                  // for codecs that draw: the same key gives the same bytes
  ConstBytes state;                  // what the last round left (Codec::StateBytes); empty = nothing yet
  MutableBytes state_out;            // for the next round; empty = not wanted. May not overlap state
};

class Codec {
 public:
  virtual ~Codec() = default;
  virtual CodecId id() const = 0;
  virtual std::string name() const = 0;   // as in configuration, e.g. "topk:0.01"
  virtual bool lossless() const = 0;
  virtual bool biased() const = 0;        // must not be used without error feedback unless asked for by name
  // Whether error feedback serves it. Not where nothing is lost, nor where the error is unbiased but may exceed the value:
  // no bound holds for a residual then. (Encode writes one all the same if asked.)
  virtual bool uses_residual() const { return !lossless(); }
  // What Encode(input) took for the gradient: after it, what momentum correction made of it.
  virtual std::span<const float> GradientOf(const EncodeInput& input) const { return input.gradient; }
  virtual bool random() const { return false; }   // EncodeInput::random matters

  // What the encoder of a partition of n elements keeps from round to round beside the residual, as flat bytes: 0 for most.
  // Like the residual it goes from one buffer to another, so that a skipped step keeps the old one; it is saved and
  // restored with the residual, and any bytes of that size are taken (bad ones are as good as none).
  virtual size_t StateBytes(uint64_t /*n*/) const { return 0; }

  // Largest encoding of n elements, in bytes; exact for codecs of fixed size. No overflow for any n < 2^48.
  virtual uint64_t MaxEncodedBytes(uint64_t n) const = 0;

  // Writes to out (at least MaxEncodedBytes) and returns the bytes used. The gradient must be finite (CheckFinite).
  // Fails only on size mismatches (INVALID_ARGUMENT); nothing is written to residual_out then.
  virtual absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const = 0;

  // Checks an untrusted encoding of n elements without decoding it. INVALID_ARGUMENT says what is wrong and where.
  virtual absl::Status Validate(ConstBytes in, size_t n) const = 0;

  // Untrusted input is allowed: never reads or writes out of bounds; on error out's content is unspecified (Decode) or
  // partly added (DecodeAdd): Validate first where that matters. Each input byte is read once (it may lie in memory
  // that a peer can change).
  virtual absl::Status Decode(ConstBytes in, std::span<float> out) const = 0;
  virtual absl::Status DecodeAdd(ConstBytes in, std::span<float> accumulator) const = 0;
};

// Codec for a name from configuration: as KnownCodecs lists them. INVALID_ARGUMENT names the nearest known one.
// "A+B" is a chain: A picks elements (topk, randk, threshold), B encodes their values.
// columns: of the tensor, a partition of which is a matrix with that many (compression/matrix_shape.h), for lowrank's encoder:
// without them it sends elements as they are. No other codec looks at them.
absl::StatusOr<std::unique_ptr<Codec>> MakeCodec(std::string_view name, uint64_t columns = 0);

// Decoder for an id from the wire (parameters that only the encoder needs are irrelevant); null if unknown.
const Codec* DecoderFor(uint16_t id);

std::vector<std::string> KnownCodecs();  // one line of help each

// Index of the first NaN or infinity, or values.size().
size_t FirstNonfinite(std::span<const float> values);

}  // namespace sluice::compression
