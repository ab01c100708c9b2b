#include "scheduler/loads.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace sluice::scheduler {
namespace {

constexpr TimeNs kShortest = 100 * kMillisecond;   // servers look at their counters so often
constexpr int kMaxLoops = 64;

double Share(double used, double of) { return of > 0 ? used / of : 0; }

// What a link carries of payload.
double InPayload(double link, double payload, double network) {
  if (link == 0 || payload < 1) return link;
  return network < 1 ? 0 : link * payload / network;
}

}  // namespace

Cost& Cost::operator+=(const Cost& other) {
  cpu += other.cpu;
  in += other.in;
  out += other.out;
  return *this;
}

Cost& Cost::operator-=(const Cost& other) {
  cpu = std::max(0.0, cpu - other.cpu);
  in = std::max(0.0, in - other.in);
  out = std::max(0.0, out - other.out);
  return *this;
}

double LoadOf(const Cost& cost, const Capacity& capacity) {
  return std::max({Share(cost.cpu, capacity.cpu), Share(cost.in, capacity.in), Share(cost.out, capacity.out)});
}

std::string SizeText(uint64_t bytes) {
  return bytes < (1 << 20) ? absl::StrFormat("%.1f KiB", static_cast<double>(bytes) / (1 << 10))
                           : absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string LoadText(const Cost& cost, const Capacity& capacity) {
  return absl::StrFormat("%.0f %% (CPU %.0f %%, %s/s)", 100 * LoadOf(cost, capacity),
                         100 * Share(cost.cpu, capacity.cpu), SizeText(static_cast<uint64_t>(cost.in + cost.out)));
}

Cost Loads::Of(uint32_t shard, uint32_t server) const {
  const auto it = shards.find({shard, server});
  return it == shards.end() ? Cost{} : it->second;
}

void LoadMeter::Rate::Take(uint64_t value, double seconds, double weight) {
  if (begun && value >= last) {
    const double sample = static_cast<double>(value - last) / seconds;
    rate = known ? rate + weight * (sample - rate) : sample;
    known = true;
  } else {
    known = false;   // the first, or of another life
    rate = 0;
  }
  begun = true;
  last = value;
}

void LoadMeter::Take(const proto::ServerCost& cost, TimeNs now, TimeNs smoothing) {
  if (at_ != 0 && now - at_ < kShortest) return;
  const double seconds = at_ == 0 ? 1 : static_cast<double>(now - at_) / kSecond;
  const double weight = 1 - std::exp(-seconds * kSecond / static_cast<double>(std::max<TimeNs>(1, smoothing)));
  if (first_ == 0) first_ = now;
  at_ = now;
  ++samples_;
  uint64_t cpu = 0;
  const int loops = std::min(cost.loop_cpu_us_size(), kMaxLoops);
  for (int i = 0; i < loops; ++i) cpu += cost.loop_cpu_us(i);
  loops_ = loops;
  link_ = static_cast<double>(cost.link_bytes());
  cpu_.Take(cpu, seconds * 1e6, weight);
  net_in_.Take(cost.net_bytes_in(), seconds, weight);
  net_out_.Take(cost.net_bytes_out(), seconds, weight);
  const int shards = std::min(cost.shards_size(), kMaxReportedCosts);
  for (int i = 0; i < shards; ++i) {
    const proto::ShardCost& shard = cost.shards(i);
    Traffic& traffic = shards_[{shard.job(), shard.shard()}];
    if (traffic.seen == samples_) continue;   // twice in one heartbeat
    traffic.seen = samples_;
    traffic.in.Take(shard.bytes_in(), seconds, weight);
    traffic.out.Take(shard.bytes_out(), seconds, weight);
  }
  std::erase_if(shards_, [&](const auto& entry) { return entry.second.seen != samples_; });
  in_ = out_ = 0;
  for (const auto& [key, traffic] : shards_) {
    in_ += traffic.in.rate;
    out_ += traffic.out.rate;
  }
}

bool LoadMeter::Knows(TimeNs now, TimeNs smoothing, TimeNs fresh) const {
  return at_ != 0 && at_ - first_ >= smoothing && now - at_ <= fresh;
}

Capacity LoadMeter::capacity() const {
  return {loops_, InPayload(link_, in_, net_in_.rate), InPayload(link_, out_, net_out_.rate)};
}

Cost LoadMeter::Of(uint32_t job, uint32_t shard) const {
  const auto it = shards_.find({job, shard});
  if (it == shards_.end()) return {};
  const double in = it->second.in.rate, out = it->second.out.rate;
  return {cpu_.rate * Share(in + out, in_ + out_), in, out};
}

}  // namespace sluice::scheduler
