#include "worker/row_pull.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compression/row_payload.h"
#include "worker/rows.h"

namespace sluice::worker {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
// Rows of few values: their ids are worth packing, at the price of sorting them.
constexpr uint32_t kPackUpToDim = 4;

// How many recent ids are known: half a call's, so that they are near in the cache. An id that comes often is found there.
size_t Recents(size_t ids) { return std::bit_ceil(std::clamp<size_t>(ids / 2, 64, 1 << 14)); }

}  // namespace

void RowPullScratch::Grow(size_t ids) {
  const size_t recent = Recents(ids);
  if (recent_.size() < recent) recent_.assign(recent, {});
  if (++call_ == 0) {   // after 2^32 calls: old entries would look like new ones
    recent_.assign(recent_.size(), {});
    call_ = 1;
  }
  if (number_.size() >= ids) return;
  number_.resize(ids);
  ids_.resize(ids + 1);   // a number that is not given yet is written to as well
  segment_.resize(ids + 1);
  target_.resize(ids);
}

absl::StatusOr<RowPull> PrepareRowPull(const TableShape& table, std::span<const uint64_t> ids,
                                       RowPullScratch* scratch) {
  if (ids.size() >= kNone) {
    return absl::InvalidArgumentError(absl::StrCat("table ", table.name, ": ", ids.size(), " ids in one call"));
  }
  RowPullScratch own;
  RowPullScratch& s = scratch != nullptr ? *scratch : own;
  s.Grow(ids.size());
  RowPull pull;
  pull.dim = table.dim;
  pull.packed = table.dim <= kPackUpToDim;

  // 1. Ids get numbers, in order of their occurrence; those found in the table of recent ones keep theirs. Without a
  //    branch, as a processor could not guess it.
  const uint64_t mask = Recents(ids.size()) - 1;
  const uint32_t call = s.call_;
  RowPullScratch::Recent* const recents = s.recent_.data();
  uint32_t* const number_of = s.number_.data();
  uint64_t* const id_of = s.ids_.data();
  uint32_t* const segment_of = s.segment_.data();
  const uint64_t vocabulary = table.vocabulary;
  const uint32_t segments = table.segments;
  uint32_t numbers = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint64_t id = ids[i];
    if (vocabulary != 0 && id >= vocabulary) {
      if (!table.unknown_as_zero) return BeyondVocabulary(table, id, i);
      pull.unknown.push_back(static_cast<uint32_t>(i));
      number_of[i] = kNone;
      continue;
    }
    const uint64_t hash = compression::MixId(id);
    RowPullScratch::Recent& recent = recents[hash & mask];
    const auto fresh = static_cast<uint32_t>((recent.id != id) | (recent.call != call));
    const uint32_t number = recent.number + (numbers - recent.number) * fresh;
    recent = {id, number, call};
    id_of[numbers] = id;
    segment_of[numbers] = compression::SegmentOfHash(hash, segments);
    number_of[i] = number;
    numbers += fresh;
  }

  // 2. Rows by segment (packed: by id then, and once).
  std::vector<size_t> begins(table.segments + 1, 0);
  for (uint32_t n = 0; n < numbers; ++n) ++begins[s.segment_[n] + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  pull.ids.resize(numbers);
  if (!pull.packed) {
    std::vector<size_t> next(begins.begin(), begins.end() - 1);
    for (uint32_t n = 0; n < numbers; ++n) {
      const size_t at = next[s.segment_[n]]++;
      pull.ids[at] = s.ids_[n];
      s.target_[n].row = static_cast<uint32_t>(at);
    }
  } else {
    std::vector<uint32_t> order(numbers);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [&](uint32_t a, uint32_t b) {
      return s.segment_[a] != s.segment_[b] ? s.segment_[a] < s.segment_[b] : s.ids_[a] < s.ids_[b];
    });
    std::ranges::fill(begins, 0);
    size_t rows = 0;
    for (const uint32_t n : order) {
      if (rows == 0 || pull.ids[rows - 1] != s.ids_[n]) {   // equal ids are of one segment
        pull.ids[rows++] = s.ids_[n];
        ++begins[s.segment_[n] + 1];
      }
      s.target_[n].row = static_cast<uint32_t>(rows - 1);
    }
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    pull.ids.resize(rows);
  }

  // 3. Parts.
  const size_t most = std::max<size_t>(1, kPullPartBytes / (table.dim * sizeof(float)));
  std::vector<uint32_t> first_part(table.segments);
  for (uint32_t segment = 0; segment < table.segments; ++segment) {
    first_part[segment] = static_cast<uint32_t>(pull.parts.size());
    for (size_t begin = begins[segment]; begin < begins[segment + 1]; begin += most) {
      RowPull::Part part;
      part.segment = segment;
      part.rows = static_cast<uint32_t>(std::min(begins[segment + 1] - begin, most));
      if (pull.packed) {
        part.first_byte = pull.packed_ids.size();
        SLUICE_RETURN_IF_ERROR(compression::PackIds(std::span(pull.ids).subspan(begin, part.rows), &pull.packed_ids));
        part.bytes = pull.packed_ids.size() - part.first_byte;
      } else {
        part.first_byte = begin * sizeof(uint64_t);
        part.bytes = part.rows * sizeof(uint64_t);
      }
      pull.parts.push_back(part);
    }
  }

  // 4. Places.
  for (uint32_t n = 0; n < numbers; ++n) {
    const uint32_t segment = segment_of[n];
    const size_t row = s.target_[n].row - begins[segment];
    const size_t cut = row < most ? 0 : row / most;
    s.target_[n] = {static_cast<uint32_t>(first_part[segment] + cut), static_cast<uint32_t>(row - cut * most)};
  }
  const RowPullScratch::Target* const target_of = s.target_.data();
  std::vector<uint32_t> next(pull.parts.size() + 1, 0);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (number_of[i] != kNone) ++next[target_of[number_of[i]].part];
  }
  uint32_t places = 0;
  for (size_t p = 0; p < pull.parts.size(); ++p) {
    pull.parts[p].places = next[p];
    pull.parts[p].first_place = next[p] = places;
    places += static_cast<uint32_t>(pull.parts[p].places);
  }
  pull.places.resize(places);
  RowPull::Place* const place = pull.places.data();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (number_of[i] == kNone) continue;
    const RowPullScratch::Target target = target_of[number_of[i]];
    place[next[target.part]++] = {static_cast<uint32_t>(i), target.row};
  }
  return pull;
}

