#include "server/sent_sum.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/stream_copy.h"
#include "compression/index_pack.h"
#include "server/sparse_sum.h"

namespace sluice::server {
namespace {

constexpr size_t kPieceElements = 4 << 10;   // 16 KiB: stays in L1 between being written and being applied

}  // namespace

absl::StatusOr<SentSum> SentSum::Parse(uint32_t form, uint64_t count, ConstBytes bytes, size_t elements) {
  if (form == kSumDense) {
    if (bytes.size() != elements * sizeof(float)) {
      return absl::InvalidArgumentError(
          absl::StrCat(bytes.size(), " bytes of values; ", elements * sizeof(float), " belong there"));
    }
    SentSum sum(form, elements, elements);
    sum.dense_ = bytes;
    return sum;
  }
  if (form != kSumGaps && form != kSumBitmap) {
    return absl::InvalidArgumentError(absl::StrCat("values in form ", form, ", which this release does not know"));
  }
  if (count > elements || bytes.size() / sizeof(float) < count) {
    return absl::InvalidArgumentError(
        absl::StrCat(count, " values for ", elements, " elements in ", bytes.size(), " bytes"));
  }
  SentSum sum(form, count, elements);
  sum.sparse_.assign(bytes.begin(), bytes.end());
  SLUICE_RETURN_IF_ERROR(sum.VisitIndices([](size_t, std::span<const uint32_t>) {}));
  return sum;
}

template <typename Visit>
absl::Status SentSum::VisitIndices(Visit visit) const {
  const ConstBytes indices = ConstBytes(sparse_).subspan(count_ * sizeof(float));
  return form_ == kSumGaps ? compression::VisitGaps(indices, count_, elements_, visit)
                           : compression::VisitBitmap(indices, count_, elements_, visit);
}

void SentSum::ForPieces(absl::FunctionRef<void(size_t, std::span<const float>)> take) const {
  if (form_ == kSumDense && reinterpret_cast<uintptr_t>(dense_.data()) % alignof(float) == 0) {
    take(0, {reinterpret_cast<const float*>(dense_.data()), elements_});
    return;
  }
  float piece[kPieceElements] = {};
  size_t begin = 0;
  const auto next = [&] {
    const size_t length = std::min(kPieceElements, elements_ - begin);
    take(begin, std::span<const float>(piece, length));
    begin += length;
  };
  if (form_ == kSumDense) {
    while (begin < elements_) {
      const ConstBytes part = dense_.subspan(begin * sizeof(float));
      std::memcpy(piece, part.data(), std::min(part.size(), sizeof(piece)));
      next();
    }
    return;
  }
  (void)VisitIndices([&](size_t first, std::span<const uint32_t> group) {   // Parse has seen that nothing is wrong
    for (size_t j = 0; j < group.size(); ++j) {
      for (; group[j] >= begin + kPieceElements; std::memset(piece, 0, sizeof(piece))) next();
      std::memcpy(&piece[group[j] - begin], &sparse_[(first + j) * sizeof(float)], sizeof(float));
    }
  });
  for (; begin < elements_; std::memset(piece, 0, sizeof(piece))) next();
}

void SentSum::CopyTo(std::span<float> out) const {
  if (form_ == kSumDense) {
    StreamCopy(dense_, std::as_writable_bytes(out));   // most of a backup's values are never read
    return;
  }
  std::ranges::fill(out, 0.0f);
  (void)VisitIndices([&](size_t first, std::span<const uint32_t> group) {
    for (size_t j = 0; j < group.size(); ++j) {
      std::memcpy(&out[group[j]], &sparse_[(first + j) * sizeof(float)], sizeof(float));
    }
  });
}

}  // namespace sluice::server
