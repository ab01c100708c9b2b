// How the two ends make a queue pair: steps 1 to 4 of proto/rails.proto.
#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/rails.pb.h"
#include "rdma/queue_pair_driver.h"

namespace sluice::rdma {
namespace {

Gid GidOf(const std::string& bytes) {
  Gid gid{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), gid.size()), gid.begin());
  return gid;
}

int CommonBits(const Gid& a, const Gid& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return static_cast<int>(8 * i) + std::countl_zero(static_cast<uint8_t>(a[i] ^ b[i]));
  }
  return 128;
}

void ToProto(const QpAddress& from, proto::RdmaQueuePair* to) {
  to->set_number(from.qp_number);
  to->set_packet_sequence(from.packet_sequence);
  to->set_gid(std::string(reinterpret_cast<const char*>(from.gid), sizeof(from.gid)));
  to->set_lid(from.lid);
  to->set_mtu(from.mtu);
  to->set_read_atomic(from.read_atomic);
  to->set_link_layer(from.link_layer);
  to->set_gid_type(from.gid_type);
  to->set_receives(from.receives);
  to->set_packet_bytes(from.packet_bytes);
}

QpAddress FromProto(const proto::RdmaQueuePair& from) {
  QpAddress to;
  to.qp_number = from.number() & 0xffffff;
  to.packet_sequence = from.packet_sequence() & 0xffffff;
  const Gid gid = GidOf(from.gid());
  std::copy(gid.begin(), gid.end(), to.gid);
  to.lid = static_cast<uint16_t>(from.lid());
  to.mtu = static_cast<uint8_t>(from.mtu());
  to.read_atomic = static_cast<uint8_t>(from.read_atomic());
  to.link_layer = static_cast<uint8_t>(from.link_layer());
  to.gid_type = static_cast<uint8_t>(from.gid_type());
  to.receives = static_cast<uint16_t>(from.receives());
  to.packet_bytes = from.packet_bytes();
  return to;
}

}  // namespace

std::string QueuePairDriver::Offer(LinkId link, uint32_t attempt) {
  DropUnfinished(link);
  proto::RdmaOffer offer;
  offer.set_version(kVersion);
  offer.set_queue_pairs(options_.queue_pairs);
  offer.set_attempt(attempt);
  for (size_t i = 0; i < rails_.size(); ++i) {
    const Rail& rail = rails_[i].rail;
    proto::RdmaRail* out = offer.add_rails();
    out->set_name(rail.ToString());
    out->set_link_layer(rail.link_layer);
    out->set_gid_type(static_cast<uint32_t>(rail.gid_type));
    out->set_gid(std::string(rail.gid.begin(), rail.gid.end()));
    // One that is down wants none.
    offer.add_have(rails_[i].down ? options_.queue_pairs : Count(link, i));
  }
  return offer.SerializeAsString();
}

absl::StatusOr<std::string> QueuePairDriver::Propose(LinkId link, uint32_t job, ConstBytes message,
                                    const std::function<PathId()>& next_path) {
  proto::RdmaOffer offer;
  if (!offer.ParseFromArray(message.data(), static_cast<int>(message.size())) || offer.have_size() != offer.rails_size() ||
      offer.rails_size() > static_cast<int>(kMostQueuePairs))
    return absl::InvalidArgumentError("an RDMA offer that cannot be read");
  DropUnfinished(link);
  proto::RdmaProposal proposal;
  if (offer.version() != kVersion || !Usable()) {
    proposal.set_refused(Usable() ? absl::StrCat("version ", kVersion, " is spoken here, not ", offer.version())
                                  : "no rail is up here");
    return proposal.SerializeAsString();
  }
  const uint32_t want = std::min(offer.queue_pairs(), options_.queue_pairs);
  for (int i = 0; i < offer.rails_size(); ++i) {
    const std::optional<size_t> rail = PairFor(offer.rails(i), static_cast<size_t>(i), offer.attempt());
    for (uint32_t have = offer.have(i); have < want; ++have) {
      if (links_[link].qps.size() >= kMostQueuePairs) break;
      if (!rail.has_value()) {
        proposal.set_refused(absl::StrCat("no rail here fits ", offer.rails(i).name(), ": another kind of network"));
        break;
      }
      absl::StatusOr<Qp*> qp = MakeQp(link, next_path(), *rail, job);
      if (!qp.ok()) {
        proposal.set_refused(std::string(qp.status().message()));
        break;
      }
      proto::RdmaQueuePair* out = proposal.add_queue_pairs();
      out->set_path((*qp)->path);
      out->set_connector_rail(static_cast<uint32_t>(i));
      out->set_acceptor_rail(static_cast<uint32_t>(*rail));
      out->set_group(static_cast<uint32_t>(*rail));
      ToProto((*qp)->qp->local(), out);
    }
  }
  // The peer asks again and again.
  if (!proposal.refused().empty() && proposal.refused() != last_refused_) {
    Log(absl::StrCat("no (further) RDMA paths: ", proposal.refused()));
  }
  last_refused_ = proposal.refused();
  return proposal.SerializeAsString();
}

