// The sum of the open round of one partition, in the order that the plan names.
//
// rank   Contributions are added in order of rank. One that comes early waits encoded (its Payload keeps the memory of
//        the receiver's pool), and is added when all ranks below it are there:
//          t=0  rank 2 arrives: waits           floor 0
//          t=1  rank 0 arrives: added           floor 1
//          t=2  rank 1 arrives: added, then 2   floor 3
// exact  Added on arrival to reproducible sums; any order gives the same bits.
// fast   Added on arrival.
// With rank and fast the first contribution is assigned, not added to zeros (server/math/reduce.h): the sum grows in the
// block that becomes the aggregate, without a copy. Memory is held only while a round is open.
// A forward (docs/wire.md, "A push through a tree") is the sum of several ranks' contributions: added as one, at the place of its
// smallest rank; with order exact its bins are merged. At an aggregator the reducer makes such sums itself.
// What is plain fp32 is taken in pieces that stay in the cache, the same bits with fewer passes over memory: the last
// contribution is added, divided and checked in one; and a first one that the sender lends (shared memory) waits for the
// second, so that their sum is written without a copy of the first.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compression/codec.h"
#include "proto/config.pb.h"
#include "server/block.h"
#include "server/math/reduce.h"
#include "transport/transport.h"

namespace sluice::server {

// Exact accumulators between rounds, for reuse: a few are kept, the rest is given back.
class ExactPool {
 public:
  std::unique_ptr<RoundSum> Get(size_t elements);
  void Put(std::unique_ptr<RoundSum> sum);
  uint64_t bytes() const { return kept_bytes_; }

 private:
  std::map<size_t, std::vector<std::unique_ptr<RoundSum>>> free_;
  uint64_t kept_bytes_ = 0;
};

struct Reduced {
  BlockPtr sum;          // or mean
  bool finite = true;    // no NaN, no infinity in it
};

class RoundReducer {
 public:
  RoundReducer(proto::Order order, proto::Reduction reduction, size_t elements, BlockPool* blocks, ExactPool* exact)
      : order_(order), reduction_(reduction), elements_(elements), blocks_(blocks), exact_pool_(exact) {}

  // A validated contribution; codec null: its presence only. `floor`: all ranks below it have contributed (this one
  // included), or are not waited for. `last`: Finish follows before anything else.
  // ranks: of how many it is the sum; `rank` is the smallest of them then.
  absl::Status Add(uint32_t rank, const compression::Codec* codec, transport::Payload payload, uint32_t floor, bool last,
                   uint32_t ranks = 1);
  // Order exact: bins of so many contributions. INVALID_ARGUMENT: they are none, and nothing has changed.
  absl::Status AddBins(uint32_t rank, ConstBytes bins, uint32_t ranks);
  // Membership changed: ranks below `floor` are not waited for any more.
  absl::Status Raise(uint32_t floor);

  // In the order of reduction so far (exact: of arrival, which does not matter).
  const std::vector<uint32_t>& added() const { return added_; }

  // Order exact: what was added, in the form of AddBins; null if no values were.
  const ExactSum* bins() { return exact_ == nullptr ? nullptr : &exact_->exact_sum(); }

  // The sum or mean of what was added (zeros if nothing was). Ends the round: memory goes back, nothing is added.
  absl::StatusOr<Reduced> Finish();
  void Discard();

 private:
  struct Held {
    const compression::Codec* codec = nullptr;
    transport::Payload payload;
    uint32_t ranks = 1;
  };
  absl::Status Consume(uint32_t rank, Held held, bool last);
  absl::Status AddPlain(const Held& held, bool first, bool last);

  const proto::Order order_;
  const proto::Reduction reduction_;
  const size_t elements_;
  BlockPool* const blocks_;
  ExactPool* const exact_pool_;

  std::map<uint32_t, Held> held_;     // order rank: early ones
  BlockPtr sum_;                      // rank, fast: null until the first payload (and while it is lent_)
  Held lent_;                         // rank, fast: the first payload, plain and by reference, waits for the second
  std::unique_ptr<RoundSum> exact_;   // exact
  bool finished_ = false;             // AddPlain has divided and checked the sum,
  bool finite_ = true;                // and found this
  std::vector<uint32_t> added_;
  uint32_t contributors_ = 0;         // ranks that what was added is the sum of
};

}  // namespace sluice::server
