#include "worker/train/sparse_evaluation.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/fixed_sum.h"
#include "base/status_macros.h"
#include "transport/wire.h"

namespace sluice::worker {
namespace {

enum Field : size_t { kExamples, kLossBits, kHash, kNan, kCounts };

}  // namespace

void SparseScores::Add(std::span<const float> outputs, std::span<const float> labels) {
  examples += outputs.size();
  if (logistic) {
    histogram.Add(outputs, labels);
    loss_sum += MeanLogLossOfLogits(outputs, labels) * static_cast<double>(outputs.size());
  } else {
    loss_sum += internal::FixedSum(outputs.size(), [&](size_t i) {
      const double error = static_cast<double>(outputs[i]) - static_cast<double>(labels[i]);
      return error * error / 2;
    });
  }
}

size_t SparseScores::Numbers() { return kCounts + AucHistogram().counts().size(); }

std::vector<uint64_t> SparseScores::ToNumbers() const {
  std::vector<uint64_t> numbers(Numbers());
  numbers[kExamples] = examples;
  numbers[kLossBits] = std::bit_cast<uint64_t>(loss_sum);
  numbers[kHash] = hash;
  numbers[kNan] = histogram.nan();
  for (size_t i = 0; i < histogram.counts().size(); ++i) numbers[kCounts + i] = histogram.counts()[i];
  return numbers;
}

absl::StatusOr<SparseEvaluation> Together(bool logistic, const std::vector<std::span<const uint64_t>>& parts) {
  SparseEvaluation all;
  AucHistogram sum;
  double loss = 0;
  std::vector<std::byte> hashes;
  bool hashed = false;
  for (const std::span<const uint64_t> part : parts) {
    if (part.empty()) continue;
    if (part.size() < SparseScores::Numbers()) {
      return absl::InternalError(
          absl::StrCat("an evaluation of ", part.size(), " numbers instead of ", SparseScores::Numbers()));
    }
    AucHistogram one;
    SLUICE_RETURN_IF_ERROR(one.SetCounts(part.subspan(kCounts, one.counts().size())));
    SLUICE_RETURN_IF_ERROR(sum.Merge(one));
    all.examples += part[kExamples];
    all.not_numbers += part[kNan];
    loss += std::bit_cast<double>(part[kLossBits]);
    hashes.resize(hashes.size() + sizeof(uint64_t));
    StoreLe<uint64_t>(hashes.data() + hashes.size() - sizeof(uint64_t), part[kHash]);
    hashed = hashed || part[kHash] != 0;
  }
  if (all.examples > 0) all.loss = loss / static_cast<double>(all.examples);
  if (hashed) all.hash = transport::HashBytes(hashes);
  if (logistic && sum.positives() > 0 && sum.negatives() > 0) {
    SLUICE_ASSIGN_OR_RETURN(const AucHistogram::Area area, sum.Auc());
    all.auc = area.auc;
    all.auc_error = area.error;
  }
  return all;
}

}  // namespace sluice::worker
