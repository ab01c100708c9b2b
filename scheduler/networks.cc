// The network under the jobs: who runs where, what links carry, and what follows for plans (docs/topology.md).
#include <algorithm>
#include <map>
#include <tuple>


#include "scheduler/core_impl.h"
#include "scheduler/topology/domains.h"

namespace sluice::scheduler {
namespace {

constexpr uint64_t kEnoughBytes = 64 << 10;   // a path that carried less since the last report has measured nothing

using PathName = std::tuple<std::string, std::string, std::string>;   // peer's id, rail, address
PathName NameOf(const proto::LinkPath& path) { return {path.peer_id(), path.rail(), path.address()}; }

}  // namespace

void CoreImpl::Locate(proto::Plan* plan) {
  std::vector<std::string> names;
  for (const proto::ServerInfo& server : plan->servers()) names.push_back(server.host());
  for (const proto::WorkerInfo& worker : plan->workers()) names.push_back(worker.host());
  network_->AddHosts(names);
  plan->clear_tiers();
  std::vector<uint32_t> hosts;
  for (proto::WorkerInfo& worker : *plan->mutable_workers()) {
    worker.clear_coordinates();
    hosts.push_back(network_->Host(worker.host()));
  }
  if (std::find(hosts.begin(), hosts.end(), topology::kNone) != hosts.end()) return;   // somebody is nowhere: nothing is said of anybody
  const topology::Tiers tiers = topology::FindTiers(network_->graph(), hosts);
  for (const topology::TierSpec& spec : tiers.tiers) {
    proto::Tier* tier = plan->add_tiers();
    tier->set_name(spec.name);
    tier->set_bytes_per_second(static_cast<uint64_t>(spec.bytes_per_second));
    tier->set_latency_us(static_cast<uint32_t>(1e6 * spec.latency_s + 0.5));
  }
  for (int rank = 0; rank < plan->workers_size(); ++rank)
    for (const uint32_t coordinate : tiers.coordinates[static_cast<size_t>(rank)]) plan->mutable_workers(rank)->add_coordinates(coordinate);
}

const std::string& CoreImpl::HostOfMember(const std::string& id) const {
  static const std::string* const nowhere = new std::string;
  if (const auto server = servers_.find(id); server != servers_.end()) return server->second.record.host();
  if (const auto worker = worker_hosts_.find(id); worker != worker_hosts_.end()) return worker->second;
  return *nowhere;
}

// Paths that have carried something since the last report, summed by the host that they lead to.
void CoreImpl::TakeLinks(const std::string& host, uint32_t member, const std::optional<proto::LinkReport>& before, const proto::LinkReport& now) {
  if (host.empty() || !before.has_value()) return;
  std::map<PathName, uint64_t> sent;
  for (const proto::LinkPath& path : before->paths()) sent[NameOf(path)] = path.bytes_out();
  std::map<std::string, network::PairMeasure> measures;
  for (const proto::LinkPath& path : now.paths()) {
    if (path.kind() == "shm" || !(path.goodput() > 0)) continue;
    const auto known = sent.find(NameOf(path));
    if (known == sent.end() || path.bytes_out() < known->second + kEnoughBytes) continue;
    network::PairMeasure& measure = measures[HostOfMember(path.peer_id())];
    measure.goodput += path.goodput();
    measure.rtt_s = measure.rtt_s > 0 ? std::min(measure.rtt_s, path.rtt_us() / 1e6) : path.rtt_us() / 1e6;
    measure.retransmits += path.retransmits();
    measure.at = clock_->Now();
  }
  for (const auto& [peer, measure] : measures) network_->Take(host, peer, member, measure);
}

void CoreImpl::WatchNetwork() {
  const TimeNs now = clock_->Now();
  if (now - network_watched_ < kWatchNetworkEvery) return;
  network_watched_ = now;
  worker_hosts_.clear();   // made anew: ids come and go with jobs
  for (const auto& [number, job] : jobs_) {
    if (job.ended()) continue;
    for (int rank = 0; rank < job.record.workers_size(); ++rank)
      worker_hosts_[job.record.workers(rank).id()] = job.plan().workers(rank).host();
  }
  (void)network_->Refresh(now);
}

}  // namespace sluice::scheduler
