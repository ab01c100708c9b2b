#include "worker/rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "compression/row_payload.h"

namespace sluice::worker {
namespace {

// Rows of few values: their ids are worth packing, at the price of sorting them.
constexpr uint32_t kPackUpToDim = 4;

absl::Status BeyondVocabulary(const TableShape& table, uint64_t id, size_t position) {
  return absl::InvalidArgumentError(absl::StrCat("table ", table.name, ": id ", id, " at position ", position,
                                                 " is not below the vocabulary of ", table.vocabulary,
                                                 " (unknown_as_zero reads such rows as zeros)"));
}

// Positions of the ids, ordered by segment, then id, then occurrence.
struct Sorted {
  std::vector<uint32_t> order;
  std::vector<size_t> begins;   // segments + 1: where each begins in order
  std::vector<uint32_t> unknown;
};

absl::StatusOr<Sorted> SortRows(const TableShape& table, std::span<const uint64_t> ids) {
  if (ids.size() >= std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("table ", table.name, ": ", ids.size(), " ids in one call"));
  }
  Sorted sorted;
  std::vector<uint32_t> segment_of(ids.size());
  sorted.begins.assign(table.segments + 1, 0);
  size_t known = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (table.vocabulary != 0 && ids[i] >= table.vocabulary) {
      if (!table.unknown_as_zero) {
        return BeyondVocabulary(table, ids[i], i);
      }
      sorted.unknown.push_back(static_cast<uint32_t>(i));
      segment_of[i] = table.segments;
      continue;
    }
    segment_of[i] = compression::SegmentOf(ids[i], table.segments);
    ++sorted.begins[segment_of[i] + 1];
    ++known;
  }
  std::partial_sum(sorted.begins.begin(), sorted.begins.end(), sorted.begins.begin());
  sorted.order.resize(known);
  std::vector<size_t> next(sorted.begins.begin(), sorted.begins.end() - 1);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (segment_of[i] < table.segments) sorted.order[next[segment_of[i]]++] = static_cast<uint32_t>(i);
  }
  // By id; positions were put in rising, so equal ids stay in order of occurrence when that breaks ties.
  std::vector<std::pair<uint64_t, uint32_t>> keyed;
  for (uint32_t s = 0; s < table.segments; ++s) {
    const auto begin = sorted.order.begin() + static_cast<std::ptrdiff_t>(sorted.begins[s]);
    const auto end = sorted.order.begin() + static_cast<std::ptrdiff_t>(sorted.begins[s + 1]);
    keyed.clear();
    for (auto it = begin; it != end; ++it) keyed.emplace_back(ids[*it], *it);
    std::ranges::sort(keyed);
    std::ranges::transform(keyed, begin, [](const auto& entry) { return entry.second; });
  }
  return sorted;
}

}  // namespace

absl::StatusOr<RowPush> PrepareRowPush(const TableShape& table, std::span<const uint64_t> ids,
                                       std::span<const float> gradients, const compression::Codec& codec) {
  const size_t dim = table.dim;
  if (gradients.size() != ids.size() * dim) {
    return absl::InvalidArgumentError(absl::StrFormat("table %s: %d ids of %d values need %d gradients, there are %d",
                                                      table.name, ids.size(), dim, ids.size() * dim, gradients.size()));
  }
  if (const size_t bad = compression::FirstNonfinite(gradients); bad != gradients.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("push to table %s: value %d of row id %d (position %d) is %g; nothing was sent", table.name,
                        bad % dim, ids[bad / dim], bad / dim, static_cast<double>(gradients[bad])));
  }
  SLUICE_ASSIGN_OR_RETURN(const Sorted sorted, SortRows(table, ids));
  RowPush push;
  push.parts.resize(table.segments);
  push.codec = static_cast<uint16_t>(codec.id());
  std::vector<uint64_t> rows;
  std::vector<float> values;
  for (uint32_t s = 0; s < table.segments; ++s) {
    rows.clear();
    values.clear();
    for (size_t k = sorted.begins[s]; k < sorted.begins[s + 1]; ++k) {
      const uint32_t at = sorted.order[k];
      const float* in = gradients.data() + at * dim;
      if (!rows.empty() && rows.back() == ids[at]) {
        float* sum = values.data() + values.size() - dim;
        for (size_t i = 0; i < dim; ++i) sum[i] += in[i];
        continue;
      }
      rows.push_back(ids[at]);
      values.insert(values.end(), in, in + dim);
    }
    if (rows.empty()) continue;
    // Finite values whose sum is not: the codec or the server would say it less clearly.
    if (const size_t bad = compression::FirstNonfinite(values); bad != values.size()) {
      return absl::InvalidArgumentError(absl::StrFormat("push to table %s: the duplicates of row id %d sum up to %g",
                                                        table.name, rows[bad / dim], static_cast<double>(values[bad])));
    }
    RowPush::Part& part = push.parts[s];
    part.rows = static_cast<uint32_t>(rows.size());
    push.raw_bytes += values.size() * sizeof(float);
    part.payload.reserve(compression::MaxPackedIdBytes(rows.size()) + codec.MaxEncodedBytes(values.size()));
    SLUICE_RETURN_IF_ERROR(compression::PackIds(rows, &part.payload));
    const size_t head = part.payload.size();
    part.payload.resize(head + codec.MaxEncodedBytes(values.size()));
    compression::EncodeInput input;
    input.gradient = values;
    SLUICE_ASSIGN_OR_RETURN(const size_t bytes, codec.Encode(input, MutableBytes(part.payload).subspan(head)));
    part.payload.resize(head + bytes);
  }
  return push;
}

