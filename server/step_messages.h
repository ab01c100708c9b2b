// The payloads of PARTIAL and VERDICT (docs/wire.md, "A step's verdict").
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace sluice::server {

inline constexpr uint32_t kPhaseNorm = 0;    // one value: the sum of squares of the reduced gradient
inline constexpr uint32_t kPhaseLayers = 1;  // two: the sums of squares of the parameters and of the update

inline constexpr uint32_t kRecordNonfinite = 1;  // the reduced gradient has a NaN or an infinity
inline constexpr uint32_t kRecordSkip = 2;       // a worker asked for the step to be skipped
// Said to a new coordinator: this partition has applied the step. The value is the verdict's: scale (with SKIP: it was
// skipped), in phase 1 the tensor's trust ratio.
inline constexpr uint32_t kRecordDecided = 4;

struct StepRecord {
  uint32_t partition = 0;
  uint32_t flags = 0;
  double values[2] = {0, 0};
};

struct Verdict {
  bool skip = false;
  uint32_t rate_bits = 0;                          // fp32 bits of this step's rate
  double scale = 1.0;                              // the gradient is multiplied by it
  std::vector<std::pair<uint32_t, double>> trust;  // phase 1: tensor, trust ratio; ascending

  double TrustOf(uint32_t tensor) const;           // 1 if not named
};

inline uint32_t ValuesOfPhase(uint32_t phase) { return phase == kPhaseLayers ? 2 : 1; }

// In pieces of at most max_bytes, each a payload of its own (the coordinator merges them).
std::vector<std::vector<std::byte>> EncodePartial(const std::vector<StepRecord>& records, uint32_t phase,
                                                  size_t max_bytes);
absl::StatusOr<std::vector<StepRecord>> DecodePartial(ConstBytes payload, uint32_t phase);

std::vector<std::byte> EncodeVerdict(const Verdict& verdict);
absl::StatusOr<Verdict> DecodeVerdict(ConstBytes payload);

// Size of a verdict that names this many tensors.
size_t VerdictBytes(size_t tensors);

}  // namespace sluice::server
