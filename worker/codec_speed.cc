#include "worker/codec_speed.h"

#include <algorithm>
#include <chrono>

#include "base/philox.h"
#include "compression/codec.h"

namespace sluice::worker {
namespace {

constexpr size_t kElements = 256 << 10;
constexpr int kRepetitions = 3;

}  // namespace

std::vector<proto::CodecSpeed> MeasureCodecSpeeds(const std::vector<std::string>& codecs) {
  PhiloxRandom random(1);
  std::vector<float> gradient(kElements), residual(kElements), next(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    gradient[i] = random.Uniform() + random.Uniform() - 1;
    residual[i] = random.Uniform() + random.Uniform() - 1;
  }
  std::vector<proto::CodecSpeed> speeds;
  for (const std::string& name : codecs) {
    const auto codec = compression::MakeCodec(name);
    if (!codec.ok() || (*codec)->lossless()) continue;
    std::vector<std::byte> bytes((*codec)->MaxEncodedBytes(kElements));
    std::vector<std::byte> state, state_next((*codec)->StateBytes(kElements));
    double best = 0;
    for (int i = 0; i < kRepetitions; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      if (!(*codec)->Encode({.gradient = gradient, .residual = residual, .residual_out = next, .state = state,
                             .state_out = state_next}, bytes).ok())
        break;
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      state = state_next;
      if (took.count() > 0) best = std::max(best, kElements * sizeof(float) / took.count());
    }
    if (best == 0) continue;
    proto::CodecSpeed& speed = speeds.emplace_back();
    speed.set_codec(name);
    speed.set_bytes_per_second(static_cast<uint64_t>(best));
  }
  return speeds;
}

}  // namespace sluice::worker