absl::StatusOr<std::string> QueuePairDriver::Accept(LinkId link, uint32_t job, ConstBytes message) {
  proto::RdmaProposal proposal;
  if (!proposal.ParseFromArray(message.data(), static_cast<int>(message.size())) ||
      proposal.queue_pairs_size() > static_cast<int>(kMostQueuePairs))
    return absl::InvalidArgumentError("an RDMA proposal that cannot be read");
  if (!proposal.refused().empty() && proposal.refused() != last_refusal_) {
    Log(absl::StrCat("the peer makes no (further) RDMA paths: ", proposal.refused().substr(0, 500)));
  }
  last_refusal_ = proposal.refused();
  proto::RdmaAcceptance acceptance;
  for (const proto::RdmaQueuePair& theirs : proposal.queue_pairs()) {
    proto::RdmaQueuePair* out = acceptance.add_queue_pairs();
    out->set_path(theirs.path());
    const absl::Status status = AcceptOne(link, job, theirs, out);
    if (status.ok()) continue;
    Log(absl::StrCat("no RDMA path ", theirs.path(), ": ", status.message()));
    out->set_refused(std::string(status.message()));
  }
  return acceptance.SerializeAsString();
}

absl::StatusOr<std::string> QueuePairDriver::Conclude(LinkId link, ConstBytes message) {
  proto::RdmaAcceptance acceptance;
  if (!acceptance.ParseFromArray(message.data(), static_cast<int>(message.size())))
    return absl::InvalidArgumentError("an RDMA acceptance that cannot be read");
  proto::RdmaReady ready;
  for (const proto::RdmaQueuePair& theirs : acceptance.queue_pairs()) {
    Qp* qp = Find(link, theirs.path());
    if (qp != nullptr && (qp->connected || qp->up)) continue;
    proto::RdmaQueuePair* out = ready.add_queue_pairs();
    out->set_path(theirs.path());
    if (qp == nullptr) {
      out->set_refused("it broke meanwhile");
      continue;
    }
    absl::Status status = theirs.refused().empty() ? Connect(*qp, theirs) : absl::UnavailableError(
        absl::StrCat("the peer: ", theirs.refused().substr(0, 500)));
    if (status.ok()) {
      Probe(*qp);
      continue;
    }
    out->set_refused(std::string(status.message()));
    Log(absl::StrCat("no RDMA path ", theirs.path(), ": ", status.message()));
    Destroy(link, theirs.path());
  }
  return ready.SerializeAsString();
}

absl::StatusOr<std::vector<QueuePairDriver::NewPath>> QueuePairDriver::Ready(LinkId link, ConstBytes message) {
  proto::RdmaReady ready;
  if (!ready.ParseFromArray(message.data(), static_cast<int>(message.size())))
    return absl::InvalidArgumentError("an RDMA ready that cannot be read");
  std::vector<NewPath> paths;
  for (const proto::RdmaQueuePair& theirs : ready.queue_pairs()) {
    Qp* qp = Find(link, theirs.path());
    if (qp == nullptr) {
      // The peer sends over it from now on, and must hear that it is lost.
      if (theirs.refused().empty()) paths.push_back({.path = theirs.path(), .info = {}, .what = "", .lost = true});
      continue;
    }
    if (!qp->connected || qp->probing || qp->up) continue;
    if (theirs.refused().empty()) {
      Probe(*qp);
    } else {
      Destroy(link, theirs.path());
    }
  }
  DropUnfinished(link);   // what the peer did not speak of
  return paths;
}

