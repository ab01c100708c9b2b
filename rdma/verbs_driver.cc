#include "rdma/verbs_driver.h"

#include <sys/epoll.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/rails.pb.h"
#include "rdma/completion_text.h"
#include "rdma/context.h"

namespace sluice::rdma {
namespace {

using transport::LinkId;
using transport::multipath::Chunk;
using transport::multipath::PathId;
using transport::multipath::PathInfo;
using transport::multipath::SlotTarget;

constexpr uint32_t kVersion = 1;
constexpr uint32_t kTier = 1;
constexpr size_t kMostQueuePairs = 128;          // of one link
constexpr TimeNs kTick = 50 * kMillisecond;
constexpr TimeNs kDrain = 500 * kMillisecond;    // what has not completed by then is not waited for
constexpr int kMostBursts = 64;                  // in one turn of the loop: then others have theirs

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

std::string RailName(const Rail& rail) { return absl::StrCat(rail.device, ":", rail.port); }

class Driver final : public VerbsDriver {
 public:
  Driver(transport::Loop* loop, const Clock* clock, std::shared_ptr<Verbs> verbs, DriverOptions options)
      : loop_(loop), clock_(clock), verbs_(std::move(verbs)), options_(std::move(options)) {}

  ~Driver() override {
    for (uint64_t* timer : {&tick_timer_, &reap_timer_, &poll_timer_}) {
      if (*timer != 0) loop_->CancelTimer(*timer);
    }
    graveyard_.clear();
    links_.clear();
    for (RailState& rail : rails_) {
      loop_->Unwatch(rail.context->completion_fd());
      loop_->Unwatch(rail.context->async_fd());
    }
  }

  absl::Status Start() {
    const HostFacts facts = GatherFacts(verbs_.get(), absl::OkStatus(), options_.gather);
    if (facts.devices.empty() && facts.kernel_devices.empty()) return absl::NotFoundError("this host has no RDMA device");
    const RailChoice choice = ChooseRails(facts, options_.rails);
    absl::Status last;
    for (const Rail& rail : choice.rails) {
      ContextOptions options;
      options.cq_entries = options_.cq_entries;
      options.memory = &memory_;
      options.refused = [this](const absl::Status& why) { Log(absl::StrCat("RDMA without this memory: ", why.message())); };
      auto context = Context::Open(verbs_.get(), rail, options);
      if (!context.ok()) {
        last = context.status();
        Log(absl::StrCat(rail.ToString(), " is not used: ", last.message()));
        continue;
      }
      rails_.push_back({.rail = rail, .context = *std::move(context)});
    }
    if (rails_.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("no RDMA device can be used: ", FindingsText(choice.findings),
                                                        last.ok() ? "" : absl::StrCat("; ", last.message())));
    }
    for (size_t i = 0; i < rails_.size(); ++i) {
      SLUICE_RETURN_IF_ERROR(loop_->Watch(rails_[i].context->completion_fd(), EPOLLIN, [this, i](uint32_t) { OnCompletions(i); }));
      SLUICE_RETURN_IF_ERROR(loop_->Watch(rails_[i].context->async_fd(), EPOLLIN, [this, i](uint32_t) { OnEvents(i); }));
      SLUICE_RETURN_IF_ERROR(rails_[i].context->Arm());
    }
    return absl::OkStatus();
  }

  // ---- PathDriver ----

  void SetOwner(Owner* owner) override { owner_ = owner; }

  bool Usable() const override {
    return std::any_of(rails_.begin(), rails_.end(), [](const RailState& rail) { return !rail.down; });
  }

