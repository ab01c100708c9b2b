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

absl::Status BeyondVocabulary(const TableShape& table, uint64_t id, size_t position) {
  return absl::InvalidArgumentError(absl::StrCat("table ", table.name, ": id ", id, " at position ", position,
                                                 " is not below the vocabulary of ", table.vocabulary,
                                                 " (unknown_as_zero reads such rows as zeros)"));
}

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

}  // namespace sluice::worker