absl::StatusOr<RowPull> PrepareRowPull(const TableShape& table, std::span<const uint64_t> ids) {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  if (ids.size() >= kNone) {
    return absl::InvalidArgumentError(absl::StrCat("table ", table.name, ": ", ids.size(), " ids in one call"));
  }
  RowPull pull;
  pull.dim = table.dim;
  pull.packed = table.dim <= kPackUpToDim;
  // 1. Each distinct id gets a number, in order of its first occurrence: a hash table of numbers, half full at most.
  struct Distinct {
    uint64_t id;
    uint32_t segment;
    uint32_t count;
  };
  std::vector<Distinct> distinct;
  distinct.reserve(ids.size());
  std::vector<uint32_t> number(ids.size());
  std::vector<uint32_t> slots(std::bit_ceil(std::max<size_t>(2 * ids.size(), 16)), kNone);
  const size_t mask = slots.size() - 1;
  std::vector<size_t> begins(table.segments + 1, 0);   // of segments, counting distinct ids
  for (size_t i = 0; i < ids.size(); ++i) {
    if (table.vocabulary != 0 && ids[i] >= table.vocabulary) {
      if (!table.unknown_as_zero) return BeyondVocabulary(table, ids[i], i);
      pull.unknown.push_back(static_cast<uint32_t>(i));
      number[i] = kNone;
      continue;
    }
    const uint64_t hash = compression::MixId(ids[i]);
    size_t at = hash & mask;
    while (slots[at] != kNone && distinct[slots[at]].id != ids[i]) at = (at + 1) & mask;
    if (slots[at] == kNone) {
      slots[at] = static_cast<uint32_t>(distinct.size());
      const uint32_t segment = compression::SegmentOf(ids[i], table.segments);
      distinct.push_back({ids[i], segment, 0});
      ++begins[segment + 1];
    }
    number[i] = slots[at];
    ++distinct[slots[at]].count;
  }
  // 2. Distinct ids by segment (and by id where they are packed).
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<uint32_t> order(distinct.size());
  std::vector<size_t> next(begins.begin(), begins.end() - 1);
  for (uint32_t d = 0; d < distinct.size(); ++d) order[next[distinct[d].segment]++] = d;
  for (uint32_t s = 0; pull.packed && s < table.segments; ++s) {
    std::sort(order.begin() + static_cast<std::ptrdiff_t>(begins[s]), order.begin() + static_cast<std::ptrdiff_t>(begins[s + 1]),
              [&](uint32_t a, uint32_t b) { return distinct[a].id < distinct[b].id; });
  }
  // 3. Where each goes.
  pull.starts.resize(distinct.size() + 1);
  std::vector<uint32_t> cursor(distinct.size());
  for (size_t r = 0; r < order.size(); ++r) {
    cursor[order[r]] = pull.starts[r];
    pull.starts[r + 1] = pull.starts[r] + distinct[order[r]].count;
  }
  pull.places.resize(ids.size() - pull.unknown.size());
  for (uint32_t i = 0; i < ids.size(); ++i) {
    if (number[i] != kNone) pull.places[cursor[number[i]]++] = i;
  }
  // 4. Parts.
  const size_t most = std::max<size_t>(1, kPullPartBytes / (table.dim * sizeof(float)));
  std::vector<uint64_t> rows;
  for (uint32_t s = 0; s < table.segments; ++s) {
    for (size_t begin = begins[s]; begin < begins[s + 1]; begin += most) {
      const size_t end = std::min(begins[s + 1], begin + most);
      rows.clear();
      for (size_t r = begin; r < end; ++r) rows.push_back(distinct[order[r]].id);
      RowPull::Part part;
      part.segment = s;
      part.rows = static_cast<uint32_t>(rows.size());
      part.first = static_cast<uint32_t>(begin);
      if (pull.packed) {
        SLUICE_RETURN_IF_ERROR(compression::PackIds(rows, &part.payload));
      } else {
        const ConstBytes raw = std::as_bytes(std::span<const uint64_t>(rows));
        part.payload.assign(raw.begin(), raw.end());
      }
      pull.parts.push_back(std::move(part));
    }
  }
  return pull;
}

void PlaceRows(const RowPull& pull, const RowPull::Part& part, ConstBytes values, std::span<float> out) {
  const size_t row_bytes = pull.dim * sizeof(float);
  for (uint32_t r = 0; r < part.rows; ++r) {
    const std::byte* from = values.data() + r * row_bytes;
    for (uint32_t k = pull.starts[part.first + r]; k < pull.starts[part.first + r + 1]; ++k) {
      std::memcpy(out.data() + size_t{pull.places[k]} * pull.dim, from, row_bytes);
    }
  }
}

}  // namespace sluice::worker
