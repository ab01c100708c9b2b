// How links get their paths: steps 1 to 5 of multipath_endpoint.h.
#include "transport/multipath/growing_endpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/rails.pb.h"
#include "transport/hello.h"

namespace sluice::transport::multipath {

void GrowingEndpoint::Tell(LinkId link, Aux aux, ConstBytes payload) {
  FrameHeader header;
  header.type = FrameType::kTransport;
  header.aux = aux;
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.total_bytes = payload.size();
  tcp_->Send(link, header, payload, 0);
}

void GrowingEndpoint::TellPaths(GrownLink& link) {
  const bool rdma = driver_ != nullptr && driver_->Usable();
  if (!rdma && options_.rails.empty()) return;
  if (link.token == 0) link.token = random_() | 1;
  proto::PathsPossible possible;
  possible.set_version(kVersion);
  possible.set_rdma(rdma);
  for (const std::string& host : options_.rails) possible.add_tcp_hosts(host);
  possible.set_tcp_port(port());
  possible.set_token(link.token);
  Tell(link.id, kPaths, AsBytes(possible.SerializeAsString()));
}

void GrowingEndpoint::Grow(GrownLink& link) {
  if (link.core != nullptr) return;
  link.before = tcp_->Stats(link.id);
  link.owner = std::make_unique<CoreOwner>(this, link.id);
  link.core = std::make_unique<MultipathLink>(link.owner.get(), limits(), options_.chunk_bytes);
  link.core->PathUp(kBasePath, {.tier = 0, .read_by_peer = true}, clock_->Now());
  link.core->Begin();
  // Slots that the peer knows by frames before the first packet, too.
  for (const auto& [slot, memory] : link.slots) AnnounceSlot(link, slot, memory);
  MarkDirty(link);
  if (tick_timer_ == 0) ArmTick();
}

void GrowingEndpoint::AnnounceSlot(GrownLink& link, SlotId slot, MutableBytes memory) {
  std::vector<SlotTarget> targets;
  if (driver_ != nullptr) targets = driver_->Targets(link.id, link.job(), memory);
  const bool remote = !targets.empty();
  for (const auto& [path, connection] : link.connections) {
    if (!link.core->HasPath(path)) continue;
    const SlotId its = tcp_->OpenSlot(connection, memory);
    further_slots_[slot].emplace_back(connection, its);
    targets.push_back({kConnectionGroup | path, its, 0});
  }
  link.core->OpenSlot(slot, memory, std::move(targets), remote);
}

void GrowingEndpoint::Wither(GrownLink& link) {
  link.up = false;
  if (driver_ != nullptr) driver_->DropLink(link.id);
  for (const auto& [path, connection] : std::exchange(link.connections, {})) {
    further_.erase(connection);
    tcp_->Close(connection, absl::CancelledError(kEndsWithItsLink));
  }
  for (const auto& [slot, memory] : link.slots) further_slots_.erase(slot);
  if (link.core == nullptr) return;
  for (const uint64_t cookie : link.core->Stop()) link.cookies_at_down.push_back(cookie);
}

void GrowingEndpoint::OnTransportFrame(LinkId id, const FrameHeader& header, Payload payload) {
  if (const auto further = further_.find(id); further != further_.end()) {
    return OnFurtherFrame(id, further->second, header, payload.size() > 0);
  }
  const auto link = Hold(id);
  if (link == nullptr || !link->up) return;
  const ConstBytes bytes = payload.bytes();
  absl::Status status;
  switch (header.aux) {
    case kPaths: status = OnPaths(*link, bytes); break;
    case kPacket:
      Grow(*link);
      status = link->core->OnPacket(kBasePath, bytes);
      break;
    case kChunk:
      if (link->core == nullptr) break;
      status = AcknowledgeChunk(id, header);
      if (status.ok() && !bytes.empty()) status = link->core->OnChunk(kBasePath, static_cast<uint32_t>(header.aux64));
      break;
    case kChunkAck:
      if (link->core != nullptr) link->core->Done(kBasePath, kChunkToken | static_cast<uint32_t>(header.aux64), clock_->Now());
      break;
    case kOffer: status = OnOffer(*link, bytes); break;
    case kProposal: status = OnProposal(*link, bytes); break;
    case kAcceptance: status = OnAcceptance(*link, bytes); break;
    case kReady: status = OnReady(*link, bytes); break;
    default: return;   // of a later version
  }
  Check(*link, status);
}

absl::Status GrowingEndpoint::OnPaths(GrownLink& link, ConstBytes bytes) {
  proto::PathsPossible possible;
  if (!link.connector || !possible.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return absl::InvalidArgumentError("a PATHS message that cannot be read, or from the wrong side");
  if (possible.version() != kVersion) {
    Log(absl::StrCat("link to ", Name(link), ": the peer speaks version ", possible.version(),
                     " of paths, this process ", kVersion, ": plain TCP"));
    link.why_tcp = absl::StrCat("the peer speaks version ", possible.version(), " of paths, this process ", kVersion);
    return absl::OkStatus();
  }
  link.peer_has_rdma = possible.rdma();
  const bool rdma = possible.rdma() && driver_ != nullptr && driver_->Usable();
  if (possible.rdma() && !rdma && !std::exchange(told_no_rdma_, true)) {
    Log(absl::StrCat("link to ", Name(link), ": the peer has RDMA, this process has no usable device: TCP "
                     "(`sluicectl doctor` says why)"));
  }
  if (!rdma && possible.tcp_hosts().empty()) return absl::OkStatus();
  Grow(link);
  if (rdma) OfferSoon(link);
  if (link.tcp_hosts.empty() && possible.tcp_hosts_size() > 0) {
    LearnWays(link, possible);
    for (const std::string& host : link.tcp_hosts) ConnectFurther(link, host);
  }
  return absl::OkStatus();
}

// The base may itself go to one of the further addresses (multipath_endpoint.h, 6); then the first address is a further one.
void GrowingEndpoint::LearnWays(GrownLink& link, const proto::PathsPossible& possible) {
  link.token = possible.token();
  link.tcp_port = possible.tcp_port();
  Ways& ways = ways_[link.address.ToString()];
  const std::string current = ways.hosts.empty() ? link.address.host : ways.hosts[ways.current];
  ways = {.hosts = {link.address.host}};
  for (const std::string& host : possible.tcp_hosts()) {
    if (ways.hosts.size() <= kMostConnections && host != link.address.host) ways.hosts.push_back(host);
  }
  for (size_t i = 0; i < ways.hosts.size(); ++i) {
    if (ways.hosts[i] == current) {
      ways.current = i;
    } else {
      link.tcp_hosts.push_back(ways.hosts[i]);
    }
  }
}

void GrowingEndpoint::NextWay(const GrownLink& link) {
  const auto ways = ways_.find(link.address.ToString());
  if (!link.connector || ways == ways_.end()) return;
  ways->second.current = (ways->second.current + 1) % ways->second.hosts.size();
}

bool GrowingEndpoint::BaseIsGone(const GrownLink& link) const {
  if (tcp_->UnansweredTimeouts(link.id) < kDeadTimeouts) return false;
  return std::any_of(link.connections.begin(), link.connections.end(), [&](const auto& further) {
    return link.core->HasPath(further.first) && tcp_->UnansweredTimeouts(further.second) == 0;
  });
}

void GrowingEndpoint::Unstall(GrownLink& link, TimeNs now) {
  // (A peer that gives it up says so on the base, too, where it may be lost.)
  if (BaseIsGone(link) || (link.given_up.has_value() && now - *link.given_up > kLateWord)) {
    NextWay(link);
    Wither(link);
    tcp_->Close(link.id, absl::UnavailableError(absl::StrCat("link to ", Name(link), ": the network of its first connection carries ",
                                                             "nothing, another one does: it is made again over that")));
    return;
  }
  std::vector<std::pair<LinkId, TimeNs>> stalled;
  for (const auto& [path, connection] : link.connections) {
    const TimeNs time = link.core->OldestChunk(path, now);
    if (time > 10 * kStalled || (time > kStalled && tcp_->UnansweredTimeouts(connection) >= kDeadTimeouts))
      stalled.emplace_back(connection, time);
  }
  for (const auto& [connection, time] : stalled)
    tcp_->Close(connection, absl::DeadlineExceededError(absl::StrCat("nothing was acknowledged for ", time / kMillisecond, " ms")));
}

void GrowingEndpoint::ConnectFurther(GrownLink& link, const std::string& host) {
  const PathId path = link.next_path;
  link.next_path += 2;
  Hello hello = link.hello;
  hello.connection = kPathBit | path;
  hello.job_uid = link.token;
  const LinkId connection = tcp_->Connect({.host = host, .port = link.tcp_port, .unix_socket = {}, .host_id = {}}, hello);
  further_[connection] = {link.id, path};
  link.connections[path] = connection;
  link.hosts[path] = host;
}

void GrowingEndpoint::OnFurtherAccepted(LinkId id, const Hello& peer) {
  for (auto& [base, link] : links_) {
    if (link->connector || !link->up || link->token == 0 || link->token != peer.job_uid) continue;
    const PathId path = peer.connection & ~kPathBit;
    if (path == 0 || path % 2 != 0 || link->connections.contains(path) || path <= link->last_connection ||
        link->connections.size() >= kMostConnections)
      break;
    link->last_connection = path;
    further_[id] = {base, path};
    link->connections[path] = id;
    link->hosts[path] = tcp_->Stats(id).peer;
    ConnectionUp(*link, path);
    return;
  }
  tcp_->Close(id, absl::NotFoundError("there is no link that this connection belongs to"));
}

void GrowingEndpoint::ConnectionUp(GrownLink& link, PathId path) {
  Grow(link);
  CountPathUp(link);
  link.core->PathUp(path, {.tier = 0, .remote_group = kConnectionGroup | path, .packets = false, .read_by_peer = true},
                    clock_->Now());
  Log(absl::StrCat("link to ", Name(link), ": a further connection is up, ", link.connector ? "to " : "from ",
                   link.hosts[path]));
  link.failed_hosts.erase(link.hosts[path]);
  link.last_further_up = clock_->Now();
  MarkDirty(link);
}

void GrowingEndpoint::ConnectionDown(GrownLink& link, PathId path, const absl::Status& reason) {
  link.connections.erase(path);
  const std::string host = std::move(link.hosts[path]);
  link.hosts.erase(path);
  if (link.core == nullptr || !link.up) return;
  // One that cannot be had is tried again and again, and talked of once; one that ends with its link, not at all.
  const bool was_up = link.core->HasPath(path);
  if ((was_up || link.failed_hosts.insert(host).second) && !absl::StrContains(reason.message(), kEndsWithItsLink))
    Log(absl::StrCat("link to ", Name(link), ": the further connection with ", host, was_up ? " is down: " : " failed: ",
                     reason.message(), was_up ? "" : "; it is tried again, and said again when it is up"));
  if (was_up) LosePath(link, path);
  if (clock_->Now() - link.last_further_up > kStable) link.backoff = 0;
  WaitForNextOffer(link);
  if (!link.peer_has_rdma) link.next_offer = std::min(link.next_offer, clock_->Now() + kLongestConnectPause);
  MarkDirty(link);
  if (was_up && absl::StrContains(reason.message(), kEndsWithItsLink)) link.given_up = clock_->Now();
}

// Also of one whose slot is closed: the sender waits for its memory. Kernels take bytes long before they arrive, so it is
// this that tells the goodput of a TCP path. Those that a full queue holds up wait; a peer that keeps to the rules has few.
absl::Status GrowingEndpoint::AcknowledgeChunk(LinkId connection, const FrameHeader& chunk) {
  std::vector<uint64_t>& held = held_acks_[connection];
  if (held.empty() && tcp_->Writable(connection)) {
    SendAck(connection, chunk.aux64);
  } else if (held.size() < kRecentTags) {
    held.push_back(chunk.aux64);
  } else {
    return absl::InvalidArgumentError("it sends chunks and does not take what acknowledges them");
  }
  if (held.empty()) held_acks_.erase(connection);
  return absl::OkStatus();
}

void GrowingEndpoint::SendAck(LinkId connection, uint64_t tag) {
  FrameHeader ack;
  ack.type = FrameType::kTransport;
  ack.aux = kChunkAck;
  ack.aux64 = tag;
  tcp_->Send(connection, ack, {}, 0);
}

void GrowingEndpoint::SendHeldAcks(LinkId connection) {
  auto held = held_acks_.extract(connection);
  if (held.empty()) return;
  for (const uint64_t tag : held.mapped()) SendAck(connection, tag);
}

void GrowingEndpoint::OnFurtherFrame(LinkId id, Further further, const FrameHeader& header, bool landed) {
  const auto link = Grown(further.base);
  if (link == nullptr) return;
  if (header.aux == kChunk) {
    absl::Status status = AcknowledgeChunk(id, header);
    if (status.ok() && landed) status = link->core->OnChunk(further.path, static_cast<uint32_t>(header.aux64));
    Check(*link, status);
  } else if (header.aux == kChunkAck) {
    link->core->Done(further.path, multipath::kChunkToken | static_cast<uint32_t>(header.aux64), clock_->Now());
    MarkDirty(*link);
  }
}

LinkId GrowingEndpoint::ConnectionOf(LinkId id, PathId path) const {
  if (path == kBasePath) return id;
  const GrownLink& link = *links_.at(id);
  const auto it = link.connections.find(path);
  return it == link.connections.end() ? 0 : it->second;
}

void GrowingEndpoint::OfferSoon(GrownLink& link) {
  link.next_offer = 0;
  Offer(link);
}

void GrowingEndpoint::PathGone(GrownLink& link, PathId path) {
  if (link.core->HasPath(path)) return LosePath(link, path);
  link.core->PathUp(path, {.tier = 0, .packets = false}, clock_->Now());
  link.core->PathLost(path, clock_->Now());
}

void GrowingEndpoint::WaitForNextOffer(GrownLink& link) {
  if (link.backoff == 0) link.backoff = options_.reconnect;
  link.next_offer = clock_->Now() + link.backoff;
  link.backoff = std::min(2 * link.backoff, 16 * options_.reconnect);
}

void GrowingEndpoint::Offer(GrownLink& link) {
  if (!link.connector || link.core == nullptr || !link.up) return;
  const TimeNs now = clock_->Now();
  if (link.offered.has_value() && now - *link.offered < kExchangeTimeout) return;
  if (now < link.next_offer) return;
  bool missing = false;
  for (const std::string& host : link.tcp_hosts) {
    const bool there = std::any_of(link.connections.begin(), link.connections.end(),
                                   [&](const auto& c) { return link.hosts[c.first] == host; });
    if (there) continue;
    ConnectFurther(link, host);
    missing = true;
  }
  if (link.peer_has_rdma && driver_ != nullptr && driver_->Usable() && driver_->Wanting(link.id)) {
    link.offered = now;
    Tell(link.id, kOffer, AsBytes(driver_->Offer(link.id, link.attempt++)));
    missing = true;
  }
  if (missing) WaitForNextOffer(link);
}

absl::Status GrowingEndpoint::OnOffer(GrownLink& link, ConstBytes offer) {
  if (link.connector) return absl::InvalidArgumentError("an RDMA offer from the wrong side");
  Grow(link);
  if (driver_ == nullptr) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const std::string proposal, driver_->Propose(link.id, link.job(), offer, [&] {
    return std::exchange(link.next_path, link.next_path + 2);
  }));
  Tell(link.id, kProposal, AsBytes(proposal));
  return absl::OkStatus();
}

absl::Status GrowingEndpoint::OnProposal(GrownLink& link, ConstBytes proposal) {
  if (!link.offered.has_value() || driver_ == nullptr) return absl::OkStatus();   // an old one
  SLUICE_ASSIGN_OR_RETURN(const std::string reply, driver_->Accept(link.id, link.job(), proposal));
  Tell(link.id, kAcceptance, AsBytes(reply));
  return absl::OkStatus();
}

absl::Status GrowingEndpoint::OnAcceptance(GrownLink& link, ConstBytes acceptance) {
  if (link.connector || driver_ == nullptr || link.core == nullptr) return absl::InvalidArgumentError("an RDMA acceptance out of turn");
  SLUICE_ASSIGN_OR_RETURN(const std::string reply, driver_->Conclude(link.id, acceptance));
  // The peer hears of them before anything travels over them.
  Tell(link.id, kReady, AsBytes(reply));
  return absl::OkStatus();
}

absl::Status GrowingEndpoint::OnReady(GrownLink& link, ConstBytes ready) {
  if (!link.connector || driver_ == nullptr || link.core == nullptr) return absl::InvalidArgumentError("an RDMA ready out of turn");
  link.offered.reset();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<PathDriver::NewPath> paths, driver_->Ready(link.id, ready));
  for (const PathDriver::NewPath& path : paths) {
    if (path.lost && (path.path % 2 == 0 || link.core->HasPath(path.path) || ++link.paths_missed > kMostPathsMissed))
      return absl::InvalidArgumentError("an RDMA ready for a path that was not made");
  }
  PathsUp(link, paths);
  return absl::OkStatus();
}

void GrowingEndpoint::PathsUp(GrownLink& link, const std::vector<PathDriver::NewPath>& paths) {
  bool any = false;
  for (const PathDriver::NewPath& path : paths) {
    if (path.lost) {
      PathGone(link, path.path);
      continue;
    }
    any = true;
    CountPathUp(link);
    link.rails[path.path] = path.rail;
    link.why_tcp.clear();
    link.core->PathUp(path.path, path.info, clock_->Now());
    Log(absl::StrCat("link to ", Name(link), ": RDMA path ", path.path, " is up, ", path.what));
  }
  if (any) link.last_up = clock_->Now();
  MarkDirty(link);
}

}  // namespace sluice::transport::multipath
