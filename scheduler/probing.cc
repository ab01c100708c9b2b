// Probes of links, on an operator's request (docs/topology.md, "Probes").
//
//   1. ProbeLinks: of each host one server that has a stream; pairs of these so that every link in question is on the way of one at
//      least, in rounds of pairs that share no link (scheduler/network/probe_choice.h).
//   2. BeginProbeRound: each sender of the round is told whom to send to (Probe), under a number of its own.
//   3. TakeProbes: results come with heartbeats. One that belongs to no open pair of this round is dropped: late, or repeated.
//   4. TendProbes: a pair whose sender was lost, or says nothing for too long, has failed.
//   5. When all pairs of the round have ended: 2 with the next one; after the last the network's estimates are made anew, and an
//      event says what came of it.
//
// It belongs to no job and is not written: a scheduler that starts again has forgotten it, and servers end what they do by
// themselves.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/core_impl.h"
#include "scheduler/network/probe_choice.h"

namespace sluice::scheduler {
namespace {

constexpr TimeNs kConnectLimit = 5 * kSecond;
constexpr int kMaxProbeResults = 256;             // of a heartbeat
constexpr double kSlowest = 1e6;                  // bytes a second: slower links run into the limit
constexpr TimeNs kWordLimit = 5 * kSecond;        // for the result to come, beyond the pair's own limit

std::string Rate(double bytes_per_second) {
  return bytes_per_second < 1e9 / 8 ? absl::StrFormat("%.1f Mb/s", 8e-6 * bytes_per_second)
                                    : absl::StrFormat("%.2f Gb/s", 8e-9 * bytes_per_second);
}

std::string NameOf(const ProbeRun::Pair& pair) {
  return absl::StrCat("server ", pair.from, " (host ", pair.from_host, ") -> server ", pair.to, " (host ", pair.to_host, ")");
}

std::string Count(size_t n, const char* what) { return absl::StrCat(n, " ", what, n == 1 ? "" : "s"); }

}  // namespace

std::vector<const ServerState*> CoreImpl::ProbeServers() const {
  std::vector<const ServerState*> servers;
  std::set<std::string> hosts;
  for (const auto& [id, server] : servers_) {
    if (server.live.session == 0 || server.record.lanes().empty() || network_->Host(server.record.host()) == topology::kNone) continue;
    if (hosts.insert(server.record.host()).second) servers.push_back(&server);
  }
  return servers;
}

absl::StatusOr<proto::ProbeLinksAnswer> CoreImpl::ProbeLinks(const proto::ProbeLinksRequest& request) {
  const TimeNs now = clock_->Now();
  const uint64_t bytes = request.bytes() > 0 ? request.bytes() : kProbeBytes;
  if (bytes < kLeastProbeBytes || bytes > kMostProbeBytes)
    return absl::InvalidArgumentError(absl::StrCat("a probe of ", bytes, " bytes: ", kLeastProbeBytes, " to ", kMostProbeBytes, " are possible"));
  if (probe_run_.has_value())
    return absl::FailedPreconditionError(absl::StrCat(
        "links are being probed already: request ", probe_run_->request, ", for ", Ago(now - probe_run_->began), ", round ",
        probe_run_->round + 1, " of ", probe_run_->rounds.size(), "; `sluicectl events --follow` shows its end"));
  std::vector<std::string> names;
  for (const auto& [id, server] : servers_) names.push_back(server.record.host());
  network_->AddHosts(names);
  (void)network_->Refresh(now);
  const std::vector<const ServerState*> servers = ProbeServers();
  if (servers.size() < 2)
    return absl::FailedPreconditionError(absl::StrCat(
        "probes need servers on two hosts at least; ", servers.empty() ? "no server is here on a host that the scheduler knows"
        : absl::StrCat("all that are here are on ", servers.front()->record.host()),
        " (`sluicectl status` shows them; node.host says where each one is)"));
  std::vector<uint32_t> hosts;
  for (const ServerState* server : servers) hosts.push_back(network_->Host(server->record.host()));
  const network::ProbeChoice choice =
      network::ChooseProbes(network_->routes(), hosts, network_->InQuestion(request.all()), kMaxProbePairs);

  proto::ProbeLinksAnswer answer;
  probe_requests_ = std::max(probe_requests_ + 1, static_cast<uint64_t>(std::max<int64_t>(0, wall_ms_())));
  answer.set_request(probe_requests_);
  answer.set_pairs(static_cast<uint32_t>(choice.pairs));
  answer.set_bytes(choice.pairs * bytes);
  for (const uint32_t arc : choice.unreachable) {
    if (answer.unreachable_size() >= static_cast<int>(kMaxEstimates)) break;
    answer.add_unreachable(network_->ArcName(arc));
  }
  if (choice.pairs == 0) return answer;
  ProbeRun& run = probe_run_.emplace();
  run.request = answer.request();
  run.bytes = bytes;
  run.limit = kConnectLimit + static_cast<TimeNs>(static_cast<double>(bytes) / kSlowest * kSecond);
  run.began = now;
  for (const std::vector<network::ProbePair>& round : choice.rounds) {
    std::vector<ProbeRun::Pair>& pairs = run.rounds.emplace_back();
    for (const network::ProbePair& pair : round) {
      const proto::ServerRecord &from = servers[pair.from]->record, &to = servers[pair.to]->record;
      pairs.push_back({.from = from.id(), .to = to.id(), .from_host = from.host(), .to_host = to.host(),
                       .from_incarnation = from.incarnation(), .error = {}});
    }
  }
  Note("probe_begun", "",
       absl::StrCat("request ", run.request, ": ", Count(choice.pairs, "pair"), " of servers in ", Count(run.rounds.size(), "round"), ", ",
                    bytes, " bytes each",
                    choice.unreachable.empty() ? "" : absl::StrCat("; ", Count(choice.unreachable.size(), "link"), " in question no two servers can reach"),
                    choice.left_out == 0 ? "" : absl::StrCat("; ", Count(choice.left_out, "link"), " left out: a request has at most ",
                                                             kMaxProbePairs, " pairs, ask again for more")));
  BeginProbeRound();
  return answer;
}

void CoreImpl::BeginProbeRound() {
  ProbeRun& run = *probe_run_;
  // The first round's number is the request's.
  if (run.round > 0) ++probe_requests_;
  run.round_request = probe_requests_;
  run.round_began = clock_->Now();
  for (const ProbeRun::Pair& pair : run.rounds[run.round]) {
    const auto from = servers_.find(pair.from), to = servers_.find(pair.to);
    if (from == servers_.end() || to == servers_.end()) continue;   // TendProbes ends it
    proto::SchedulerMessage message;
    proto::Probe* probe = message.mutable_probe();
    probe->set_request(run.round_request);
    probe->set_bytes(run.bytes);
    probe->set_timeout_ms(static_cast<uint32_t>(run.limit / kMillisecond));
    proto::ProbePeer* peer = probe->add_peers();
    peer->set_peer(pair.to);
    *peer->mutable_addresses() = to->second.record.lanes();
    Send(from->second.live.session, message);
  }
}

void CoreImpl::TakeProbes(const std::string& server, const proto::Heartbeat& heartbeat) {
  if (!probe_run_.has_value() || heartbeat.probes().empty()) return;
  ProbeRun& run = *probe_run_;
  for (int i = 0; i < std::min(heartbeat.probes_size(), kMaxProbeResults); ++i) {
    const proto::ProbeResult& result = heartbeat.probes(i);
    std::vector<ProbeRun::Pair>& pairs = run.rounds[run.round];
    const auto pair = std::find_if(pairs.begin(), pairs.end(), [&](const ProbeRun::Pair& each) {
      return !each.ended && result.request() == run.round_request && each.from == server && each.to == result.peer();
    });
    if (pair == pairs.end()) continue;
    pair->ended = true;
    if (!result.error().empty()) {
      pair->error = Clip(result.error());
    } else if (result.bytes() != run.bytes || result.elapsed_us() == 0) {
      pair->error = absl::StrCat("a result that cannot be: ", result.bytes(), " bytes of ", run.bytes, " in ", result.elapsed_us(), " us");
    } else {
      // The word that the last byte has arrived takes its time, too.
      const double elapsed_us = static_cast<double>(result.elapsed_us());
      const double sending_us = std::max(elapsed_us - static_cast<double>(result.rtt_us()), elapsed_us / 2);
      pair->goodput = 1e6 * static_cast<double>(result.bytes()) / sending_us;
      network_->TakeProbe(pair->from_host, pair->to_host,
                          {.goodput = pair->goodput, .rtt_s = 1e-6 * static_cast<double>(result.rtt_us()), .at = clock_->Now()});
    }
  }
  AdvanceProbes();
}

void CoreImpl::TendProbes() {
  if (!probe_run_.has_value()) return;
  ProbeRun& run = *probe_run_;
  const TimeNs now = clock_->Now();
  for (ProbeRun::Pair& pair : run.rounds[run.round]) {
    if (pair.ended) continue;
    const auto from = servers_.find(pair.from);
    if (from == servers_.end() || from->second.live.session == 0 || from->second.record.incarnation() != pair.from_incarnation)
      pair.error = absl::StrCat("server ", pair.from, " was lost, or has lost its stream to the scheduler");
    else if (servers_.count(pair.to) == 0)
      pair.error = absl::StrCat("server ", pair.to, " was lost");
    else if (now - run.round_began >= run.limit + 2 * TimeNs{config_.heartbeat_ms()} * kMillisecond + kWordLimit)
      pair.error = absl::StrCat("server ", pair.from, " has not said for ", Ago(now - run.round_began),
                                " what came of it; look at its log, and whether it is of this release");
    else
      continue;
    pair.ended = true;
  }
  AdvanceProbes();
}

void CoreImpl::AdvanceProbes() {
  if (!probe_run_.has_value() || !std::ranges::all_of(probe_run_->rounds[probe_run_->round], &ProbeRun::Pair::ended)) return;
  if (++probe_run_->round < probe_run_->rounds.size()) BeginProbeRound();
  else EndProbes();
}

void CoreImpl::EndProbes() {
  const ProbeRun run = *std::move(probe_run_);
  probe_run_.reset();
  const TimeNs now = clock_->Now();
  (void)network_->Refresh(now);
  size_t pairs = 0, failed = 0;
  const ProbeRun::Pair* slowest = nullptr;
  for (const std::vector<ProbeRun::Pair>& round : run.rounds) {
    for (const ProbeRun::Pair& pair : round) {
      ++pairs;
      if (!pair.error.empty()) {
        if (++failed <= kMaxProbeFailuresNoted) Note("probe_failed", "", absl::StrCat("request ", run.request, ": ", NameOf(pair), ": ", pair.error));
      } else if (slowest == nullptr || pair.goodput < slowest->goodput) {
        slowest = &pair;
      }
    }
  }
  std::string text = absl::StrCat("request ", run.request, ": probed ", Count(pairs - failed, "pair"), " in ", Ago(now - run.began));
  if (slowest != nullptr) {
    const uint32_t arc = network_->NarrowestArc(network_->Host(slowest->from_host), network_->Host(slowest->to_host));
    absl::StrAppend(&text, ": slowest ", arc == topology::kNone ? NameOf(*slowest) : network_->ArcName(arc), " ", Rate(slowest->goodput));
  }
  if (failed > 0) absl::StrAppend(&text, "; ", failed, " failed");
  Note("probe_done", "", text);
}

}  // namespace sluice::scheduler