  std::string Offer(LinkId link, uint32_t attempt) override {
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

  absl::StatusOr<std::string> Propose(LinkId link, uint32_t job, ConstBytes message,
                                      const std::function<PathId()>& next_path) override {
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

  absl::StatusOr<Reply> Accept(LinkId link, uint32_t job, ConstBytes message) override {
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
    return Reply{.message = acceptance.SerializeAsString(), .paths = {}};
  }

  absl::StatusOr<Reply> Conclude(LinkId link, ConstBytes message) override {
    proto::RdmaAcceptance acceptance;
    if (!acceptance.ParseFromArray(message.data(), static_cast<int>(message.size())))
      return absl::InvalidArgumentError("an RDMA acceptance that cannot be read");
    Reply reply;
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
        reply.paths.push_back(Up(*qp));
        continue;
      }
      out->set_refused(std::string(status.message()));
      Log(absl::StrCat("no RDMA path ", theirs.path(), ": ", status.message()));
      Destroy(link, theirs.path());
    }
    reply.message = ready.SerializeAsString();
    return reply;
  }

  absl::StatusOr<std::vector<NewPath>> Ready(LinkId link, ConstBytes message) override {
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
      if (!qp->connected || qp->up) continue;
      if (theirs.refused().empty()) {
        paths.push_back(Up(*qp));
      } else {
        Destroy(link, theirs.path());
      }
    }
    DropUnfinished(link);   // what the peer did not speak of
    return paths;
  }

  bool Wanting(LinkId link) const override {
    for (size_t i = 0; i < rails_.size(); ++i) {
      if (!rails_[i].down && Count(link, i) < options_.queue_pairs) return true;
    }
    return false;
  }

  std::vector<SlotTarget> Targets(LinkId link, uint32_t, MutableBytes memory) override {
    std::vector<SlotTarget> targets;
    const auto it = links_.find(link);
    if (it == links_.end()) return targets;
    std::vector<bool> seen(rails_.size());
    for (auto& [path, qp] : it->second.qps) {
      if (seen[qp->rail]) continue;
      seen[qp->rail] = true;
      if (const auto keys = qp->domain->Find(memory, Access::kSendAndReceive)) {
        targets.push_back({static_cast<uint32_t>(qp->rail), reinterpret_cast<uint64_t>(memory.data()), keys->rkey});
      }
    }
    return targets;
  }

  bool CanSendFrom(LinkId link, PathId path, ConstBytes payload) override {
    Qp* qp = Find(link, path);
    return qp != nullptr && qp->domain->Find(payload).has_value();
  }

  size_t Room(LinkId link, PathId path) override {
    Qp* qp = Find(link, path);
    return qp == nullptr ? 0 : qp->qp->room();
  }

  uint32_t ReceivesPosted(LinkId link, PathId path) override {
    Qp* qp = Find(link, path);
    return qp == nullptr ? 0 : qp->qp->receives_posted();
  }

  void SendPacket(LinkId link, PathId path, ConstBytes packet, uint64_t token) override {
    Qp* qp = Find(link, path);
    if (qp == nullptr) return;   // breaking: the owner hears of it
    qp->qp->Packet(packet, token);
    Touch(*qp);
  }

  void SendChunk(LinkId link, PathId path, const Chunk& chunk, uint64_t token) override {
    Qp* qp = Find(link, path);
    if (qp == nullptr) return;
    const auto keys = qp->domain->Find(chunk.payload);
    if (!keys.has_value() || chunk.payload.size() > qp->qp->max_write_bytes()) {
      BreakQp(*qp, absl::InternalError("a payload that this device cannot send: its memory is not registered, or it is too long"));
      return;
    }
    qp->qp->Write(chunk.payload, keys->lkey, chunk.target.address + chunk.offset, static_cast<uint32_t>(chunk.target.key),
                  chunk.tag, token);
    Touch(*qp);
  }

  void Flush() override {
    const TimeNs now = clock_->Now();
    for (Qp* qp : std::exchange(touched_, {})) {
      qp->touched = false;
      if (!qp->qp->broken().ok() || !qp->connected) continue;
      (void)qp->qp->Flush(now);   // an error breaks it
      if (!qp->qp->broken().ok()) ReapSoon();
    }
  }

  void Break(LinkId link, PathId path, const absl::Status& why) override {
    if (Qp* qp = Find(link, path)) BreakQp(*qp, why);
  }

  void DropLink(LinkId link) override {
    const auto it = links_.find(link);
    if (it == links_.end()) return;
    for (auto& [path, qp] : it->second.qps) Bury(std::move(qp));
    links_.erase(it);
  }

