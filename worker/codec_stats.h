// What codecs do to the tensors of this worker, measured now and then: job.codec_stats_rounds.
//
// A round is measured whole: its partitions are encoded one by one, each is looked at again right after (one more pass over
// gradient and residuals), and the tensor's numbers are out when the last of them is in. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "compression/measure.h"
#include "proto/control.pb.h"

namespace sluice::worker {

class CodecStats {
 public:
  void set_every(uint64_t rounds) { every_ = rounds; }   // 0 = never
  // Rounds 1, 1 + every, …: round 0 is most often a broadcast.
  bool Wanted(uint64_t round) const { return every_ != 0 && round % every_ == 1 % every_; }

  // One partition's part of a round; partitions: how many the tensor has.
  void Add(uint32_t tensor, size_t partitions, uint64_t round, const std::string& codec, uint64_t raw_bytes,
           uint64_t wire_bytes, const compression::EncodingNorms& norms);

  // The last whole measurement of each tensor, by tensor.
  const std::map<uint32_t, proto::TensorCodecState>& latest() const { return latest_; }
  // Changes with latest().
  uint64_t version() const { return version_; }
  // Those that have changed since they were taken last, at most `most`; the rest follows with the next calls.
  std::vector<proto::TensorCodecState> TakeFresh(size_t most);

 private:
  struct Open {
    uint64_t round = 0;
    size_t partitions = 0;   // seen
    uint64_t raw_bytes = 0, wire_bytes = 0;
    compression::EncodingNorms norms;
  };

  uint64_t every_ = 0, version_ = 0;
  std::map<uint32_t, Open> open_;
  std::map<uint32_t, proto::TensorCodecState> latest_;
  std::set<uint32_t> fresh_;
  uint32_t next_ = 0;   // where TakeFresh goes on
};

}  // namespace sluice::worker