std::optional<size_t> QueuePairDriver::PairFor(const proto::RdmaRail& theirs, size_t index, uint32_t attempt) const {
  std::vector<size_t> fits;
  for (size_t i = 0; i < rails_.size(); ++i) {
    const Rail& rail = rails_[i].rail;
    if (!rails_[i].down && rail.link_layer == theirs.link_layer() &&
        static_cast<uint32_t>(rail.gid_type) == theirs.gid_type())
      fits.push_back(i);
  }
  if (fits.empty()) return std::nullopt;
  const Gid gid = GidOf(theirs.gid());
  const auto rank = [&](size_t i) { return std::pair(-CommonBits(rails_[i].rail.gid, gid) / 8, i != index); };
  std::stable_sort(fits.begin(), fits.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
  return fits[attempt / 2 % fits.size()];   // each twice: a rail that flaps is most often back by then
}

absl::StatusOr<QueuePairDriver::Qp*> QueuePairDriver::MakeQp(LinkId link, PathId path, size_t rail, uint32_t job) {
  RailState& state = rails_[rail];
  auto qp = std::make_unique<Qp>();
  qp->driver = this;
  qp->link = link;
  qp->path = path;
  qp->rail = rail;
  SLUICE_ASSIGN_OR_RETURN(qp->domain, state.context->DomainOf(job));
  if (std::find(state.domains.begin(), state.domains.end(), qp->domain) == state.domains.end())
    state.domains.push_back(qp->domain);
  SLUICE_ASSIGN_OR_RETURN(qp->qp, QueuePair::Create(qp->domain, options_.queue_pair, qp.get()));
  state.by_number[qp->qp->number()] = qp.get();
  Qp* made = qp.get();
  links_[link].qps[path] = std::move(qp);
  ArmTick();
  return made;
}

absl::Status QueuePairDriver::AcceptOne(LinkId link, uint32_t job, const proto::RdmaQueuePair& theirs, proto::RdmaQueuePair* out) {
  if (theirs.connector_rail() >= rails_.size()) return absl::InvalidArgumentError("it names no rail of mine");
  // Numbers rise, so that what is still to be settled of an old path is never taken for a new one's.
  PathId& last = links_[link].last_path;
  if (theirs.path() % 2 != 1 || theirs.path() <= last)
    return absl::InvalidArgumentError("its number is not a new one for a queue pair");
  last = theirs.path();
  SLUICE_ASSIGN_OR_RETURN(Qp* const qp, MakeQp(link, theirs.path(), theirs.connector_rail(), job));
  const absl::Status status = Connect(*qp, theirs);
  if (!status.ok()) {
    Destroy(link, theirs.path());
    return status;
  }
  out->set_group(static_cast<uint32_t>(qp->rail));
  ToProto(qp->qp->local(), out);
  return absl::OkStatus();
}

absl::Status QueuePairDriver::Connect(Qp& qp, const proto::RdmaQueuePair& theirs) {
  const QpAddress remote = FromProto(theirs);
  if (remote.receives < 4 || remote.packet_bytes < transport::multipath::kPacketBytes)
    return absl::InvalidArgumentError(absl::StrCat("the peer has ", remote.receives, " receives of ", remote.packet_bytes,
                                                   " bytes: too few or too small"));
  qp.peer_group = theirs.group();
  qp.peer_receives = remote.receives;
  qp.peer = GidText(GidOf(theirs.gid()));
  SLUICE_RETURN_IF_ERROR(qp.qp->Connect(remote, clock_->Now()));
  qp.connected = true;
  return absl::OkStatus();
}

// Queue pairs become ready to send without a single packet's having crossed the network. So that nothing of value waits for
// retries on a network that is dead, a path is up at this end once an empty packet has been acknowledged.
void QueuePairDriver::Probe(Qp& qp) {
  qp.probing = true;
  qp.qp->Packet(transport::multipath::PacketBuilder().Take(0), kProbe);
  Touch(qp);
}

void QueuePairDriver::ProbeDone(Qp& qp) {
  qp.probing = false;
  owner_->PathUp(qp.link, Up(qp));
}

QueuePairDriver::NewPath QueuePairDriver::Up(Qp& qp) {
  qp.up = true;
  return {.path = qp.path,
          .info = {.tier = kTier,
                   .remote_group = qp.peer_group,
                   .packets = true,
                   .credits = qp.peer_receives,
                   .credits_used = 1,   // by the probe
                   .receives = qp.qp->local().receives},
          .rail = RailName(rails_[qp.rail].rail),
          .what = absl::StrCat(rails_[qp.rail].rail.ToString(), " to ", qp.peer)};
}

void QueuePairDriver::DropUnfinished(LinkId link) {
  const auto it = links_.find(link);
  if (it == links_.end()) return;
  std::vector<PathId> paths;
  for (const auto& [path, qp] : it->second.qps) {
    if (!qp->up && !qp->probing) paths.push_back(path);
  }
  for (const PathId path : paths) Destroy(link, path);
}

}  // namespace sluice::rdma
