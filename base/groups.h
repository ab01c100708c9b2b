// Parallel groups of a job's ranks (job.groups): "tensor:8,pipeline:4,data:16", innermost first.
//
// The sizes' product is the number of workers, and ranks count the innermost axis fastest: of the example,
// rank = (data * 4 + pipeline) * 8 + tensor. The group of a rank along an axis is the ranks that differ from it there alone.
// "world", all ranks, is always there.
//
//   tensor:2,data:3    rank 0 1 | 2 3 | 4 5     along tensor: {0,1} {2,3} {4,5}     along data: {0,2,4} {1,3,5}
//
// Pure. Scheduler (placement, checks of a job) and workers (collectives) read groups by this file alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

inline constexpr size_t kMaxGroupAxes = 8;
inline constexpr size_t kMaxGroupNameBytes = 32;
inline constexpr absl::string_view kWorldGroup = "world";

struct GroupAxis {
  std::string name;
  uint32_t size = 1;
  uint32_t stride = 1;   // distance of neighbours' ranks: the product of the sizes before it
};

// One group, as one of its ranks sees it. Members are first, first + stride, …
struct RankGroup {
  uint32_t number = 0;   // of its axis: 0 = world, then in the order of job.groups. The same on all ranks
  std::string name;
  uint32_t first = 0;
  uint32_t stride = 1;
  uint32_t size = 1;
  uint32_t index = 0;    // of this rank among the members

  uint32_t rank(uint32_t member) const { return first + member * stride; }
  bool Contains(uint32_t rank) const {
    return rank >= first && (rank - first) % stride == 0 && (rank - first) / stride < size;
  }
  uint32_t IndexOf(uint32_t rank) const { return (rank - first) / stride; }   // of a member
};

class Groups {
 public:
  Groups() = default;   // one worker, world alone
  // INVALID_ARGUMENT names job.groups, what is wrong, and what would do. "" = world alone.
  static absl::StatusOr<Groups> Parse(absl::string_view text, uint32_t workers);

  uint32_t workers() const { return workers_; }
  const std::vector<GroupAxis>& axes() const { return axes_; }
  // The group of `rank` along an axis, or world ("" means it too). NOT_FOUND lists the names that there are.
  absl::StatusOr<RankGroup> Of(uint32_t rank, absl::string_view name) const;
  absl::StatusOr<RankGroup> Of(uint32_t rank, uint32_t number) const;

 private:
  uint32_t workers_ = 1;
  std::vector<GroupAxis> axes_;
};

}  // namespace sluice
