// Memory for values: parameters, replicas, aggregates, encoded changes, and the accumulators of open rounds.
//
// A block may be lent to the transport (a reply that goes out by reference or in stripes); it must not change while it
// is. So blocks are counted, and a writer that is not the only holder takes another one:
//   t=0  partition  value_ = A; replies lend A            (count 3)
//   t=1  next round closes while one reply is still out   -> writes into a fresh block B, value_ = B   (A: count 1)
//   t=2  the transport lets go of A                       -> A returns to the pool
// Blocks that nobody holds are kept for the next round: their number is bounded by what was in use at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/transport.h"

namespace sluice::server {

class Block {
 public:
  Block(std::shared_ptr<std::byte> memory, size_t elements) : memory_(std::move(memory)), elements_(elements) {}
  std::span<float> values() { return {reinterpret_cast<float*>(memory_.get()), elements_}; }
  std::span<const float> values() const { return {reinterpret_cast<const float*>(memory_.get()), elements_}; }
  MutableBytes bytes() { return {memory_.get(), elements_ * sizeof(float)}; }
  ConstBytes bytes() const { return {memory_.get(), elements_ * sizeof(float)}; }

 private:
  std::shared_ptr<std::byte> memory_;
  size_t elements_;
};

using BlockPtr = std::shared_ptr<Block>;

// Single-threaded. Blocks may outlive the pool.
class BlockPool {
 public:
  // With an endpoint, blocks come from its memory, which it can send without a copy; without, from the heap.
  explicit BlockPool(transport::Endpoint* endpoint);
  ~BlockPool();

  // The content is unspecified. RESOURCE_EXHAUSTED says how much was asked for and how much is in use.
  absl::StatusOr<BlockPtr> Get(size_t elements);
  absl::StatusOr<BlockPtr> GetZeroed(size_t elements);

  // Gives what nobody holds back to the system (when a job ends).
  void Trim();
  uint64_t bytes() const;   // in use and kept

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// True if somebody else (the transport, a cached reply) holds the block too: it must not be written.
inline bool IsShared(const BlockPtr& block) { return block.use_count() > 1; }

}  // namespace sluice::server
