#include "server/coordinator.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/math/reduce.h"

namespace sluice::server {

const Verdict* Coordinator::Find(uint64_t step, uint32_t phase) const {
  const auto it = decided_.find({step, phase});
  return it == decided_.end() ? nullptr : &it->second;
}

void Coordinator::SetLayout(std::vector<uint32_t> tensor_of) {
  tensor_of_ = std::move(tensor_of);
  wanted_ = tensor_of_.size() - static_cast<size_t>(std::ranges::count(tensor_of_, kNoTensor));
}

absl::StatusOr<std::vector<Coordinator::Sender>> Coordinator::Add(Sender sender, uint64_t step, uint32_t phase,
                                                                  std::span<const StepRecord> records) {
  const Key key{step, phase};
  if (decided_.contains(key)) return std::vector<Sender>{sender};
  if (!decided_.empty() && key < decided_.rbegin()->first) return std::vector<Sender>{};   // long decided: a late repeat
  if (!open_.empty() && step >= open_.begin()->first.first + kMostSteps) {
    return absl::FailedPreconditionError(
        absl::StrCat("a record of step ", step, " phase ", phase, " came while ", WaitingFor(),
                     "; with clipping, skipping or a layer-wise optimizer every tensor is pushed in every step"));
  }
  Gather& gather = open_[key];
  gather.records.resize(std::max(gather.records.size(), tensor_of_.size()));
  gather.senders.insert(sender);
  for (const StepRecord& record : records) {
    // A partition that this plan does not have: the owner's plan is newer, and it asks again.
    if (record.partition >= gather.records.size() || !Counts(record.partition)) continue;
    if (gather.records[record.partition].has_value()) continue;
    gather.records[record.partition] = record;
    ++gather.have;
  }
  if (gather.have < wanted_) return std::vector<Sender>{};
  decided_[key] = Decide(key, gather);
  std::erase_if(decided_, [&](const auto& entry) { return entry.first.first + 2 <= step; });
  const std::vector<Sender> senders(gather.senders.begin(), gather.senders.end());
  open_.erase(open_.begin(), open_.upper_bound(key));
  return senders;
}

void Coordinator::Forget(Sender sender) {
  for (auto& [key, gather] : open_) gather.senders.erase(sender);
}

Verdict Coordinator::Decide(const Key& key, const Gather& gather) const {
  const auto& records = gather.records;
  Verdict verdict;
  verdict.rate_bits = rules_.rate_bits(key.first);
  if (key.second == kPhaseNorm) {
    double sum = 0;
    for (const auto& record : records) {
      if (!record.has_value()) continue;   // a table's
      if ((record->flags & kRecordDecided) != 0) {
        verdict.skip = (record->flags & kRecordSkip) != 0;
        verdict.scale = record->values[0];
        return verdict;
      }
      verdict.skip |= record->flags != 0;
      sum += record->values[0];
    }
    verdict.skip |= !std::isfinite(sum);
    if (!verdict.skip) verdict.scale = ClipScale(sum, rules_.clip_norm);
    return verdict;
  }
  // Phase 1 goes with the scale of phase 0.
  if (const Verdict* norm = Find(key.first, kPhaseNorm)) verdict.scale = norm->scale;
  std::map<uint32_t, std::pair<double, double>> sums;
  std::map<uint32_t, double> decided;   // trust ratios
  for (size_t p = 0; p < records.size(); ++p) {
    if (!records[p].has_value()) continue;
    if ((records[p]->flags & kRecordDecided) != 0) decided[tensor_of_[p]] = records[p]->values[0];
    auto& [parameters, update] = sums[tensor_of_[p]];
    parameters += records[p]->values[0];
    update += records[p]->values[1];
  }
  for (const auto& [tensor, sum] : sums) {
    const auto known = decided.find(tensor);
    verdict.trust.emplace_back(tensor, known != decided.end() ? known->second
                                                              : rules_.trust(tensor, sum.first, sum.second));
  }
  return verdict;
}

std::string Coordinator::WaitingFor() const {
  if (open_.empty()) return "";
  const auto& [key, gather] = *open_.begin();
  size_t first = 0;
  while (first < gather.records.size() && (gather.records[first].has_value() || !Counts(first))) ++first;
  return absl::StrCat("step ", key.first, " phase ", key.second, " waits for partition ", first, " and ",
                      wanted_ - gather.have - 1, " more");
}

}  // namespace sluice::server
