// libFuzzer's entry: encodings from a stranger. The first byte chooses the codec, the next two the number of elements.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "compression/codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using sluice::compression::Codec;
  if (size < 3) return 0;
  const Codec* codec = sluice::compression::DecoderFor(data[0] % 12);
  if (codec == nullptr) return 0;
  const size_t n = data[1] | size_t{data[2]} << 8;
  // A copy of its own, so that the address sanitizer sees every byte read beyond the end.
  const std::vector<std::byte> payload(reinterpret_cast<const std::byte*>(data) + 3,
                                       reinterpret_cast<const std::byte*>(data) + size);
  const bool valid = codec->Validate(payload, n).ok();
  std::vector<float> decoded(n), sum(n, 0.0f);
  const bool decodes = codec->Decode(payload, decoded).ok();
  const bool adds = codec->DecodeAdd(payload, sum).ok();
  // What is valid decodes, both ways to the same finite values.
  if (valid && !(decodes && adds)) __builtin_trap();
  if (decodes != adds) __builtin_trap();
  if (!valid || codec->lossless()) return 0;
  for (size_t i = 0; i < n; ++i)
    if (!std::isfinite(decoded[i]) || decoded[i] != sum[i]) __builtin_trap();
  return 0;
}
