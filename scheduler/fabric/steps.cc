#include "scheduler/fabric/steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "scheduler/fabric/step_parts.h"

namespace sluice::fabric {
namespace {

using Parts = std::vector<Routes::Part>;

constexpr size_t kLatencySamples = 1024;   // pairs of which the farthest is taken for the farthest of all

// Adds up what the stages of an exchange put on arcs.
class StageLoads {
 public:
  StageLoads(const Routes& routes, double efficiency) : routes_(routes), efficiency_(efficiency), all_(routes.arcs()), stage_(routes.arcs()) {}

  void Add(const Parts& senders, const Parts& receivers) {
    if (!senders.empty() && !receivers.empty()) complete_ = routes_.AddLoads(senders, receivers, &stage_) && complete_;
  }
  // One pair; returns its latency, infinite if there is no way.
  double Add(uint32_t from, uint32_t to, double bytes) {
    const bool found = routes_.Spread(from, to, [&](uint32_t arc, double share) { stage_[arc] += bytes * share; });
    complete_ = complete_ && found;
    return found ? routes_.Latency(from, to) : 0;
  }

  // Ends a stage; returns the time of its busiest arc.
  double End() {
    double longest = 0;
    for (uint32_t arc = 0; arc < stage_.size(); ++arc) {
      if (stage_[arc] == 0) continue;
      longest = std::max(longest, stage_[arc] / (routes_.BytesPerSecond(arc) * efficiency_));
      all_[arc] += stage_[arc];
      stage_[arc] = 0;
    }
    return longest;
  }
  std::vector<double>& all() { return all_; }
  bool complete() const { return complete_; }