  std::shared_ptr<void> Register(MutableBytes memory) override {
    return std::make_shared<MemoryRegistry::Handle>(memory_.Add(memory.data(), memory.size()));
  }

  std::vector<Report> Reports(LinkId link) const override {
    std::vector<Report> reports;
    const auto it = links_.find(link);
    if (it == links_.end()) return reports;
    for (const auto& [path, qp] : it->second.qps) {
      if (!qp->up) continue;
      const QpCounters& counters = qp->qp->counters();
      const Rail& rail = rails_[qp->rail].rail;
      reports.push_back({.path = path,
                         .rail = RailName(rail),
                         .peer = qp->peer,
                         .packets_out = counters.packets_out,
                         .packets_in = counters.packets_in,
                         .writes = counters.writes_out,
                         .bytes_out = counters.packet_bytes_out + counters.write_bytes_out,
                         .notices_in = counters.notices_in,
                         .oldest_wait = qp->qp->oldest_wait(clock_->Now())});
    }
    return reports;
  }

  transport::PathTotals Counters() const override {
    const QpCounters sum = Totals();
    transport::PathTotals totals;
    totals.broken = broken_;
    for (const RailState& rail : rails_) {
      totals.ports.emplace_back(rail.rail.device, rail.rail.port);
      for (const Domain* domain : rail.domains) {
        totals.registered_bytes += domain->stats().registered_bytes;
        totals.refused_regions += domain->stats().refused;
      }
    }
    for (unsigned status = 0; status < sum.completions.size(); ++status) {
      if (sum.completions[status] > 0) totals.completions[CompletionName(status)] += sum.completions[status];
    }
    totals.latency.assign(sum.latency.begin(), sum.latency.end());
    totals.latency_seconds = static_cast<double>(sum.latency_microseconds) / 1e6;
    return totals;
  }

  std::string Trouble() const override { return last_refusal_; }

  // ---- VerbsDriver ----

  std::vector<Rail> rails() const override {
    std::vector<Rail> rails;
    for (const RailState& rail : rails_) rails.push_back(rail.rail);
    return rails;
  }
  QpCounters Totals() const override {
    QpCounters totals = gone_;
    for (const auto& [id, link] : links_) {
      for (const auto& [path, qp] : link.qps) totals.Add(qp->qp->counters());
    }
    return totals;
  }
  uint64_t queue_pairs_broken() const override { return broken_; }
  uint64_t registered_bytes() const override {
    uint64_t bytes = 0;
    for (const RailState& rail : rails_) {
      for (const Domain* domain : rail.domains) bytes += domain->stats().registered_bytes;
    }
    return bytes;
  }

 private:
  struct Qp final : public QueuePair::Owner {
    Driver* driver = nullptr;
    LinkId link = 0;
    PathId path = 0;
    size_t rail = 0;
    Domain* domain = nullptr;
    std::unique_ptr<QueuePair> qp;
    bool connected = false;   // RTS
    bool up = false;          // and the peer's end too: the owner knows it
    bool touched = false;
    bool dropped = false;     // its link is gone
    uint32_t peer_group = 0, peer_receives = 0;
    std::string peer;
    std::optional<TimeNs> breaking;

    void QpDone(QueuePair&, uint64_t cookie) override {
      if (up && !dropped) driver->owner_->PathDone(link, path, cookie);
    }
    void QpPacket(QueuePair&, ConstBytes packet) override {
      driver->Touch(*this);
      if (!dropped) driver->owner_->PathPacket(link, path, packet);
    }
    void QpNotice(QueuePair&, uint32_t tag) override {
      driver->Touch(*this);
      if (!dropped) driver->owner_->PathChunk(link, path, tag);
    }
  };
  struct LinkState {
    std::map<PathId, std::unique_ptr<Qp>> qps;
    PathId last_path = 0;   // connector: the largest that the peer has proposed
  };
  struct RailState {
    Rail rail;
    std::unique_ptr<Context> context;
    bool down = false, lost = false;   // lost: for good
    std::map<uint32_t, Qp*> by_number;
    std::vector<Domain*> domains;
  };

