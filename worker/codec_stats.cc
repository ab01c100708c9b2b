#include "worker/codec_stats.h"

#include <cmath>

namespace sluice::worker {
namespace {

double Share(double part, double whole) { return part == 0 ? 0 : whole > 0 ? std::sqrt(part / whole) : HUGE_VAL; }

}  // namespace

void CodecStats::Add(uint32_t tensor, size_t partitions, uint64_t round, const std::string& codec, uint64_t raw_bytes,
                     uint64_t wire_bytes, const compression::EncodingNorms& norms) {
  Open& open = open_[tensor];
  if (open.partitions == 0 || open.round != round) open = Open{.round = round};   // the last one was not finished
  ++open.partitions;
  open.raw_bytes += raw_bytes;
  open.wire_bytes += wire_bytes;
  open.norms += norms;
  if (open.partitions < partitions) return;
  proto::TensorCodecState& state = latest_[tensor];
  state.set_tensor(tensor);
  state.set_codec(codec);
  state.set_round(round);
  state.set_raw_bytes(open.raw_bytes);
  state.set_wire_bytes(open.wire_bytes);
  state.set_relative_error(Share(open.norms.error, open.norms.point));
  state.set_residual_ratio(Share(open.norms.residual, open.norms.gradient));
  fresh_.insert(tensor);
  ++version_;
  open_.erase(tensor);
}

std::vector<proto::TensorCodecState> CodecStats::TakeFresh(size_t most) {
  std::vector<proto::TensorCodecState> taken;
  auto it = fresh_.lower_bound(next_);
  while (!fresh_.empty() && taken.size() < most) {
    if (it == fresh_.end()) it = fresh_.begin();
    taken.push_back(latest_.at(*it));
    next_ = *it + 1;
    it = fresh_.erase(it);
  }
  return taken;
}

}  // namespace sluice::worker