 private:
  const Routes& routes_;
  const double efficiency_;
  std::vector<double> all_, stage_;
  bool complete_ = true;
};

double FarthestLatency(const Routes& routes, const std::vector<uint32_t>& from, const std::vector<uint32_t>& to) {
  if (from.empty() || to.empty()) return 0;
  const size_t pairs = from.size() * to.size(), step = std::max<size_t>(1, pairs / kLatencySamples);
  double most = 0;
  for (size_t i = 0; i < pairs; i += step) {
    const double latency = routes.Latency(from[i / to.size()], to[i % to.size()]);
    if (std::isfinite(latency)) most = std::max(most, latency);
  }
  return most;
}

Parts Times(Parts parts, double factor) {
  for (Routes::Part& part : parts) part.weight *= factor;
  return parts;
}

// The most that a server adds up: pushes and sums that come to it, bytes.
double MostAdded(const StepSpec& spec, const std::vector<Stream>& streams) {
  std::vector<double> added(spec.servers.size());
  for (const Stream& stream : streams) {
    double tops = 0;
    if (stream.tree >= 0)
      for (const StepTree::Node& node : spec.trees[stream.tree].nodes) {
        added[node.server] += static_cast<double>(node.ranks.size()) * stream.Total() * spec.push_ratio;
        if (node.parent < 0) ++tops;
        else added[spec.trees[stream.tree].nodes[node.parent].server] += stream.Total() * spec.forward_ratio;
      }
    for (const auto& [owner, bytes] : stream.bytes)
      added[owner] += bytes * (static_cast<double>(stream.direct.size()) * spec.push_ratio + tops * spec.forward_ratio);
  }
  return added.empty() ? 0 : *std::max_element(added.begin(), added.end());
}

}  // namespace

absl::StatusOr<StepModel> StepModel::Create(const Routes* routes, const StepSpec& spec) {
  SLUICE_RETURN_IF_ERROR(CheckStep(spec));
  if (!spec.beside.empty() && spec.beside.size() != routes->arcs())
    return absl::InvalidArgumentError(absl::StrCat("a step: other traffic on ", spec.beside.size(), " arcs of ", routes->arcs()));
  StepModel model;
  model.beside_ = spec.beside;
  model.routes_ = routes;
  model.compute_s_ = spec.compute_s;
  model.overlap_ = spec.overlap;
  model.efficiency_ = spec.efficiency;
  model.utilization_ = spec.utilization;
  model.collective_bytes_ = spec.collective_bytes;

  // Servers: stages there, then stages back.
  const std::vector<Stream> streams = StreamsOf(spec);
  std::vector<bool> owns(spec.servers.size());
  size_t stages = 0;
  std::vector<std::vector<std::vector<StageExchange>>> of_streams;
  for (const Stream& stream : streams) {
    of_streams.push_back(StagesOf(spec, stream));
    stages = std::max(stages, of_streams.back().size());
    model.server_bytes_ += stream.Total();
    for (const auto& [owner, bytes] : stream.bytes) owns[owner] = owns[owner] || bytes > 0;
  }
  StageLoads loads(*routes, spec.efficiency);
  for (const bool back : {false, true}) {
    for (size_t s = 0; s < stages; ++s) {
      for (const auto& of : of_streams) {
        if (s >= of.size()) continue;
        for (const StageExchange& exchange : of[s]) {
          if (back) loads.Add(Times(exchange.to, spec.reply_ratio), exchange.from);
          else loads.Add(exchange.from, Times(exchange.to, s == 0 ? spec.push_ratio : spec.forward_ratio));
        }
      }
      const double longest = loads.End();
      model.server_stages_ += longest;
      model.server_longest_ = std::max(model.server_longest_, longest);
    }
  }
  if (model.server_bytes_ > 0) {
    const double unit = 1 / model.server_bytes_;
    for (double& load : loads.all()) load *= unit;
    model.server_stages_ *= unit;
    model.server_longest_ *= unit;
    if (spec.server_bytes_per_second > 0) model.server_adding_ = MostAdded(spec, streams) * unit / spec.server_bytes_per_second;
    const double owners = static_cast<double>(std::count(owns.begin(), owns.end(), true));
    model.partitions_per_byte_ = 1 / (owners * spec.partition_bytes);
    // There and back; each level of a tree is one more way.
    model.server_latency_ = 2 * static_cast<double>(stages) * FarthestLatency(*routes, spec.workers, spec.servers);
  }
  model.server_load_ = std::move(loads.all());
  model.complete_ = loads.complete();

  // Rings: one level after the other.
  StageLoads rings(*routes, spec.efficiency * spec.utilization);
  for (const std::vector<Ring>& level : RingsOf(spec)) {
    double inside = 0, latency = 0;
    for (const Ring& ring : level) {
      const size_t m = ring.ranks.size();
      const double bytes = (static_cast<double>(m) - 1) / static_cast<double>(m) * ring.part * (spec.reduce_ratio + spec.gather_ratio);
      double farthest = 0;
      for (size_t i = 0; i < m; ++i) {
        const uint32_t from = spec.workers[ring.ranks[i]], to = spec.workers[ring.ranks[(i + 1) % m]];
        if (from == to) inside = std::max(inside, bytes / spec.inside_bytes_per_second);
        else farthest = std::max(farthest, rings.Add(from, to, bytes));
      }
      latency = std::max(latency, 2 * (static_cast<double>(m) - 1) * farthest);
    }
    model.collective_levels_ += std::max(inside, rings.End());
    model.collective_latency_ += latency;
  }
  model.collective_load_ = std::move(rings.all());
  model.complete_ = model.complete_ && rings.complete();
  return model;
}

StepPrediction StepModel::PredictWith(double server_bytes, double collective_bytes, size_t busiest) const {
  StepPrediction prediction{.compute_s = compute_s_, .complete = complete_};
  std::vector<double> load(server_load_.size());
  double longest = 0, longest_servers = 0, longest_beside = 0;   // the last: of the arcs of the exchange with servers, all that is on them
  for (uint32_t arc = 0; arc < load.size(); ++arc) {
    const double beside = beside_.empty() ? 0 : beside_[arc], servers = server_bytes * server_load_[arc];
    load[arc] = servers + collective_bytes * collective_load_[arc] + beside;
    if (load[arc] == 0) continue;
    const double rate = routes_->BytesPerSecond(arc) * efficiency_;
    longest = std::max(longest, load[arc] / rate);
    if (servers == 0) continue;
    longest_servers = std::max(longest_servers, servers / rate);
    longest_beside = std::max(longest_beside, (servers + beside) / rate);
  }
  // The first partition has to go through all stages; with one partition that is all there is.
  const double partitions = std::max(1.0, server_bytes * partitions_per_byte_);
  const double all_stages = server_bytes * server_stages_;
  // Where others follow it, gaps of congestion control come on top.
  const double follow = server_bytes > 0 ? std::min(1.0, partitions - 1) : 1;
  const double gaps = 1 + follow * (1 / utilization_ - 1);
  const double servers = gaps * (std::min(all_stages, longest_servers + (all_stages - server_bytes * server_longest_) / partitions) +
                                 longest_beside - longest_servers);
  const double collective = collective_bytes * collective_levels_;
  const double server_latency = server_bytes > 0 ? server_latency_ : 0, collective_latency = collective_bytes > 0 ? collective_latency_ : 0;
  const double server_time = std::max(servers, server_bytes * server_adding_) + server_latency;
  prediction.communication_s = std::max({gaps * longest, server_time, collective + collective_latency});
  prediction.latency_s = server_time >= collective + collective_latency ? server_latency : collective_latency;
  prediction.step_s = compute_s_ + std::max(0.0, prediction.communication_s - overlap_ * compute_s_);
  prediction.busiest = Busiest(load, *routes_, efficiency_, busiest);
  return prediction;
}

Hybrid ChooseHybrid(const StepModel& model, const std::vector<double>& tensor_bytes, double by_servers, double by_collective) {
  const auto predict = [&](double servers, double collective, size_t busiest) {
    return model.PredictWith(by_servers + servers, by_collective + collective, busiest);
  };
  constexpr size_t kSplits = 64;
  Hybrid best;
  double total = 0;
  for (const double bytes : tensor_bytes) total += bytes;
  best.all_servers = predict(total, 0, 8);
  best.all_collective = predict(0, total, 8);
  const bool servers_first = best.all_servers.step_s <= best.all_collective.step_s;
  best.by_servers.assign(tensor_bytes.size(), servers_first);
  best.prediction = servers_first ? best.all_servers : best.all_collective;

  std::vector<size_t> order(tensor_bytes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tensor_bytes[a] < tensor_bytes[b]; });
  std::vector<double> below = {0};   // bytes of the smallest
  for (const size_t t : order) below.push_back(below.back() + tensor_bytes[t]);
  for (const bool small_by_servers : {true, false}) {
    const auto step = [&](size_t split, size_t busiest) {
      const double small = below[split];
      return small_by_servers ? predict(small, total - small, busiest) : predict(total - small, small, busiest);
    };
    // Coarsely over all splits, then all of those near the best one.
    size_t from = 0, end = order.size(), chosen = 0;
    double shortest = std::numeric_limits<double>::infinity();
    while (true) {
      const size_t stride = std::max<size_t>(1, (end - from) / kSplits);
      for (size_t split = from; split <= end; split += stride)
        if (const double s = step(split, 0).step_s; s < shortest) {
          shortest = s;
          chosen = split;
        }
      if (stride == 1) break;
      from = chosen > stride ? chosen - stride : 0;
      end = std::min(order.size(), chosen + stride);
    }
    if (shortest >= best.prediction.step_s * (1 - 1e-9)) continue;
    best.prediction = step(chosen, 8);
    for (size_t i = 0; i < order.size(); ++i) best.by_servers[order[i]] = (i < chosen) == small_by_servers;
  }
  return best;
}

}  // namespace sluice::fabric
