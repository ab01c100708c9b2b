#include "worker/collective/exchange.h"

#include <algorithm>

#include "base/exchange_rules.h"

namespace sluice::collective {
namespace {

// Messages of a pipeline: pieces beyond it change the prediction little.
constexpr double kPieceBytes = 1 << 20;

}  // namespace

ExchangePrediction PredictExchange(const Network& network, uint32_t servers, double bytes) {
  TierCost widest = network.tiers.empty() ? kDefaultTier : network.tiers.back();
  if (!(widest.latency_s > 0)) widest.latency_s = kDefaultTier.latency_s;
  if (!(widest.bytes_per_second > 0)) widest.bytes_per_second = kDefaultTier.bytes_per_second;
  const double workers = network.layout.members, s = std::max<uint32_t>(servers, 1);
  ExchangePrediction prediction;
  prediction.servers_s = 2 * widest.latency_s + std::max(1.0, workers / s) * bytes / widest.bytes_per_second;
  prediction.all_reduce_s =
      PredictedSeconds(ChooseAllReduce(network, bytes, kPieceBytes), network, bytes, kPieceBytes);
  return prediction;
}

Exchange ChooseExchange(const proto::JobConfig& job, const Network& network, uint32_t servers, double bytes) {
  if (job.exchange() == "allreduce") return Exchange::kAllReduce;
  if (job.exchange() != "auto" || !CheckAllReduceJob(job).ok()) return Exchange::kServers;
  const ExchangePrediction prediction = PredictExchange(network, servers, bytes);
  return prediction.all_reduce_s < prediction.servers_s ? Exchange::kAllReduce : Exchange::kServers;
}

}  // namespace sluice::collective
