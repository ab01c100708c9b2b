#include "server/step_messages.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"

namespace sluice::server {
namespace {

constexpr uint32_t kVerdictApply = 1;
constexpr uint32_t kVerdictSkip = 2;
constexpr size_t kPartialHead = 8;
constexpr size_t kVerdictHead = 20;   // verdict, rate_bits, scale, count
constexpr size_t kTrustBytes = 16;

}  // namespace

double Verdict::TrustOf(uint32_t tensor) const {
  const auto it = std::lower_bound(trust.begin(), trust.end(), tensor,
                                   [](const auto& entry, uint32_t key) { return entry.first < key; });
  return it != trust.end() && it->first == tensor ? it->second : 1.0;
}

std::vector<std::vector<std::byte>> EncodePartial(const std::vector<StepRecord>& records, uint32_t phase,
                                                  size_t max_bytes) {
  const uint32_t values = ValuesOfPhase(phase);
  const size_t record_bytes = 8 + 8 * values;
  const size_t each = std::max<size_t>(1, (std::max(max_bytes, kPartialHead) - kPartialHead) / record_bytes);
  std::vector<std::vector<std::byte>> pieces;
  for (size_t begin = 0; begin < records.size(); begin += each) {
    const std::span<const StepRecord> part(&records[begin], std::min(each, records.size() - begin));
    std::vector<std::byte>& out = pieces.emplace_back(kPartialHead + part.size() * record_bytes);
    StoreLe<uint32_t>(&out[0], static_cast<uint32_t>(part.size()));
    StoreLe<uint32_t>(&out[4], values);
    std::byte* p = &out[kPartialHead];
    for (const StepRecord& record : part) {
      StoreLe(p, record.partition);
      StoreLe(p + 4, record.flags);
      for (uint32_t v = 0; v < values; ++v) StoreLe(p + 8 + 8 * v, record.values[v]);
      p += record_bytes;
    }
  }
  return pieces;
}

absl::StatusOr<std::vector<StepRecord>> DecodePartial(ConstBytes payload, uint32_t phase) {
  if (phase > kPhaseLayers) return absl::InvalidArgumentError(absl::StrCat("PARTIAL of unknown phase ", phase));
  const uint32_t values = ValuesOfPhase(phase);
  const size_t record_bytes = 8 + 8 * values;
  if (payload.size() < kPartialHead) {
    return absl::InvalidArgumentError(absl::StrCat("PARTIAL of ", payload.size(), " bytes is shorter than its head"));
  }
  const uint32_t count = LoadLe<uint32_t>(&payload[0]);
  const uint32_t named_values = LoadLe<uint32_t>(&payload[4]);
  if (named_values != values || payload.size() - kPartialHead != count * record_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("PARTIAL of phase ", phase, " names ", count, " records of ",
                                                   named_values, " values in ", payload.size(), " bytes"));
  }
  std::vector<StepRecord> records(count);
  const std::byte* p = payload.data() + kPartialHead;
  for (StepRecord& record : records) {
    record.partition = LoadLe<uint32_t>(p);
    record.flags = LoadLe<uint32_t>(p + 4);
    for (uint32_t v = 0; v < values; ++v) record.values[v] = LoadLe<double>(p + 8 + 8 * v);
    p += record_bytes;
  }
  return records;
}

std::vector<std::byte> EncodeVerdict(const Verdict& verdict) {
  std::vector<std::byte> out(VerdictBytes(verdict.trust.size()));
  StoreLe<uint32_t>(&out[0], verdict.skip ? kVerdictSkip : kVerdictApply);
  StoreLe<uint32_t>(&out[4], verdict.rate_bits);
  StoreLe<double>(&out[8], verdict.scale);
  StoreLe<uint32_t>(&out[16], static_cast<uint32_t>(verdict.trust.size()));
  std::byte* p = out.data() + kVerdictHead;
  for (const auto& [tensor, ratio] : verdict.trust) {
    StoreLe<uint32_t>(p, tensor);
    StoreLe<uint32_t>(p + 4, 0);
    StoreLe<double>(p + 8, ratio);
    p += kTrustBytes;
  }
  return out;
}

absl::StatusOr<Verdict> DecodeVerdict(ConstBytes payload) {
  if (payload.size() < kVerdictHead) {
    return absl::InvalidArgumentError(absl::StrCat("VERDICT of ", payload.size(), " bytes is shorter than its head"));
  }
  const uint32_t kind = LoadLe<uint32_t>(&payload[0]);
  const uint32_t count = LoadLe<uint32_t>(&payload[16]);
  if ((kind != kVerdictApply && kind != kVerdictSkip) || payload.size() - kVerdictHead != count * kTrustBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("VERDICT ", kind, " names ", count, " tensors in ", payload.size(), " bytes"));
  }
  Verdict verdict;
  verdict.skip = kind == kVerdictSkip;
  verdict.rate_bits = LoadLe<uint32_t>(&payload[4]);
  verdict.scale = LoadLe<double>(&payload[8]);
  verdict.trust.reserve(count);
  const std::byte* p = payload.data() + kVerdictHead;
  for (uint32_t i = 0; i < count; ++i, p += kTrustBytes) {
    verdict.trust.emplace_back(LoadLe<uint32_t>(p), LoadLe<double>(p + 8));
  }
  std::ranges::sort(verdict.trust);
  return verdict;
}

size_t VerdictBytes(size_t tensors) { return kVerdictHead + tensors * kTrustBytes; }

}  // namespace sluice::server
