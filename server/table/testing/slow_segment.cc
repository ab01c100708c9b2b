#include "server/table/testing/slow_segment.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "compression/half.h"
#include "compression/row_payload.h"
#include "server/table/testing/slow_row.h"

namespace sluice::server {
namespace {

// The sketch of admission.h.
class SlowSketch {
 public:
  uint32_t Sight(uint64_t id, uint32_t n) {  // the estimate
    if (counted_ >= 131072) {
      for (auto& [cell, count] : counts_) count /= 2;
      counted_ = 0;
    }
    counted_ += n;
    std::vector<std::pair<uint64_t, uint64_t>> cells;
    for (uint64_t k = 0; k < 4; ++k) cells.emplace_back(k, compression::MixId(id + k * 0x9E3779B97F4A7C15) % 262144);
    uint64_t least = 255;
    for (const auto& cell : cells) least = std::min(least, counts_[cell]);
    const uint64_t estimate = std::min<uint64_t>(least + n, 255);
    for (const auto& cell : cells) counts_[cell] = std::max(counts_[cell], estimate);
    return static_cast<uint32_t>(estimate);
  }

 private:
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> counts_;
  uint64_t counted_ = 0;
};

// The counters of hot_ids.h.
class SlowHot {
 public:
  void Sight(uint64_t id, uint64_t n) {
    if (!counts_.contains(id) && counts_.size() == 128) {
      auto least = counts_.begin();  // in order of ids: of equal counts, the smallest id
      for (auto it = counts_.begin(); it != counts_.end(); ++it)
        if (it->second < least->second) least = it;
      n += least->second;
      counts_.erase(least);
    }
    counts_[id] += n;
  }
  void Remove(uint64_t id) { counts_.erase(id); }
  std::vector<std::pair<uint64_t, uint64_t>> Top(size_t most) const {
    std::vector<std::pair<uint64_t, uint64_t>> top(counts_.begin(), counts_.end());
    std::stable_sort(top.begin(), top.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    top.resize(std::min(most, top.size()));
    return top;
  }

 private:
  std::map<uint64_t, uint64_t> counts_;
};

class SlowSegment final : public TableSegment {
 public:
  SlowSegment(const proto::TableSpec& spec, uint64_t most_rows) : spec_(spec), most_rows_(most_rows) {
    if (spec_.optimizer().kind().empty()) spec_.mutable_optimizer()->set_kind("sgd");
  }

  uint32_t dim() const override { return spec_.dim(); }

  void Read(std::span<const uint64_t> ids, std::span<float> out) override {
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto found = rows_.find(ids[i]);
      std::vector<float> values(spec_.dim());
      if (found != rows_.end()) {
        values = found->second.row.Values();
        ++stats_.hits;
      } else if (!Outside(ids[i])) {
        values = AtRest(SlowInitialRow(spec_, ids[i]));
      }
      std::copy(values.begin(), values.end(), out.begin() + static_cast<ptrdiff_t>(i * spec_.dim()));
      ++stats_.reads;
    }
  }

  void Apply(std::span<const uint64_t> ids, std::span<const float> gradients, std::span<const uint32_t> sightings,
             float rate, uint64_t round) override {
    round = std::min<uint64_t>(round, 4294967293);
    std::vector<size_t> later;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (Outside(ids[i])) continue;
      if (!Finite(Gradient(gradients, i))) {
        ++stats_.nonfinite;
      } else if (rows_.contains(ids[i])) {
        Update(ids[i], Gradient(gradients, i), sightings.empty() ? 1 : sightings[i], rate, round);
      } else {
        later.push_back(i);
      }
    }
    for (const size_t i : later) {
      const uint32_t n = sightings.empty() ? 1 : sightings[i];
      if (rows_.contains(ids[i])) {  // ids that came twice
        Update(ids[i], Gradient(gradients, i), n, rate, round);
        continue;
      }
      if (spec_.admit_after() > 1 && sketch_.Sight(ids[i], n) < spec_.admit_after()) {
        ++stats_.not_admitted;
        continue;
      }
      if (rows_.size() >= most_rows_) {
        const uint64_t oldest = Oldest();
        if (rows_.at(oldest).last_round >= round) {
          ++stats_.no_room;
          continue;
        }
        Remove(oldest);
        ++stats_.evicted_bound;
      }
      const std::vector<float> initial = AtRest(SlowInitialRow(spec_, ids[i]));
      rows_.emplace(ids[i], Entry{SlowRow<float>(spec_.optimizer(), initial, rate), round});
      ++stats_.created;
      Update(ids[i], Gradient(gradients, i), n, rate, round);
    }
  }

