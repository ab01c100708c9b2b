#include "server/table/segment.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compression/half.h"
#include "server/table/admission.h"
#include "server/table/hot_ids.h"
#include "server/table/row_ages.h"
#include "server/table/row_init.h"
#include "server/table/row_optimizer.h"
#include "server/table/row_store.h"

namespace sluice::server {
namespace {

constexpr uint32_t kMostDim = 65536;
constexpr size_t kKeptScratch = size_t{1} << 20;  // entries that stay allocated between calls

absl::Status CheckSpec(const proto::TableSpec& spec) {
  if (spec.dim() < 1 || spec.dim() > kMostDim)
    return absl::InvalidArgumentError(absl::StrCat("table.dim is ", spec.dim(), "; it must be from 1 to ", kMostDim));
  if (!spec.dtype().empty() && spec.dtype() != "fp32" && spec.dtype() != "bf16")
    return absl::InvalidArgumentError(
        absl::StrCat("table.dtype is \"", spec.dtype().substr(0, 80), "\"; it must be fp32 or bf16"));
  if (spec.admit_after() > Admission::kMostSightings)
    return absl::InvalidArgumentError(
        absl::StrCat("table.admit_after is ", spec.admit_after(), "; it must be at most ", Admission::kMostSightings));
  if (!spec.unknown_ids().empty() && spec.unknown_ids() != "refuse" && spec.unknown_ids() != "zero")
    return absl::InvalidArgumentError(
        absl::StrCat("table.unknown_ids is \"", spec.unknown_ids().substr(0, 80), "\"; it must be refuse or zero"));
  return absl::OkStatus();
}

RowLayout LayoutOf(const proto::TableSpec& spec, const RowOptimizer& optimizer) {
  return RowLayout(spec.dim(), spec.dtype() == "bf16", optimizer.StateFloats(spec.dim()));
}

bool AllFinite(const float* values, size_t n) {
  constexpr uint32_t kExponent = 0x7F800000;
  uint32_t bad = 0;
  for (size_t i = 0; i < n; ++i) bad |= (std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent;
  return bad == 0;
}

// Values at rest are fp32 or bf16; the rest of a segment sees fp32.
void Widen(const RowLayout& layout, const std::byte* at_rest, float* values) {
  if (layout.bf16) {
    compression::FloatsFromBf16(at_rest, layout.dim, values);
  } else {
    size_t i = 0;
    for (; i + 16 <= layout.dim; i += 16)
      std::memcpy(values + i, at_rest + i * sizeof(float), 16 * sizeof(float));  // inline
    for (; i < layout.dim; ++i) values[i] = LoadLe<float>(at_rest + i * sizeof(float));
  }
}

bool AllZero(const RowLayout& layout, const std::byte* at_rest) {
  const size_t size = layout.bf16 ? 2 : 4;  // of a value, its sign on top
  uint32_t bits = 0;
  for (size_t i = 0; i < layout.dim; ++i)
    bits |= layout.bf16 ? LoadLe<uint16_t>(at_rest + i * size) & 0x7FFFu
                        : LoadLe<uint32_t>(at_rest + i * size) & 0x7FFFFFFFu;
  return bits == 0;
}

class Segment final : public TableSegment {
 public:
  Segment(const proto::TableSpec& spec, uint64_t most_rows, bool evicts, bool huge_pages, RowInit init,
          RowOptimizer optimizer)
      : init_(init),
        optimizer_(optimizer),
        most_rows_(most_rows),
        max_age_(spec.max_age_rounds()),
        vocabulary_(spec.vocabulary()),
        drop_zero_(spec.drop_zero_rows()),
        evicts_(evicts),
        store_(LayoutOf(spec, optimizer), huge_pages),
        ages_(&store_),
        admission_(spec.admit_after()),
        wide_(spec.dim()) {}

  uint32_t dim() const override { return store_.layout().dim; }
  void Read(std::span<const uint64_t> ids, std::span<float> out) override;
  void Apply(std::span<const uint64_t> ids, std::span<const float> gradients, std::span<const uint32_t> sightings,
             float rate, uint64_t round) override;
  void EndRound(uint64_t round) override;
  SegmentStats stats() const override;
  std::vector<std::pair<uint64_t, uint64_t>> HotIds(size_t most) const override { return hot_.Top(most); }
  void ForEach(const std::function<void(const Row&)>& fn) const override;
  uint64_t Digest(std::span<const uint64_t> ids) const override;
  size_t SavedBytes() const override;
  void Save(std::span<std::byte> out) const override;
  absl::Status Load(std::span<const std::byte> saved) override;

 private:
  // What all rows of one Apply have in common.
  struct Push {
    RowOptimizer::Round optimizer;
    uint32_t round;
  };

  bool Outside(uint64_t id) const { return vocabulary_ != 0 && id >= vocabulary_; }
  void Initial(uint64_t id, std::byte* at_rest);  // at rest, as a new row has them
  void Update(uint32_t slot, const float* gradient, uint32_t sightings, const Push& push);
  void SightOrCreate(uint64_t id, const float* gradient, uint32_t sightings, const Push& push);
  bool EvictOldest(uint32_t below, uint64_t* count);
  void Remove(uint32_t slot);

  const RowInit init_;
  const RowOptimizer optimizer_;
  const uint64_t most_rows_, max_age_, vocabulary_;
  const bool drop_zero_, evicts_;
  RowStore store_;
  RowAges ages_;  // filled if evicts_
  Admission admission_;
  sluice::server::HotIds hot_;
  SegmentStats stats_;
  std::vector<float> wide_;      // one row in fp32
  std::vector<size_t> missing_;  // of one Apply: positions of ids that are not stored
};

void Segment::Initial(uint64_t id, std::byte* at_rest) {
  init_.Fill(id, wide_);
  if (store_.layout().bf16) {
    compression::Bf16FromFloats(wide_.data(), wide_.size(), at_rest);
  } else {
    std::memcpy(at_rest, wide_.data(), wide_.size() * sizeof(float));
  }
}

void Segment::Read(std::span<const uint64_t> ids, std::span<float> out) {
  const RowLayout& layout = store_.layout();
  uint64_t hits = 0;
  store_.VisitRows(ids, [&](size_t i, uint32_t slot) {
    float* const row = out.data() + i * layout.dim;
    if (slot != RowStore::kNone) [[likely]] {
      ++hits;
      Widen(layout, store_.raw_values(slot), row);
    } else if (Outside(ids[i])) {
      std::fill_n(row, layout.dim, 0.0f);
    } else {
      init_.Fill(ids[i], {row, layout.dim});
      if (!layout.bf16) return;
      for (uint32_t j = 0; j < layout.dim; ++j) row[j] = compression::FloatFromBf16(compression::Bf16FromFloat(row[j]));
    }
  });
  stats_.reads += ids.size();
  stats_.hits += hits;
}

void Segment::Remove(uint32_t slot) {
  hot_.Remove(store_.header(slot)->id());
  store_.Erase(slot);
}

void Segment::Update(uint32_t slot, const float* gradient, uint32_t sightings, const Push& push) {
  const RowLayout& layout = store_.layout();
  RowHeader* const header = store_.header(slot);
  std::byte* const at_rest = store_.raw_values(slot);
  if (layout.bf16) {
    compression::FloatsFromBf16(at_rest, layout.dim, wide_.data());
    optimizer_.Apply(push.optimizer, wide_, {gradient, layout.dim}, store_.state(slot));
    compression::Bf16FromFloats(wide_.data(), layout.dim, at_rest);
  } else {
    optimizer_.Apply(push.optimizer, store_.values(slot), {gradient, layout.dim}, store_.state(slot));
  }
  header->last_round = push.round;
  ++stats_.updates;
  if (compression::MixId(stats_.updates) % server::HotIds::kOneIn == 0) hot_.Sight(header->id(), sightings);
  if (!drop_zero_ || !AllZero(layout, at_rest)) return;
  ++stats_.dropped_zero;
  Remove(slot);
}

bool Segment::EvictOldest(uint32_t below, uint64_t* count) {
  const uint32_t slot = ages_.PopOlderThan(below);
  if (slot == RowStore::kNone) return false;
  ++*count;
  Remove(slot);
  return true;
}

void Segment::SightOrCreate(uint64_t id, const float* gradient, uint32_t sightings, const Push& push) {
  // An id that comes twice in one call breaks the contract; it must not break the store.
  if (const uint32_t slot = store_.Find(id); slot != RowStore::kNone) return Update(slot, gradient, sightings, push);
  if (!admission_.Sight(id, sightings)) {
    ++stats_.not_admitted;
    return;
  }
  if (store_.rows() >= most_rows_ && !EvictOldest(push.round, &stats_.evicted_bound)) {
    ++stats_.no_room;
    return;
  }
  const uint32_t slot = store_.Insert(id);
  store_.header(slot)->last_round = push.round;
  Initial(id, store_.raw_values(slot));
  const RowLayout& layout = store_.layout();
  Widen(layout, store_.raw_values(slot), wide_.data());
  optimizer_.Start(push.optimizer, wide_, store_.state(slot));
  if (evicts_) ages_.Add(slot);
  ++stats_.created;
  Update(slot, gradient, sightings, push);
}

void Segment::Apply(std::span<const uint64_t> ids, std::span<const float> gradients,
                    std::span<const uint32_t> sightings, float rate, uint64_t round) {
  const Push push{optimizer_.BeginRound(rate), static_cast<uint32_t>(std::min<uint64_t>(round, RowAges::kMostRound))};
  const size_t dim = store_.layout().dim;
  const auto sighted = [&](size_t i) { return sightings.empty() ? 1 : sightings[i]; };
  missing_.clear();
  store_.VisitRows(ids, [&](size_t i, uint32_t slot) {
    const float* const gradient = gradients.data() + i * dim;
    if (Outside(ids[i])) return;
    if (!AllFinite(gradient, dim)) {
      ++stats_.nonfinite;
    } else if (slot == RowStore::kNone) {
      missing_.push_back(i);
    } else {
      Update(slot, gradient, sighted(i), push);
    }
  });
  constexpr size_t kAhead = 8;  // ids whose place in the index is on its way
  for (size_t k = 0; k < missing_.size(); ++k) {
    if (k + 2 * kAhead < missing_.size()) store_.PrefetchPage(ids[missing_[k + 2 * kAhead]]);
    if (k + kAhead < missing_.size()) store_.PrefetchHome(ids[missing_[k + kAhead]]);
    const size_t i = missing_[k];
    SightOrCreate(ids[i], gradients.data() + i * dim, sighted(i), push);
  }
  if (missing_.capacity() > kKeptScratch) std::vector<size_t>().swap(missing_);
}

void Segment::EndRound(uint64_t round) {
  if (max_age_ == 0 || round < max_age_) return;
  const auto below = static_cast<uint32_t>(std::min<uint64_t>(round - max_age_ + 1, RowAges::kMostRound));
  while (EvictOldest(below, &stats_.evicted_age)) {
  }
}

SegmentStats Segment::stats() const {
  SegmentStats stats = stats_;
  stats.rows = store_.rows();
  stats.bytes = store_.bytes() + ages_.bytes() + admission_.bytes() + sluice::server::HotIds::kBytes;
  return stats;
}

// Saved: the fields of Head, a u64 each; rows, each u64 id, u32 last round, values at rest, state; the sketch's counters, all
// of them or, where that is less, those that are not zero, each u32 place and u8 count.
struct Head {
  uint64_t rows, row_bytes, counters, sketch_bytes, counted, reads, hits, updates, created, evicted_age, evicted_bound, dropped_zero,
      not_admitted, no_room, nonfinite;
};

size_t SavedRow(const RowLayout& layout) { return sizeof(uint64_t) + sizeof(uint32_t) + layout.stride - sizeof(RowHeader); }

uint64_t Segment::Digest(std::span<const uint64_t> ids) const {
  const RowLayout& layout = store_.layout();
  uint64_t digest = store_.rows();
  for (const uint64_t id : ids) {
    const uint32_t slot = store_.Find(id);
    digest = compression::MixId(digest ^ id);
    if (slot == RowStore::kNone) continue;
    digest ^= XXH3_64bits_withSeed(store_.raw_values(slot), layout.bf16 ? layout.dim * 2 : layout.dim * 4, digest);
    digest = XXH3_64bits_withSeed(store_.state(slot).data(), store_.state(slot).size_bytes(), digest);
  }
  return digest;
}

constexpr size_t kCell = sizeof(uint32_t) + sizeof(uint8_t);

size_t SketchBytes(std::span<const uint8_t> counters) {
  const auto zeros = static_cast<size_t>(std::count(counters.begin(), counters.end(), 0));
  return std::min(counters.size(), (counters.size() - zeros) * kCell);
}

void SaveSketch(std::span<const uint8_t> counters, size_t bytes, std::byte* out) {
  if (bytes == counters.size()) {
    if (bytes > 0) std::memcpy(out, counters.data(), bytes);
    return;
  }
  for (uint32_t place = 0; place < counters.size(); ++place) {
    if (counters[place] == 0) continue;
    std::memcpy(out, &place, sizeof(place));
    std::memcpy(out + sizeof(place), &counters[place], sizeof(uint8_t));
    out += kCell;
  }
}

// False: it is no sketch of so many counters.
bool LoadSketch(std::span<const std::byte> saved, std::vector<uint8_t>* counters) {
  if (saved.size() == counters->size()) {
    if (!saved.empty()) std::memcpy(counters->data(), saved.data(), saved.size());
    return true;
  }
  if (saved.size() > counters->size() || saved.size() % kCell != 0) return false;
  for (; !saved.empty(); saved = saved.subspan(kCell)) {
    uint32_t place = 0;
    std::memcpy(&place, saved.data(), sizeof(place));
    if (place >= counters->size()) return false;
    std::memcpy(&(*counters)[place], saved.data() + sizeof(place), sizeof(uint8_t));
  }
  return true;
}

size_t Segment::SavedBytes() const {
  return sizeof(Head) + store_.rows() * SavedRow(store_.layout()) + SketchBytes(admission_.counters());
}

void Segment::Save(std::span<std::byte> out) const {
  const RowLayout& layout = store_.layout();
  const size_t sketch_bytes = SketchBytes(admission_.counters());
  const Head head{store_.rows(), SavedRow(layout), admission_.counters().size(), sketch_bytes, admission_.counted(), stats_.reads,
                  stats_.hits, stats_.updates, stats_.created, stats_.evicted_age, stats_.evicted_bound,
                  stats_.dropped_zero, stats_.not_admitted, stats_.no_room, stats_.nonfinite};
  std::byte* at = out.data();
  std::memcpy(at, &head, sizeof(head));
  at += sizeof(head);
  struct Place {
    uint32_t round, slot;
    uint64_t id;
  };
  std::vector<Place> order;
  order.reserve(store_.rows());
  for (uint32_t slot = 0; slot < store_.slots(); ++slot)
    if (store_.live(slot)) order.push_back({store_.header(slot)->last_round, slot, store_.header(slot)->id()});
  std::sort(order.begin(), order.end(),
            [](const Place& a, const Place& b) { return std::pair(a.round, a.id) < std::pair(b.round, b.id); });
  const size_t payload = layout.stride - sizeof(RowHeader);
  for (const Place& place : order) {
    std::memcpy(at, &place.id, sizeof(place.id));
    std::memcpy(at + sizeof(place.id), &place.round, sizeof(place.round));
    at += sizeof(place.id) + sizeof(place.round);
    std::memcpy(at, store_.raw_values(place.slot), payload);
    at += payload;
  }
  SaveSketch(admission_.counters(), sketch_bytes, at);
}

absl::Status Segment::Load(std::span<const std::byte> saved) {
  const RowLayout& layout = store_.layout();
  Head head{};
  if (saved.size() < sizeof(head)) return absl::DataLossError(absl::StrCat("a saved segment of ", saved.size(), " bytes"));
  std::memcpy(&head, saved.data(), sizeof(head));
  saved = saved.subspan(sizeof(head));
  if (head.row_bytes != SavedRow(layout) || head.counters != admission_.counters().size() || head.sketch_bytes > head.counters ||
      head.rows > saved.size() / head.row_bytes || head.rows * head.row_bytes + head.sketch_bytes != saved.size() ||
      head.rows > most_rows_ || store_.rows() != 0)
    return absl::DataLossError(absl::StrCat("a saved segment of ", head.rows, " rows of ", head.row_bytes, " bytes and ",
                                            head.sketch_bytes, " of a sketch, in ", saved.size(), " bytes; this one has rows of ",
                                            SavedRow(layout), " and at most ", most_rows_));
  const size_t payload = layout.stride - sizeof(RowHeader);
  uint32_t round_before = 0;
  for (uint64_t i = 0; i < head.rows; ++i, saved = saved.subspan(head.row_bytes)) {
    uint64_t id = 0;
    uint32_t round = 0;
    std::memcpy(&id, saved.data(), sizeof(id));
    std::memcpy(&round, saved.data() + sizeof(id), sizeof(round));
    if (round < round_before || round > RowAges::kMostRound || store_.Find(id) != RowStore::kNone)
      return absl::DataLossError(absl::StrCat("row ", id, " of a saved segment is out of order or comes twice"));
    round_before = round;
    const uint32_t slot = store_.Insert(id);
    store_.header(slot)->last_round = round;
    std::memcpy(store_.raw_values(slot), saved.data() + sizeof(id) + sizeof(round), payload);
    if (evicts_) ages_.Add(slot);
  }
  std::vector<uint8_t> counters(head.counters);
  if (!LoadSketch(saved, &counters)) return absl::DataLossError(absl::StrCat("a saved sketch of ", saved.size(), " bytes is none"));
  admission_.Restore(counters, head.counted);
  stats_.reads = head.reads, stats_.hits = head.hits, stats_.updates = head.updates, stats_.created = head.created;
  stats_.evicted_age = head.evicted_age, stats_.evicted_bound = head.evicted_bound;
  stats_.dropped_zero = head.dropped_zero, stats_.not_admitted = head.not_admitted;
  stats_.no_room = head.no_room, stats_.nonfinite = head.nonfinite;
  return absl::OkStatus();
}

void Segment::ForEach(const std::function<void(const Row&)>& fn) const {
  std::vector<std::pair<uint64_t, uint32_t>> order;  // id, slot
  order.reserve(store_.rows());
  for (uint32_t slot = 0; slot < store_.slots(); ++slot)
    if (store_.live(slot)) order.emplace_back(store_.header(slot)->id(), slot);
  std::sort(order.begin(), order.end());
  std::vector<float> values(dim());
  for (const auto& [id, slot] : order) {
    Widen(store_.layout(), store_.raw_values(slot), values.data());
    fn({.id = id, .values = values, .state = store_.state(slot), .last_round = store_.header(slot)->last_round});
  }
}

}  // namespace

absl::StatusOr<uint64_t> TableSegment::MostRows(const proto::TableSpec& spec, const SegmentLimits& limits) {
  SLUICE_RETURN_IF_ERROR(CheckSpec(spec));
  SLUICE_ASSIGN_OR_RETURN(const RowOptimizer optimizer, RowOptimizer::Create(spec.optimizer()));
  const RowLayout layout = LayoutOf(spec, optimizer);
  const uint64_t by_rows =
      limits.max_rows == 0 ? RowSlabs::kMostRows : std::min<uint64_t>(limits.max_rows, RowSlabs::kMostRows);
  if (limits.max_bytes == 0) return by_rows;
  const uint64_t fixed = RowStore::MostBytes(layout, 0) + RowAges::MostBytes(0) + server::HotIds::kBytes +
                         (spec.admit_after() > 1 ? Admission::kBytes : 0);
  const uint64_t per_row =
      RowStore::MostBytes(layout, 1) - RowStore::MostBytes(layout, 0) + RowAges::MostBytes(1) - RowAges::MostBytes(0);
  if (limits.max_bytes < fixed + per_row)
    return absl::InvalidArgumentError(absl::StrCat("table.max_bytes_per_server leaves ", limits.max_bytes,
                                                   " bytes to a segment; it must be at least ", fixed + per_row,
                                                   ", for one row of ", per_row, " and ", fixed,
                                                   " of the segment's own: allow more, or choose fewer segments"));
  return std::min(by_rows, (limits.max_bytes - fixed) / per_row);
}

absl::StatusOr<std::unique_ptr<TableSegment>> TableSegment::Create(const proto::TableSpec& spec,
                                                                   const SegmentLimits& limits) {
  SLUICE_ASSIGN_OR_RETURN(const uint64_t most_rows, MostRows(spec, limits));
  SLUICE_ASSIGN_OR_RETURN(const RowInit init, RowInit::Create(spec));
  SLUICE_ASSIGN_OR_RETURN(const RowOptimizer optimizer, RowOptimizer::Create(spec.optimizer()));
  const bool evicts = spec.max_age_rounds() != 0 || limits.max_rows != 0 || limits.max_bytes != 0;
  return std::make_unique<Segment>(spec, most_rows, evicts, limits.huge_pages, init, optimizer);
}

}  // namespace sluice::server
