// Counts the stripes of one message. Stripes may come in any order and more than once; one that overlaps another in
// part, or lies outside the message, is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/status.h"

namespace sluice::transport {

class Reassembler {
 public:
  static constexpr size_t kMaxPieces = 1 << 14;  // more are refused: a bound on what a peer can make us keep

  explicit Reassembler(uint64_t total_bytes) : total_(total_bytes) {}
  // OK also for an exact repeat, which counts once.
  absl::Status Add(uint64_t offset, uint64_t bytes);
  bool complete() const { return received_ == total_; }
  uint64_t received() const { return received_; }
  uint64_t total() const { return total_; }

 private:
  uint64_t total_;
  uint64_t received_ = 0;
  std::map<uint64_t, uint64_t> pieces_;  // offset -> bytes
};

}  // namespace sluice::transport