  void Log(const std::string& text) const {
    if (options_.log) options_.log(text);
  }

  Qp* Find(LinkId link, PathId path) {
    const auto it = links_.find(link);
    if (it == links_.end()) return nullptr;
    const auto qp = it->second.qps.find(path);
    return qp == it->second.qps.end() ? nullptr : qp->second.get();
  }

  uint32_t Count(LinkId link, size_t rail) const {
    const auto it = links_.find(link);
    if (it == links_.end()) return 0;
    uint32_t count = 0;
    for (const auto& [path, qp] : it->second.qps) count += qp->rail == rail && !qp->breaking.has_value() ? 1 : 0;
    return count;
  }

  void Touch(Qp& qp) {
    if (std::exchange(qp.touched, true)) return;
    touched_.push_back(&qp);
  }

  // The rail of ours for one of the peer's: of the same kind, the most alike first.
  std::optional<size_t> PairFor(const proto::RdmaRail& theirs, size_t index, uint32_t attempt) const {
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

  absl::StatusOr<Qp*> MakeQp(LinkId link, PathId path, size_t rail, uint32_t job) {
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

  absl::Status AcceptOne(LinkId link, uint32_t job, const proto::RdmaQueuePair& theirs, proto::RdmaQueuePair* out) {
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

  absl::Status Connect(Qp& qp, const proto::RdmaQueuePair& theirs) {
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

  NewPath Up(Qp& qp) {
    qp.up = true;
    return {.path = qp.path,
            .info = {.tier = kTier,
                     .remote_group = qp.peer_group,
                     .packets = true,
                     .credits = qp.peer_receives,
                     .receives = qp.qp->local().receives},
            .rail = RailName(rails_[qp.rail].rail),
            .what = absl::StrCat(rails_[qp.rail].rail.ToString(), " to ", qp.peer)};
  }

  // Of an exchange that came to nothing.
  void DropUnfinished(LinkId link) {
    const auto it = links_.find(link);
    if (it == links_.end()) return;
    std::vector<PathId> paths;
    for (const auto& [path, qp] : it->second.qps) {
      if (!qp->up) paths.push_back(path);
    }
    for (const PathId path : paths) Destroy(link, path);
  }

  void Destroy(LinkId link, PathId path) {
    const auto it = links_.find(link);
    if (it == links_.end()) return;
    auto node = it->second.qps.extract(path);
    if (!node.empty()) Bury(std::move(node.mapped()));
  }

  // Destroyed now, or where its own callback is on the stack, as soon as that is over.
  void Bury(std::unique_ptr<Qp> qp) {
    qp->dropped = true;
    rails_[qp->rail].by_number.erase(qp->qp->number());
    if (qp->touched) std::erase(touched_, qp.get());
    if (polling_) {
      qp->qp->Break(absl::CancelledError("its link is gone"));
      graveyard_.push_back(std::move(qp));
      return;
    }
    gone_.Add(qp->qp->counters());
  }

  void Dig() {
    for (const auto& qp : graveyard_) gone_.Add(qp->qp->counters());
    graveyard_.clear();
  }

  // ---- completions ----

  void OnCompletions(size_t index) {
    Context& context = *rails_[index].context;
    const TimeNs begun = clock_->Now();
    TimeNs last = begun;
    for (int burst = 0; burst < kMostBursts; ++burst) {
      const size_t found = PollOnce(index);
      if (found > 0) {
        last = clock_->Now();
        continue;
      }
      if (clock_->Now() - last < options_.spin) {
        --burst;   // bounded by time
        continue;
      }
      if (const absl::Status status = context.Arm(); !status.ok()) return Lose(index, status);
      if (PollOnce(index) == 0) return;
      last = clock_->Now();
    }
    // Still busy. What comes from now on raises no event until the queue is armed.
    if (poll_timer_ == 0) {
      poll_timer_ = loop_->After(0, [this] {
        poll_timer_ = 0;
        for (size_t i = 0; i < rails_.size(); ++i) OnCompletions(i);
      });
    }
  }

  // Takes what is there, posts receives again, and lets the owner send. Returns how many completions there were.
  size_t PollOnce(size_t index) {
    RailState& rail = rails_[index];
    const TimeNs now = clock_->Now();
    size_t count = 0;
    bool more = false;
    polling_ = true;
    const absl::Status status = rail.context->Poll([&](const ibv_wc& wc) {
      ++count;
      const auto it = rail.by_number.find(wc.qp_num);
      if (it == rail.by_number.end()) return;   // of one that was destroyed
      Qp& qp = *it->second;
      qp.qp->OnCompletion(wc, now);
      if (!qp.qp->broken().ok() && !qp.dropped) Breaking(qp);
    }, &more);
    polling_ = false;
    Dig();
    if (!status.ok()) {
      Lose(index, status);
      return 0;
    }
    if (count == 0) return 0;
    Reap();
    Flush();   // receives: the peer may be waiting for credits
    owner_->PathsRead();
    return count;
  }

  // ---- ends ----

  void BreakQp(Qp& qp, const absl::Status& why) {
    qp.qp->Break(why);
    Breaking(qp);
  }

  void Breaking(Qp& qp) {
    if (qp.breaking.has_value()) return;
    qp.breaking = clock_->Now();
    ++broken_;
    ReapSoon();
  }

  void ReapSoon() {
    if (reap_timer_ != 0) return;
    reap_timer_ = loop_->After(0, [this] {
      reap_timer_ = 0;
      for (size_t i = 0; i < rails_.size(); ++i) OnCompletions(i);
      Reap();
    });
  }

  // Destroys those that are broken and have nothing more to say, and tells of them. late: also those that have not said all
  // within kDrain; the completion queues are empty.
  void Reap(bool late = false) {
    const TimeNs now = clock_->Now();
    struct Dead {
      LinkId link;
      PathId path;
      bool up, certain;
      absl::Status why;
    };
    std::vector<Dead> dead;
    for (auto& [id, link] : links_) {
      for (auto& [path, qp] : link.qps) {
        if (qp->qp->broken().ok()) continue;
        Breaking(*qp);
        if (qp->qp->drained() || (late && now - *qp->breaking >= kDrain))
          dead.push_back({id, path, qp->up, qp->qp->receives_drained(), qp->qp->broken()});
      }
    }
    for (const Dead& one : dead) {
      Destroy(one.link, one.path);
      if (one.up && one.certain) owner_->PathBroken(one.link, one.path, one.why);
      if (one.up && !one.certain) owner_->PathDoubtful(one.link, one.path, one.why);
    }
    if (!dead.empty()) owner_->PathsRead();
  }

  // The device's completion queue is of no use any more.
  void Lose(size_t index, const absl::Status& status) {
    RailState& rail = rails_[index];
    if (rail.lost) return;
    rail.down = rail.lost = true;
    loop_->Unwatch(rail.context->completion_fd());   // an event that is never taken would wake the loop for ever
    Log(absl::StrCat(rail.rail.ToString(), " is given up until this process starts again: ", status.message()));
    BreakRail(index, status);
  }

  void BreakRail(size_t index, const absl::Status& why) {
    for (auto& [id, link] : links_) {
      for (auto& [path, qp] : link.qps) {
        if (qp->rail == index && qp->qp->broken().ok()) BreakQp(*qp, why);
      }
    }
  }

  void OnEvents(size_t index) {
    RailState& rail = rails_[index];
    bool look = false;
    rail.context->OnAsyncEvents([&](const ibv_async_event& event) {
      switch (event.event_type) {
        case IBV_EVENT_PORT_ERR:
          if (event.element.port_num != rail.rail.port || rail.down) return;
          rail.down = true;
          Log(absl::StrCat(rail.rail.ToString(), ": the port is down"));
          BreakRail(index, absl::UnavailableError(absl::StrCat(rail.rail.ToString(), ": the port went down")));
          return;
        case IBV_EVENT_PORT_ACTIVE:
        case IBV_EVENT_GID_CHANGE:
        case IBV_EVENT_LID_CHANGE:
          look = true;
          return;
        case IBV_EVENT_DEVICE_FATAL:
          Lose(index, absl::UnavailableError("the device reports a fatal error; see the kernel's log (dmesg)"));
          return;
        default: return;
      }
    });
    if (look) LookAgain(index);
  }

  // Is a port that was down fit for use again, or one that is up still where it was? Its GID may have gone elsewhere.
  void LookAgain(size_t index) {
    RailState& rail = rails_[index];
    if (rail.lost) return;
    absl::Status status = rail.context->Refresh();
    if (!rail.down) {
      if (!absl::IsFailedPrecondition(status)) return;
      rail.down = true;
      Log(std::string(status.message()));
      BreakRail(index, status);
    }
    if (absl::IsFailedPrecondition(status)) {
      RailOptions options = options_.rails;
      options.devices = {absl::StrCat(rail.rail.device, ":", rail.rail.port)};
      const RailChoice choice = ChooseRails(GatherFacts(verbs_.get(), absl::OkStatus(), options_.gather), options);
      if (choice.rails.empty()) return ArmTick();   // looked at again
      rail.rail = choice.rails.front();
      rail.context->UseRail(rail.rail);
      status = rail.context->Refresh();
    }
    if (!status.ok()) return ArmTick();
    rail.down = false;
    Log(absl::StrCat(rail.rail.ToString(), " can be used again"));
    owner_->PathsPossible();
  }

  void ArmTick() {
    if (tick_timer_ != 0) return;
    tick_timer_ = loop_->After(kTick, [this] {
      tick_timer_ = 0;
      const TimeNs now = clock_->Now();
      bool any = false;
      for (auto& [id, link] : links_) {
        for (auto& [path, qp] : link.qps) {
          any = true;
          const TimeNs waited = qp->qp->oldest_wait(now);
          if (qp->breaking.has_value() || waited <= options_.watchdog) continue;
          BreakQp(*qp, absl::DeadlineExceededError(absl::StrCat(
              "a work request on ", rails_[qp->rail].rail.ToString(), " has not completed within ", waited / kMillisecond,
              " ms, with or without an error (rdma.watchdog_ms)")));
        }
      }
      for (size_t i = 0; i < rails_.size(); ++i) {
        any |= rails_[i].down && !rails_[i].lost;
        if (rails_[i].down) LookAgain(i);
        for (int burst = 0; burst < kMostBursts && PollOnce(i) > 0; ++burst) {}
      }
      Reap(/*late=*/true);
      if (any) ArmTick();
    });
  }

  transport::Loop* const loop_;
  const Clock* const clock_;
  const std::shared_ptr<Verbs> verbs_;
  const DriverOptions options_;
  Owner* owner_ = nullptr;
  MemoryRegistry memory_;
  std::vector<RailState> rails_;   // fixed after Start
  std::map<LinkId, LinkState> links_;
  std::vector<Qp*> touched_;
  std::vector<std::unique_ptr<Qp>> graveyard_;
  bool polling_ = false;
  QpCounters gone_;
  uint64_t broken_ = 0;
  std::string last_refused_, last_refusal_;   // by this end, by a peer: told once
  uint64_t tick_timer_ = 0, reap_timer_ = 0, poll_timer_ = 0;
};

}  // namespace

std::string FindingsText(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    if (finding.severity == Severity::kInfo) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", finding.device, finding.device.empty() ? "" : ": ", finding.what,
                    finding.mend.empty() ? "" : absl::StrCat(" (", finding.mend, ")"));
  }
  return text.empty() ? "none was found" : text;
}

absl::StatusOr<std::unique_ptr<VerbsDriver>> VerbsDriver::Create(transport::Loop* loop, const Clock* clock,
                                                                std::shared_ptr<Verbs> verbs, DriverOptions options) {
  auto driver = std::make_unique<Driver>(loop, clock, std::move(verbs), std::move(options));
  SLUICE_RETURN_IF_ERROR(driver->Start());
  return driver;
}

}  // namespace sluice::rdma