namespace {

constexpr size_t kLine = 64;
constexpr size_t kAhead = 16;   // places whose memory is on its way

// kLines: of a row, that is row_bytes; 0 = any.
template <size_t kLines>
void Place(std::span<const RowPull::Place> places, const std::byte* values, size_t row_bytes, std::byte* out) {
  const size_t bytes = kLines != 0 ? kLines * kLine : row_bytes;
  for (size_t k = 0; k < places.size(); ++k) {
    if (k + kAhead < places.size()) {
      const std::byte* const from = values + size_t{places[k + kAhead].row} * bytes;   // the server's cache has it
      const std::byte* const to = out + size_t{places[k + kAhead].position} * bytes;
      for (size_t at = 0; at < std::min(bytes, 4 * kLine); at += kLine) {
        __builtin_prefetch(from + at);
        __builtin_prefetch(to + at, 1);
      }
    }
    std::byte* const to = out + size_t{places[k].position} * bytes;
    const std::byte* const from = values + size_t{places[k].row} * bytes;
    if constexpr (kLines == 0) {
      std::memcpy(to, from, bytes);
    } else {
      for (size_t line = 0; line < kLines; ++line) std::memcpy(to + line * kLine, from + line * kLine, kLine);   // inline
    }
  }
}

}  // namespace

void PlaceRows(const RowPull& pull, const RowPull::Part& part, ConstBytes values, std::span<float> out) {
  const size_t row_bytes = pull.dim * sizeof(float);
  const auto places = std::span(pull.places).subspan(part.first_place, part.places);
  auto* const to = reinterpret_cast<std::byte*>(out.data());
  switch (row_bytes) {
    case kLine: return Place<1>(places, values.data(), row_bytes, to);
    case 2 * kLine: return Place<2>(places, values.data(), row_bytes, to);
    case 4 * kLine: return Place<4>(places, values.data(), row_bytes, to);
    default: return Place<0>(places, values.data(), row_bytes, to);
  }
}

}  // namespace sluice::worker