  void EndRound(uint64_t round) override {
    round = std::min<uint64_t>(round, uint64_t{4294967292} + spec_.max_age_rounds());
    std::vector<uint64_t> old;
    for (const auto& [id, entry] : rows_)
      if (spec_.max_age_rounds() != 0 && entry.last_round + spec_.max_age_rounds() <= round) old.push_back(id);
    for (const uint64_t id : old) {
      Remove(id);
      ++stats_.evicted_age;
    }
  }

  SegmentStats stats() const override {
    SegmentStats stats = stats_;
    stats.rows = rows_.size();
    return stats;
  }
  std::vector<std::pair<uint64_t, uint64_t>> HotIds(size_t most) const override { return hot_.Top(most); }

  void ForEach(const std::function<void(const Row&)>& fn) const override {
    for (const auto& [id, entry] : rows_) {
      const std::vector<float> values = entry.row.Values(), state = entry.row.State();
      fn({.id = id, .values = values, .state = state, .last_round = entry.last_round});
    }
  }

 private:
  struct Entry {
    SlowRow<float> row;
    uint64_t last_round;
  };

  bool Outside(uint64_t id) const { return spec_.vocabulary() != 0 && id >= spec_.vocabulary(); }
  static bool Finite(const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  }
  std::vector<float> Gradient(std::span<const float> gradients, size_t i) const {
    const auto row = gradients.subspan(i * spec_.dim(), spec_.dim());
    return {row.begin(), row.end()};
  }
  std::vector<float> AtRest(std::vector<float> values) const {
    if (spec_.dtype() == "bf16")
      for (float& v : values) v = compression::FloatFromBf16(compression::Bf16FromFloat(v));
    return values;
  }
  uint64_t Oldest() const {
    auto oldest = rows_.begin();  // in order of ids
    for (auto it = rows_.begin(); it != rows_.end(); ++it)
      if (it->second.last_round < oldest->second.last_round) oldest = it;
    return oldest->first;
  }
  void Remove(uint64_t id) {
    rows_.erase(id);
    hot_.Remove(id);
  }
  void Update(uint64_t id, const std::vector<float>& gradient, uint32_t n, float rate, uint64_t round) {
    Entry& entry = rows_.at(id);
    entry.row.Apply(gradient, rate);
    entry.row.SetValues(AtRest(entry.row.Values()));
    entry.last_round = round;
    ++stats_.updates;
    if (compression::MixId(stats_.updates) % 8 == 0) hot_.Sight(id, n * uint64_t{8});  // one update in eight is shown
    const std::vector<float> values = entry.row.Values();
    if (!spec_.drop_zero_rows() || !std::all_of(values.begin(), values.end(), [](float v) { return v == 0; })) return;
    Remove(id);
    ++stats_.dropped_zero;
  }

  proto::TableSpec spec_;
  const uint64_t most_rows_;
  std::map<uint64_t, Entry> rows_;
  SlowSketch sketch_;
  SlowHot hot_;
  SegmentStats stats_;
};

}  // namespace

std::unique_ptr<TableSegment> MakeSlowSegment(const proto::TableSpec& spec, const SegmentLimits& limits) {
  return std::make_unique<SlowSegment>(spec, TableSegment::MostRows(spec, limits).value_or(0));
}

}  // namespace sluice::server
