#include "worker/collective/mesh.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "transport/hello.h"

namespace sluice::collective {
namespace {

constexpr TimeNs kFirstBackoff = 50 * kMillisecond;
constexpr TimeNs kMaxBackoff = 2 * kSecond;

}  // namespace

void Mesh::UpdatePlan(const proto::Plan& plan) {
  for (const proto::WorkerInfo& worker : plan.workers()) {
    if (worker.rank() == hello_.index) continue;
    Peer& peer = peers_[worker.rank()];
    peer.name = worker.address();
    peer.reachable = worker.alive() && !worker.finished();
    peer.listens = worker.listeners_size() > 0;
    if (peer.listens) {
      const proto::Address& address = worker.listeners(0);
      peer.address = {.host = address.host(), .port = address.port(), .unix_socket = address.unix_socket(),
                      .host_id = address.host_id()};
    }
    if (worker.incarnation() != peer.incarnation) {
      peer.incarnation = worker.incarnation();
      peer.retry_at = peer.backoff = 0;
      Forget(peer, absl::AbortedError(absl::StrCat("the plan has another life of rank ", worker.rank())));
    }
  }
}

void Mesh::Forget(Peer& peer, const absl::Status& why) {
  if (peer.link != 0) endpoint_->Close(peer.link, why);
}

void Mesh::Want(uint32_t rank) {
  Peer& peer = peers_[rank];
  if (peer.wanted || closed_) return;
  peer.wanted = true;
  peer.down_since = clock_->Now();
  if (peer.link == 0) Connect(rank, peer);
}

void Mesh::Connect(uint32_t rank, Peer& peer) {
  if (closed_ || hello_.index >= rank || !peer.listens || !peer.reachable) return;
  transport::Hello hello = hello_;
  hello.lane = rank;
  peer.link = endpoint_->Connect(peer.address, hello);
  by_link_[peer.link] = rank;
}

Mesh::Up Mesh::OnUp(transport::LinkId link, const transport::Hello& hello) {
  if (const auto it = by_link_.find(link); it != by_link_.end()) {   // made here
    Peer& peer = peers_[it->second];
    if (peer.link != link) return {.ours = true, .usable = false, .rank = it->second, .newer = false};
    peer.up = true;
    peer.backoff = 0;
    peer.last_error = absl::OkStatus();
    reconnects_ += std::exchange(peer.was_up, true);
    return {.ours = true, .usable = true, .rank = it->second, .newer = false};
  }
  if (hello.role != transport::PeerRole::kWorker) return {};
  Up result{.ours = true, .usable = false, .rank = hello.index, .newer = false};
  const auto refuse = [&](absl::string_view why) {
    endpoint_->Close(link, absl::FailedPreconditionError(absl::StrCat(
                               "rank ", hello_.index, " refuses ", transport::DebugString(hello), ": ", why)));
    return result;
  };
  if (hello_.job == 0 || hello.job != hello_.job || hello.job_uid != hello_.job_uid) return refuse("it is of another job");
  if (hello.lane != hello_.index) return refuse(absl::StrCat("it wants rank ", hello.lane));
  const auto it = peers_.find(hello.index);
  if (it == peers_.end() || hello.index >= hello_.index) return refuse("the lower rank connects");
  Peer& peer = it->second;
  result.newer = hello.incarnation > peer.incarnation;
  if (hello.incarnation != peer.incarnation)
    return refuse(absl::StrCat("the plan names incarnation ", peer.incarnation, ", not ", hello.incarnation));
  if (closed_) return refuse("this worker has left the job");
  Forget(peer, absl::AbortedError("the peer has connected again"));
  by_link_[link] = hello.index;
  peer.link = link;
  peer.up = true;
  peer.last_error = absl::OkStatus();
  reconnects_ += std::exchange(peer.was_up, true);
  result.usable = true;
  return result;
}

Mesh::Down Mesh::OnDown(transport::LinkId link, const absl::Status& reason) {
  const auto it = by_link_.find(link);
  if (it == by_link_.end()) return {};
  const uint32_t rank = it->second;
  Peer& peer = peers_[rank];
  by_link_.erase(it);
  const transport::LinkStats stats = endpoint_->Stats(link);
  gone_in_ += stats.bytes_in;
  gone_out_ += stats.bytes_out;
  Down result{.ours = true, .was_up = false, .rank = rank};
  if (peer.link != link) return result;   // another has taken its place
  result.was_up = peer.up;
  if (peer.up) peer.down_since = clock_->Now();
  peer.link = 0;
  peer.up = false;
  peer.last_error = reason;
  peer.backoff = std::min(kMaxBackoff, peer.backoff == 0 ? kFirstBackoff : peer.backoff * 2);
  peer.retry_at = clock_->Now() + peer.backoff;
  return result;
}

const uint32_t* Mesh::RankOf(transport::LinkId link) const {
  const auto it = by_link_.find(link);
  if (it == by_link_.end()) return nullptr;
  const Peer& peer = peers_.at(it->second);
  return peer.link == link && peer.up ? &it->second : nullptr;
}

void Mesh::OnTick() {
  for (auto& [rank, peer] : peers_)
    if (peer.wanted && peer.link == 0 && clock_->Now() >= peer.retry_at) Connect(rank, peer);
}

void Mesh::CloseAll(const absl::Status& reason) {
  closed_ = true;
  for (auto& [rank, peer] : peers_) Forget(peer, reason);
}

std::string Mesh::Describe(uint32_t rank) const {
  const auto it = peers_.find(rank);
  if (it == peers_.end() || it->second.name.empty()) return absl::StrCat("rank ", rank);
  return absl::StrCat("rank ", rank, " (", it->second.name, ")");
}

std::string Mesh::Trouble(uint32_t rank) const {
  const auto it = peers_.find(rank);
  if (it == peers_.end() || it->second.up || !it->second.wanted) return "";
  const Peer& peer = it->second;
  if (!peer.listens) return "it listens nowhere (data.transport=shm across hosts, or an older release)";
  const double seconds = static_cast<double>(clock_->Now() - peer.down_since) / kSecond;
  if (hello_.index > rank)
    return absl::StrFormat("no link for %.1f s: the lower rank connects when it comes to the same call, and must reach this "
                           "worker's listener (node.listen, node.advertise)", seconds);
  return absl::StrFormat("no link to %s for %.1f s (%s)", peer.address.ToString(), seconds,
                         peer.last_error.ok() ? "connecting" : std::string(peer.last_error.message()));
}

std::vector<PeerLink> Mesh::Links() const {
  std::vector<PeerLink> links;
  for (const auto& [rank, peer] : peers_)
    if (peer.up) links.push_back({peer.link, rank, peer.name});
  return links;
}

uint64_t Mesh::Sum(bool in) const {
  uint64_t sum = 0;
  for (const auto& [link, rank] : by_link_) {
    const transport::LinkStats stats = endpoint_->Stats(link);
    sum += in ? stats.bytes_in : stats.bytes_out;
  }
  return sum;
}

}  // namespace sluice::collective
