// How well scores tell clicks from the rest: the area under the ROC curve (AUC) and the logarithmic loss.
//
// AUC is the share of pairs of a positive and a negative example in which the positive one has the larger score; equal
// scores count one half. It is exact by sorting, where one process has all scores, or from a histogram of which every
// worker fills its own and whose counts are summed: then with a bound on what the rounding to buckets may have changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::worker {

// labels: 1 is positive, anything else negative. INVALID_ARGUMENT if there are not both, or if a score is NaN.
absl::StatusOr<double> ExactAuc(std::span<const float> scores, std::span<const float> labels);

// Counts of scores in buckets of equal width from `low` to `high`; scores beyond fall into the first or last one.
class AucHistogram {
 public:
  // For logits: probabilities from 6e-6 to 1 - 6e-6 are told apart by steps of 0.006 in the logit.
  AucHistogram() : AucHistogram(-12, 12, 4096) {}
  // low < high, buckets > 0.
  AucHistogram(double low, double high, size_t buckets);

  void Add(float score, bool positive);
  void Add(std::span<const float> scores, std::span<const float> labels);
  // Adds another one's counts. INVALID_ARGUMENT if that one has other buckets.
  absl::Status Merge(const AucHistogram& other);

  // Negatives of all buckets, then positives of all buckets: what workers sum up. Set with as many as counts() has.
  std::span<const uint64_t> counts() const { return counts_; }
  absl::Status SetCounts(std::span<const uint64_t> counts);

  uint64_t positives() const;
  uint64_t negatives() const;
  uint64_t nan() const { return nan_; }  // scores that are in no bucket; not among the counts

  struct Area {
    double auc = 0;
    double error = 0;  // the exact AUC lies in auc ± error
  };
  // Pairs within one bucket count one half: the exact AUC may count each of them as 0 or as 1. INVALID_ARGUMENT if there
  // are not both kinds.
  absl::StatusOr<Area> Auc() const;

 private:
  double low_, high_;
  size_t buckets_;
  std::vector<uint64_t> counts_;
  uint64_t nan_ = 0;
};

// 1 / (1 + exp(-logit)), without overflow.
double Sigmoid(double logit);

// -log of the probability that the model gave to the label. Probabilities are clamped to [epsilon, 1 - epsilon], so that
// one certain mistake does not make a whole evaluation infinite.
double LogLoss(double probability, bool positive, double epsilon = 1e-15);
// The same from the logit, exact where the probability would round to 0 or 1; logits are clamped to ±limit.
double LogLossOfLogit(double logit, bool positive, double limit = 35);
// The mean over examples, in the order of base/fixed_sum.h. Labels as in ExactAuc. 0 if there is none.
double MeanLogLossOfLogits(std::span<const float> logits, std::span<const float> labels, double limit = 35);

}  // namespace sluice::worker
