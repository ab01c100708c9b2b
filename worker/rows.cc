#include "worker/rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "compression/row_payload.h"

namespace sluice::worker {
namespace {

// PackIds takes fewer: refused before residuals change.
constexpr size_t kMostRowsOfPayload = 1 << 28;

// Positions of the ids, ordered by segment, then id, then occurrence.
struct Sorted {
  std::vector<uint32_t> order;
  std::vector<size_t> begins;   // segments + 1: where each begins in order
  std::vector<uint32_t> unknown;
  bool repeats = false;         // some id stands twice
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
    sorted.repeats = sorted.repeats || std::ranges::adjacent_find(keyed, {}, [](const auto& entry) { return entry.first; }) != keyed.end();
    std::ranges::transform(keyed, begin, [](const auto& entry) { return entry.second; });
  }
  return sorted;
}

// Finite values whose sum is not: said before anything is encoded.
absl::Status CheckSums(const TableShape& table, const Sorted& sorted, std::span<const uint64_t> ids,
                       std::span<const float> gradients) {
  const size_t dim = table.dim;
  std::vector<float> sum(dim);
  for (size_t k = 0; k < sorted.order.size();) {
    const uint64_t id = ids[sorted.order[k]];
    size_t end = k + 1;
    while (end < sorted.order.size() && ids[sorted.order[end]] == id) ++end;
    if (end > k + 1) {
      std::ranges::fill(sum, -0.0f);   // the neutral element of an addition, to the bit
      for (size_t j = k; j < end; ++j) {
        for (size_t i = 0; i < dim; ++i) sum[i] += gradients[sorted.order[j] * dim + i];
      }
      if (const size_t bad = compression::FirstNonfinite(sum); bad != dim) {
        return absl::InvalidArgumentError(absl::StrFormat("push to table %s: the duplicates of row id %d sum up to %g",
                                                          table.name, id, static_cast<double>(sum[bad])));
      }
    }
    k = end;
  }
  return absl::OkStatus();
}

const compression::Codec& CodecOf(const TableShape& table) {
  return table.codec != nullptr ? *table.codec
                                : *compression::DecoderFor(static_cast<uint16_t>(compression::CodecId::kNone));
}

}  // namespace

absl::Status BeyondVocabulary(const TableShape& table, uint64_t id, size_t position) {
  return absl::InvalidArgumentError(absl::StrCat("table ", table.name, ": id ", id, " at position ", position,
                                                 " is not below the vocabulary of ", table.vocabulary,
                                                 " (unknown_as_zero reads such rows as zeros)"));
}

absl::StatusOr<RowPush> PrepareRowPush(const TableShape& table, std::span<const uint64_t> ids,
                                       std::span<const float> gradients) {
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
  for (uint32_t s = 0; s < table.segments; ++s) {
    if (sorted.begins[s + 1] - sorted.begins[s] >= kMostRowsOfPayload) {
      return absl::InvalidArgumentError(absl::StrCat("push to table ", table.name, ": ",
                                                     sorted.begins[s + 1] - sorted.begins[s], " rows of one segment; below ",
                                                     kMostRowsOfPayload, " are possible: push in parts"));
    }
  }
  if (sorted.repeats) SLUICE_RETURN_IF_ERROR(CheckSums(table, sorted, ids, gradients));
  const compression::Codec& codec = CodecOf(table);
  std::optional<RowResidual::Push> feedback;
  if (table.residual != nullptr && !codec.lossless()) feedback.emplace(table.residual.get());
  RowPush push;
  push.parts.resize(table.segments);
  push.codec = static_cast<uint16_t>(codec.id());
  std::vector<uint64_t> rows;
  std::vector<float> values, residual, residual_next;
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
    RowPush::Part& part = push.parts[s];
    part.rows = static_cast<uint32_t>(rows.size());
    push.raw_bytes += values.size() * sizeof(float);
    part.payload.reserve(compression::MaxPackedIdBytes(rows.size()) + codec.MaxEncodedBytes(values.size()));
    SLUICE_RETURN_IF_ERROR(compression::PackIds(rows, &part.payload));
    const size_t head = part.payload.size();
    part.payload.resize(head + codec.MaxEncodedBytes(values.size()));
    compression::EncodeInput input;
    input.gradient = values;
    if (feedback.has_value()) {
      residual.resize(values.size());
      residual_next.resize(values.size());
      feedback->Take(rows, residual);
      input.residual = residual;
      input.residual_out = residual_next;
    }
    SLUICE_ASSIGN_OR_RETURN(const size_t bytes, codec.Encode(input, MutableBytes(part.payload).subspan(head)));
    if (feedback.has_value()) feedback->Keep(rows, residual_next);
    part.payload.resize(head + bytes);
  }
  return push;
}

void ReturnRows(const TableShape& table, const RowPush::Part& part) {
  if (table.residual == nullptr || part.rows == 0) return;
  // Our own encoding of our own size: it cannot fail.
  const auto rows = compression::ParseRows(part.payload, part.rows);
  if (!rows.ok()) return;
  std::vector<float> values(rows->ids.size() * table.dim);
  if (CodecOf(table).Decode(rows->values, values).ok()) table.residual->Return(rows->ids, values);
}

}  // namespace sluice::worker
