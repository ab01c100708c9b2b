#include "worker/model/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/fixed_sum.h"

namespace sluice::worker {
namespace {

absl::Status OneKind(uint64_t positives, uint64_t negatives) {
  return absl::InvalidArgumentError(absl::StrCat("there is no AUC of ", positives, " positive and ", negatives,
                                                 " negative examples; it needs some of both"));
}

}  // namespace

absl::StatusOr<double> ExactAuc(std::span<const float> scores, std::span<const float> labels) {
  if (scores.size() != labels.size()) {
    return absl::InvalidArgumentError(absl::StrCat(scores.size(), " scores for ", labels.size(), " labels"));
  }
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i])) return absl::InvalidArgumentError(absl::StrCat("the score of example ", i, " is NaN"));
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });

  uint64_t positives = 0, negatives = 0;
  double twice_won = 0;  // whole numbers; exact up to 2^53
  for (size_t begin = 0; begin < order.size();) {
    uint64_t tied[2] = {};
    size_t end = begin;
    for (; end < order.size() && scores[order[end]] == scores[order[begin]]; ++end) ++tied[labels[order[end]] == 1];
    twice_won += static_cast<double>(tied[1]) * static_cast<double>(2 * negatives + tied[0]);
    negatives += tied[0];
    positives += tied[1];
    begin = end;
  }
  if (positives == 0 || negatives == 0) return OneKind(positives, negatives);
  return twice_won / 2 / static_cast<double>(positives) / static_cast<double>(negatives);
}

AucHistogram::AucHistogram(double low, double high, size_t buckets)
    : low_(low), high_(high), buckets_(buckets), counts_(2 * buckets) {}

void AucHistogram::Add(float score, bool positive) {
  if (std::isnan(score)) {
    ++nan_;
    return;
  }
  const double place = (score - low_) / (high_ - low_) * static_cast<double>(buckets_);
  const size_t bucket = place <= 0                               ? 0
                        : place >= static_cast<double>(buckets_) ? buckets_ - 1
                                                                 : static_cast<size_t>(place);
  ++counts_[(positive ? buckets_ : 0) + bucket];
}

void AucHistogram::Add(std::span<const float> scores, std::span<const float> labels) {
  for (size_t i = 0; i < scores.size(); ++i) Add(scores[i], labels[i] == 1);
}

absl::Status AucHistogram::Merge(const AucHistogram& other) {
  if (other.low_ != low_ || other.high_ != high_ || other.buckets_ != buckets_) {
    return absl::InvalidArgumentError(absl::StrCat("cannot add ", other.buckets_, " buckets from ", other.low_, " to ",
                                                   other.high_, " to ", buckets_, " from ", low_, " to ", high_));
  }
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  nan_ += other.nan_;
  return absl::OkStatus();
}

absl::Status AucHistogram::SetCounts(std::span<const uint64_t> counts) {
  if (counts.size() != counts_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(counts.size(), " counts for two times ", buckets_, " buckets of an AUC histogram"));
  }
  std::copy(counts.begin(), counts.end(), counts_.begin());
  return absl::OkStatus();
}

uint64_t AucHistogram::negatives() const {
  return std::accumulate(counts_.begin(), counts_.begin() + static_cast<ptrdiff_t>(buckets_), uint64_t{0});
}

uint64_t AucHistogram::positives() const {
  return std::accumulate(counts_.begin() + static_cast<ptrdiff_t>(buckets_), counts_.end(), uint64_t{0});
}

absl::StatusOr<AucHistogram::Area> AucHistogram::Auc() const {
  const double all_positives = static_cast<double>(positives()), all_negatives = static_cast<double>(negatives());
  if (all_positives == 0 || all_negatives == 0) return OneKind(positives(), negatives());
  double won = 0, tied = 0, below = 0;
  for (size_t bucket = 0; bucket < buckets_; ++bucket) {
    const double negative = static_cast<double>(counts_[bucket]);
    const double positive = static_cast<double>(counts_[buckets_ + bucket]);
    won += positive * below;
    tied += positive * negative;
    below += negative;
  }
  const double pairs = all_positives * all_negatives;
  return Area{.auc = (won + tied / 2) / pairs, .error = tied / 2 / pairs};
}

double Sigmoid(double logit) {
  const double e = std::exp(-std::abs(logit));
  return logit >= 0 ? 1 / (1 + e) : e / (1 + e);
}

double LogLoss(double probability, bool positive, double epsilon) {
  const double p = std::clamp(probability, epsilon, 1 - epsilon);
  return -(positive ? std::log(p) : std::log1p(-p));
}

double LogLossOfLogit(double logit, bool positive, double limit) {
  const double z = std::clamp(logit, -limit, limit);
  return std::max(z, 0.0) - (positive ? z : 0) + std::log1p(std::exp(-std::abs(z)));
}

double MeanLogLossOfLogits(std::span<const float> logits, std::span<const float> labels, double limit) {
  if (logits.empty()) return 0;
  const double sum = internal::FixedSum(
      logits.size(), [&](size_t i) { return LogLossOfLogit(logits[i], labels[i] == 1, limit); });
  return sum / static_cast<double>(logits.size());
}

}  // namespace sluice::worker
