#include "server/peers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice::server {
namespace {

constexpr TimeNs kFirstBackoff = 50 * kMillisecond;
constexpr TimeNs kLastBackoff = 2 * kSecond;

}  // namespace

transport::LinkId Peers::Link(const proto::Address& address) {
  const std::string key = absl::StrCat(address.host(), ":", address.port(), "@", address.unix_socket());
  auto [it, fresh] = peers_.try_emplace(key);
  Peer& peer = it->second;
  if (fresh) {
    peer.address = {address.host(), address.port(), address.unix_socket(), address.host_id()};
    Connect(peer);
  }
  return peer.up ? peer.link : 0;
}

void Peers::Connect(Peer& peer) {
  peer.up = false;
  peer.link = endpoint_->Connect(peer.address, self_);
}

bool Peers::OnUp(transport::LinkId link) {
  for (auto& [key, peer] : peers_) {
    if (peer.link != link) continue;
    peer.up = true;
    peer.backoff = 0;
    return true;
  }
  return false;
}

void Peers::OnDown(transport::LinkId link) {
  for (auto& [key, peer] : peers_) {
    if (peer.link != link) continue;
    peer.link = 0;
    peer.up = false;
    peer.backoff = std::clamp(peer.backoff * 2, kFirstBackoff, kLastBackoff);
    peer.next_try = clock_->Now() + peer.backoff;
  }
}

void Peers::OnTick() {
  for (auto& [key, peer] : peers_) {
    if (peer.link == 0 && clock_->Now() >= peer.next_try) Connect(peer);
  }
}

}  // namespace sluice::server
