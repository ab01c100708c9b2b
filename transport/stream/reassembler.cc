#include "transport/stream/reassembler.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace sluice::transport {

absl::Status Reassembler::Add(uint64_t offset, uint64_t bytes) {
  if (offset > total_ || bytes > total_ - offset)
    return absl::InvalidArgumentError(
        absl::StrCat("stripe ", offset, "+", bytes, " lies outside its message of ", total_, " bytes"));
  if (bytes == 0) return absl::OkStatus();
  const auto next = pieces_.lower_bound(offset);
  if (next != pieces_.end() && next->first == offset && next->second == bytes) return absl::OkStatus();  // a repeat
  const bool overlaps_next = next != pieces_.end() && next->first - offset < bytes;
  const bool overlaps_previous =
      next != pieces_.begin() && std::prev(next)->first + std::prev(next)->second > offset;
  if (overlaps_next || overlaps_previous)
    return absl::InvalidArgumentError(absl::StrCat("stripe ", offset, "+", bytes, " overlaps another in part"));
  if (pieces_.size() == kMaxPieces)
    return absl::ResourceExhaustedError(absl::StrCat("a message in more than ", kMaxPieces, " stripes"));
  pieces_.emplace_hint(next, offset, bytes);
  received_ += bytes;
  return absl::OkStatus();
}

}  // namespace sluice::transport
