// A round's sum as a backup gets it, dense or sparse (server/sparse_sum.h). The optimizer's step reads it where it lies,
// or in pieces that stay in the cache: no copy of it is written to memory.
//
// The bytes may lie in memory that the sender shares with us, and may change: then the numbers are wrong, and no more.
// Of a sparse sum, where an index could be too, what is checked and used is a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace sluice::server {

class SentSum {
 public:
  // form and count: RoundHead. `bytes` outlive this. INVALID_ARGUMENT says what is wrong with them.
  static absl::StatusOr<SentSum> Parse(uint32_t form, uint64_t count, ConstBytes bytes, size_t elements);

  size_t elements() const { return elements_; }
  // take(first, values) for ranges that cover all elements, in rising order. Ranges may be empty.
  void ForPieces(absl::FunctionRef<void(size_t first, std::span<const float> values)> take) const;
  void CopyTo(std::span<float> out) const;   // elements()

 private:
  SentSum(uint32_t form, size_t count, size_t elements) : form_(form), count_(count), elements_(elements) {}
  // Calls visit(first, indices) as compression/index_pack.h does.
  template <typename Visit>
  absl::Status VisitIndices(Visit visit) const;

  uint32_t form_;
  size_t count_, elements_;
  ConstBytes dense_;
  std::vector<std::byte> sparse_;
};

}  // namespace sluice::server
