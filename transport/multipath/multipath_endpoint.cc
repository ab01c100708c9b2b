#include "transport/multipath/multipath_endpoint.h"

#include <algorithm>
#include <random>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/rails.pb.h"
#include "transport/hello.h"
#include "transport/multipath/grown_link.h"

namespace sluice::transport {
namespace {

using multipath::Chunk;
using multipath::GrownLink;
using multipath::kBasePath;
using multipath::MultipathLink;
using multipath::PathDriver;
using multipath::PathId;
using multipath::PathInfo;
using multipath::SlotTarget;

constexpr uint32_t kVersion = 1;
enum Aux : uint32_t {
  kPaths = kFirstTransportAux, kPacket, kChunk, kChunkAck, kOffer, kProposal, kAcceptance, kReady
};
constexpr uint32_t kPathBit = uint32_t{1} << 31;   // of Hello::connection: a further connection; the rest is its path
constexpr uint32_t kConnectionGroup = uint32_t{1} << 31;   // of SlotTarget::group: further connection, by path
constexpr size_t kMostConnections = 16;
constexpr uint32_t kMostPathsMissed = 1 << 16;
constexpr TimeNs kTick = 50 * kMillisecond;
constexpr TimeNs kExchangeTimeout = 5 * kSecond;
constexpr TimeNs kStable = 10 * kSecond;   // a path that lived so long broke for a new reason: no long wait
constexpr size_t kBaseRoom = 64;

ConstBytes AsBytes(const std::string& text) { return std::as_bytes(std::span(text)); }

class Impl final : public MultipathEndpoint, public Handler, public PathDriver::Owner {
 public:
  Impl(Loop* loop, const Clock* clock, MultipathOptions options)
      : loop_(loop), clock_(clock), options_(std::move(options)), driver_(std::move(options_.driver)),
        random_(std::random_device()()) {}

  ~Impl() override {
    if (tick_timer_ != 0) loop_->CancelTimer(tick_timer_);
    if (again_timer_ != 0) loop_->CancelTimer(again_timer_);
    if (driver_ != nullptr) {
      for (auto& [id, link] : links_) driver_->DropLink(id);
    }
  }

  absl::Status Start() {
    // Before the base's own hook, so that what is sent at the end of a turn leaves in it.
    loop_->AtTurnEnd([alive = std::weak_ptr<Impl*>(alive_)] {
      if (const auto self = alive.lock()) (*self)->Flush();
    }, /*stage=*/1);
    TcpOptions tcp = options_.tcp;
    // Further connections do not count as links.
    if (!options_.rails.empty()) {
      tcp.limits.max_links *= 1 + options_.rails.size();
      tcp.admit = [this](const Hello& peer) -> absl::Status {
        const size_t most = options_.tcp.limits.max_links;
        if ((peer.connection & kPathBit) == 0 && links_.size() >= most)
          return absl::ResourceExhaustedError(absl::StrCat("this process has ", most,
                                                           " connections, its limit; raise the limit or close some"));
        return options_.tcp.admit ? options_.tcp.admit(peer) : absl::OkStatus();
      };
    }
    tcp.transport_frame = [this](LinkId link, const FrameHeader& header, Payload payload) {
      OnTransportFrame(link, header, std::move(payload));
    };
    SLUICE_ASSIGN_OR_RETURN(tcp_, TcpEndpoint::Create(loop_, clock_, std::move(tcp)));
    tcp_->SetHandler(this);
    if (driver_ != nullptr) driver_->SetOwner(this);
    return absl::OkStatus();
  }

  // ---- Endpoint ----

  uint32_t port() const override { return tcp_->port(); }
  void SetHandler(Handler* handler) override { handler_ = handler; }
  const EndpointLimits& limits() const override { return options_.tcp.limits; }
  bool ByReference(LinkId, ConstBytes) const override { return false; }

  LinkId Connect(const Address& address, const Hello& self) override {
    auto link = std::make_shared<GrownLink>();
    link->id = tcp_->Connect(address, self);
    link->connector = true;
    link->address = address;
    link->hello = self;
    link->next_path = 2;
    links_.emplace(link->id, link);
    return link->id;
  }

  void Send(LinkId id, const FrameHeader& header, ConstBytes payload, uint64_t cookie) override {
    GrownLink* link = Find(id);
    if (link == nullptr || link->core == nullptr) {
      if (link != nullptr && cookie != 0) ++link->plain_cookies;
      tcp_->Send(id, header, payload, cookie);
      return;
    }
    if (!link->up) {   // closed, and not down yet
      if (cookie != 0) link->cookies_at_down.push_back(cookie);
      return;
    }
    link->core->Send(header, payload, cookie);
    MarkDirty(*link);
  }

  bool Writable(LinkId id) const override {
    const auto it = links_.find(id);
    if (it == links_.end()) return tcp_->Writable(id);
    GrownLink& link = *it->second;
    if (link.core == nullptr) {
      if (tcp_->Writable(id)) return true;
      link.plain_full = true;
      return false;
    }
    if (link.core->queued_bytes() <= limits().max_queued_bytes) return true;
    link.wants_writable = true;
    return false;
  }

  void Close(LinkId id, const absl::Status& reason) override {
    if (const auto link = Hold(id)) {
      if (link->core != nullptr && link->up) link->core->Finish();
      Wither(*link);
    }
    tcp_->Close(id, reason);
  }

  SlotId OpenSlot(LinkId id, MutableBytes memory) override {
    const SlotId slot = tcp_->OpenSlot(id, memory);
    GrownLink* link = Find(id);
    if (link == nullptr) return slot;
    link->slots[slot] = memory;
    if (link->core != nullptr && link->up) {
      AnnounceSlot(*link, slot, memory);
      MarkDirty(*link);
    }
    return slot;
  }

  bool CloseSlot(LinkId id, SlotId slot) override {
    tcp_->CloseSlot(id, slot);
    GrownLink* link = Find(id);
    if (link == nullptr) return true;
    link->slots.erase(slot);
    if (const auto further = further_slots_.find(slot); further != further_slots_.end()) {
      for (const auto& [connection, its] : further->second) tcp_->CloseSlot(connection, its);
      further_slots_.erase(further);
    }
    if (link->core == nullptr || !link->up) return true;
    MarkDirty(*link);
    return link->core->CloseSlot(slot, clock_->Now());
  }

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes) override {
    auto memory = tcp_->Allocate(bytes);
    if (!memory.ok() || driver_ == nullptr) return memory;
    std::shared_ptr<void> handle = driver_->Register({memory->get(), bytes});
    std::byte* const data = memory->get();
    // Forgotten by the devices before it is unmapped.
    return std::shared_ptr<std::byte>(data, [memory = *std::move(memory), handle = std::move(handle)](std::byte*) mutable {
      handle.reset();
      memory.reset();
    });
  }

  std::shared_ptr<void> Register(MutableBytes memory) override {
    return driver_ == nullptr ? nullptr : driver_->Register(memory);
  }

  LinkStats Stats(LinkId id) const override {
    LinkStats stats = tcp_->Stats(id);
    const auto it = links_.find(id);
    if (it == links_.end() || it->second->core == nullptr) return stats;
    const GrownLink& link = *it->second;
    const MultipathLink& core = *link.core;
    for (const multipath::PathState& state : core.States()) {
      if (state.tier > 0) stats.kind = "rdma";
    }
    stats.bytes_out += core.bytes_out_beside_base();
    stats.bytes_in += core.bytes_in_beside_base();
    stats.frames_in = link.before.frames_in + core.frames_in();
    stats.frames_out = link.before.frames_out + core.frames_out();
    stats.payload_in = link.before.payload_in + core.payload_in();
    stats.payload_out = link.before.payload_out + core.payload_out();
    return stats;
  }

  std::vector<PathReport> Paths() const override {
    std::vector<PathReport> reports;
    for (const auto& [id, link] : links_) {
      if (!link->up || link->core == nullptr) continue;
      std::vector<PathDriver::Report> driven;
      if (driver_ != nullptr) driven = driver_->Reports(id);
      for (const multipath::PathState& state : link->core->States()) {
        PathReport report{.link = id, .state = state, .kind = "tcp", .rail = "", .peer = tcp_->Stats(id).peer};
        if (const auto host = link->hosts.find(state.path); host != link->hosts.end()) report.peer = host->second;
        for (const PathDriver::Report& one : driven) {
          if (one.path != state.path) continue;
          report.kind = "rdma";
          report.rail = one.rail;
          report.peer = one.peer;
        }
        reports.push_back(std::move(report));
      }
    }
    return reports;
  }

  std::vector<PathRow> Rows(LinkId id) const override {
    const auto it = links_.find(id);
    if (it == links_.end()) return {};
    const GrownLink& link = *it->second;
    return multipath::Rows(link, tcp_->Stats(id), driver_ == nullptr ? std::vector<PathDriver::Report>{} : driver_->Reports(id),
                           WhyTcp(link));
  }

  PathTotals Totals() const override {
    PathTotals totals = gone_;
    for (const auto& [id, link] : links_) multipath::Count(*link, tcp_->Stats(id), &totals);
    if (driver_ != nullptr) totals.Add(driver_->Counters());
    return totals;
  }

  // ---- Handler: of the base connections and the further ones ----

  void OnUp(LinkId id, const Hello& peer) override {
    if ((peer.connection & kPathBit) != 0 && !links_.contains(id)) return OnFurtherAccepted(id, peer);
    if (const auto further = further_.find(id); further != further_.end()) {
      if (const auto base = Hold(further->second.base)) ConnectionUp(*base, further->second.path);
      return;
    }
    auto link = Hold(id);
    if (link == nullptr) {
      link = std::make_shared<GrownLink>();
      link->id = id;
      link->hello = peer;
      links_.emplace(id, link);
    }
    link->up = true;
    handler_->OnUp(id, peer);
    if (!link->connector && link->up) TellPaths(*link);
  }

  void OnDown(LinkId id, const absl::Status& reason) override {
    if (const auto further = further_.find(id); further != further_.end()) {
      const Further lost = further->second;
      further_.erase(further);
      if (const auto base = Hold(lost.base)) ConnectionDown(*base, lost.path, reason);
      return;
    }
    const auto link = Hold(id);
    if (link == nullptr) return;   // a stranger among the further ones
    Wither(*link);
    // The handler may still send to it meanwhile.
    while (!link->cookies_at_down.empty()) {
      for (const uint64_t cookie : std::exchange(link->cookies_at_down, {})) handler_->OnSent(id, cookie);
    }
    multipath::Count(*link, tcp_->Stats(id), &gone_);
    links_.erase(id);
    handler_->OnDown(id, reason);
  }

  void OnFrame(LinkId id, const FrameHeader& header, Payload payload) override {
    if (links_.contains(id)) handler_->OnFrame(id, header, std::move(payload));
  }

  void OnSent(LinkId id, uint64_t cookie) override {
    if (further_.contains(id)) return;   // the peer's acknowledgement counts
    const auto link = Hold(id);
    if (link == nullptr) return handler_->OnSent(id, cookie);
    if (link->plain_cookies > 0) {
      --link->plain_cookies;
      return handler_->OnSent(id, cookie);
    }
    if (link->core == nullptr) return;
    link->core->Done(kBasePath, cookie, clock_->Now());
    MarkDirty(*link);
  }

  void OnSlotClosed(LinkId, SlotId) override {}   // TCP closes at once

  void OnWritable(LinkId id) override {
    const auto link = Hold(id);
    if (link == nullptr) return;
    const bool told = std::exchange(link->plain_full, false);
    if (link->core != nullptr) {
      link->wants_writable |= told;
      MarkDirty(*link);
    } else if (told) {
      handler_->OnWritable(id);
    }
  }

  // ---- PathDriver::Owner ----

  void PathPacket(LinkId id, PathId path, ConstBytes packet) override {
    const auto link = Grown(id);
    if (link != nullptr) Check(*link, link->core->OnPacket(path, packet));
  }
  void PathChunk(LinkId id, PathId path, uint32_t tag) override {
    const auto link = Grown(id);
    if (link != nullptr) Check(*link, link->core->OnChunk(path, tag));
  }
  void PathDone(LinkId id, PathId path, uint64_t token) override {
    const auto link = Grown(id);
    if (link == nullptr) return;
    link->core->Done(path, token, clock_->Now());
    MarkDirty(*link);
  }
  void PathBroken(LinkId id, PathId path, const absl::Status& why) override {
    const auto link = Grown(id);
    if (link == nullptr) return;
    Log(absl::StrCat("link to ", Name(*link), ": RDMA path ", path, " broke: ", why.message()));
    if (clock_->Now() - link->last_up > kStable) {
      link->backoff = 0;
      link->attempt = 0;
    }
    link->why_tcp = absl::StrCat("an RDMA path broke: ", why.message());
    PathGone(*link, path);
    WaitForNextOffer(*link);
    MarkDirty(*link);
  }
  void PathDoubtful(LinkId id, PathId path, const absl::Status& why) override {
    if (const auto link = Grown(id)) {
      Check(*link, absl::Status(why.code(), absl::StrCat("RDMA path ", path, " broke, and its device does not say what had arrived: ",
                                                         why.message())));
    }
  }
  void PathsPossible() override {
    for (auto& [id, link] : links_) {
      if (!link->up) continue;
      if (link->connector) {
        OfferSoon(*link);
      } else {
        TellPaths(*link);
      }
    }
  }
  void PathsRead() override { Flush(); }

 private:
  struct Further {
    LinkId base = 0;
    PathId path = 0;
  };

  // What a link's core asks for.
  class CoreOwner final : public MultipathLink::Owner {
   public:
    CoreOwner(Impl* endpoint, LinkId link) : endpoint_(endpoint), link_(link) {}
    size_t Room(PathId path) override { return endpoint_->Room(link_, path); }
    bool CanSendFrom(PathId path, ConstBytes payload) override {
      return endpoint_->ConnectionOf(link_, path) != 0 || endpoint_->driver_->CanSendFrom(link_, path, payload);
    }
    void SendPacket(PathId path, ConstBytes packet, uint64_t token) override {
      endpoint_->SendPacket(link_, path, packet, token);
    }
    void SendChunk(PathId path, const Chunk& chunk, uint64_t token) override {
      endpoint_->SendChunk(link_, path, chunk, token);
    }
    uint32_t ReceivesPosted(PathId path) override { return endpoint_->driver_->ReceivesPosted(link_, path); }
    void BreakPath(PathId path, const absl::Status& why) override { endpoint_->BreakPath(link_, path, why); }
    void Deliver(const FrameHeader& header, Payload payload) override {
      endpoint_->handler_->OnFrame(link_, header, std::move(payload));
    }
    void Sent(uint64_t cookie) override { endpoint_->handler_->OnSent(link_, cookie); }
    void SlotClosed(SlotId slot) override { endpoint_->handler_->OnSlotClosed(link_, slot); }

   private:
    Impl* const endpoint_;
    const LinkId link_;
  };

  GrownLink* Find(LinkId id) const {
    const auto it = links_.find(id);
    return it == links_.end() ? nullptr : it->second.get();
  }
  std::shared_ptr<GrownLink> Hold(LinkId id) const {
    const auto it = links_.find(id);
    return it == links_.end() ? nullptr : it->second;
  }
  std::shared_ptr<GrownLink> Grown(LinkId id) const {
    auto link = Hold(id);
    return link != nullptr && link->up && link->core != nullptr ? link : nullptr;
  }
  void Log(const std::string& text) const {
    if (options_.log) options_.log(text);
  }
  std::string Name(const GrownLink& link) const {
    return link.connector ? link.address.ToString() : DebugString(link.hello);
  }

  void MarkDirty(GrownLink& link) {
    if (link.dirty) return;
    link.dirty = true;
    dirty_.push_back(link.id);
  }

  // ---- what people see ----

  void LosePath(GrownLink& link, PathId path) {
    multipath::CountPath(link, path, &gone_);
    link.rails.erase(path);
    ++link.lost;
    link.core->PathLost(path, clock_->Now());
  }

  void CountPathUp(GrownLink& link) {
    if (link.lost == 0) return;
    --link.lost;
    ++gone_.reconnects;
  }

  std::string WhyTcp(const GrownLink& link) const {
    if (driver_ == nullptr) return options_.why_no_driver;
    if (!driver_->Usable()) return "no RDMA rail is up here";
    if (!link.why_tcp.empty()) return link.why_tcp;
    if (const std::string trouble = driver_->Trouble(); !trouble.empty()) return trouble;
    if (link.connector) return link.peer_has_rdma ? "queue pairs are being made" : "the peer offers no RDMA";
    return "the peer has asked for no queue pair";
  }

  // The peer broke the rules: the link ends.
  void Check(GrownLink& link, const absl::Status& status) {
    MarkDirty(link);
    if (status.ok() || !link.up) return;
    Wither(link);
    tcp_->Close(link.id, absl::Status(status.code(), absl::StrCat("link to ", Name(link), ": ", status.message())));
  }

  // ---- growing ----

  void Tell(LinkId link, Aux aux, ConstBytes payload) {
    FrameHeader header;
    header.type = FrameType::kTransport;
    header.aux = aux;
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    header.total_bytes = payload.size();
    tcp_->Send(link, header, payload, 0);
  }

  void TellPaths(GrownLink& link) {
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

  void Grow(GrownLink& link) {
    if (link.core != nullptr) return;
    link.before = tcp_->Stats(link.id);
    link.owner = std::make_unique<CoreOwner>(this, link.id);
    link.core = std::make_unique<MultipathLink>(link.owner.get(), limits(), options_.chunk_bytes);
    link.core->PathUp(kBasePath, {.tier = 0}, clock_->Now());
    link.core->Begin();
    // Slots that the peer knows by frames before the first packet, too.
    for (const auto& [slot, memory] : link.slots) AnnounceSlot(link, slot, memory);
    MarkDirty(link);
    if (tick_timer_ == 0) ArmTick();
  }

  void AnnounceSlot(GrownLink& link, SlotId slot, MutableBytes memory) {
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

  // No more paths, packets or frames. Lent payloads are not touched any more, their cookies come with OnDown.
  void Wither(GrownLink& link) {
    link.up = false;
    if (driver_ != nullptr) driver_->DropLink(link.id);
    for (const auto& [path, connection] : std::exchange(link.connections, {})) {
      further_.erase(connection);
      tcp_->Close(connection, absl::CancelledError("the link that it belongs to has ended"));
    }
    for (const auto& [slot, memory] : link.slots) further_slots_.erase(slot);
    if (link.core == nullptr) return;
    for (const uint64_t cookie : link.core->Stop()) link.cookies_at_down.push_back(cookie);
  }

  // ---- TRANSPORT frames ----

  void OnTransportFrame(LinkId id, const FrameHeader& header, Payload payload) {
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
        if (link->core != nullptr && !bytes.empty()) status = link->core->OnChunk(kBasePath, static_cast<uint32_t>(header.aux64));
        break;
      case kOffer: status = OnOffer(*link, bytes); break;
      case kProposal: status = OnProposal(*link, bytes); break;
      case kAcceptance: status = OnAcceptance(*link, bytes); break;
      case kReady: status = OnReady(*link, bytes); break;
      default: return;   // of a later version
    }
    Check(*link, status);
  }

  absl::Status OnPaths(GrownLink& link, ConstBytes bytes) {
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
      link.token = possible.token();
      link.tcp_port = possible.tcp_port();
      for (const std::string& host : possible.tcp_hosts()) {
        if (link.tcp_hosts.size() < kMostConnections) link.tcp_hosts.push_back(host);
      }
      for (const std::string& host : link.tcp_hosts) ConnectFurther(link, host);
    }
    return absl::OkStatus();
  }

  // ---- further TCP connections ----

  void ConnectFurther(GrownLink& link, const std::string& host) {
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

  void OnFurtherAccepted(LinkId id, const Hello& peer) {
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

  void ConnectionUp(GrownLink& link, PathId path) {
    Grow(link);
    CountPathUp(link);
    link.core->PathUp(path, {.tier = 0, .remote_group = kConnectionGroup | path, .packets = false}, clock_->Now());
    MarkDirty(link);
  }

  void ConnectionDown(GrownLink& link, PathId path, const absl::Status& reason) {
    link.connections.erase(path);
    link.hosts.erase(path);
    if (link.core == nullptr || !link.up) return;
    Log(absl::StrCat("link to ", Name(link), ": a further connection is down: ", reason.message()));
    if (link.core->HasPath(path)) LosePath(link, path);
    WaitForNextOffer(link);
    MarkDirty(link);
  }

  void OnFurtherFrame(LinkId id, Further further, const FrameHeader& header, bool landed) {
    const auto link = Grown(further.base);
    if (link == nullptr) return;
    if (header.aux == kChunk) {
      FrameHeader ack;
      ack.type = FrameType::kTransport;
      ack.aux = kChunkAck;
      ack.aux64 = header.aux64;
      tcp_->Send(id, ack, {}, 0);
      if (landed) Check(*link, link->core->OnChunk(further.path, static_cast<uint32_t>(header.aux64)));
    } else if (header.aux == kChunkAck) {
      link->core->Done(further.path, multipath::kChunkToken | static_cast<uint32_t>(header.aux64), clock_->Now());
      MarkDirty(*link);
    }
  }

  LinkId ConnectionOf(LinkId id, PathId path) const {
    if (path == kBasePath) return id;
    const GrownLink& link = *links_.at(id);
    const auto it = link.connections.find(path);
    return it == link.connections.end() ? 0 : it->second;
  }

  // ---- the exchange for RDMA ----

  void OfferSoon(GrownLink& link) {
    link.next_offer = 0;
    Offer(link);
  }

  // Also of a path that was never up here: the peer may think that it is, and waits for our word.
  void PathGone(GrownLink& link, PathId path) {
    if (link.core->HasPath(path)) return LosePath(link, path);
    link.core->PathUp(path, {.tier = 0, .packets = false}, clock_->Now());
    link.core->PathLost(path, clock_->Now());
  }

  void WaitForNextOffer(GrownLink& link) {
    if (link.backoff == 0) link.backoff = options_.reconnect;
    link.next_offer = clock_->Now() + link.backoff;
    link.backoff = std::min(2 * link.backoff, 16 * options_.reconnect);
  }

  void Offer(GrownLink& link) {
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

  absl::Status OnOffer(GrownLink& link, ConstBytes offer) {
    if (link.connector) return absl::InvalidArgumentError("an RDMA offer from the wrong side");
    Grow(link);
    if (driver_ == nullptr) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(const std::string proposal, driver_->Propose(link.id, link.job(), offer, [&] {
      return std::exchange(link.next_path, link.next_path + 2);
    }));
    Tell(link.id, kProposal, AsBytes(proposal));
    return absl::OkStatus();
  }

  absl::Status OnProposal(GrownLink& link, ConstBytes proposal) {
    if (!link.offered.has_value() || driver_ == nullptr) return absl::OkStatus();   // an old one
    SLUICE_ASSIGN_OR_RETURN(const PathDriver::Reply reply, driver_->Accept(link.id, link.job(), proposal));
    Tell(link.id, kAcceptance, AsBytes(reply.message));
    return absl::OkStatus();
  }

  absl::Status OnAcceptance(GrownLink& link, ConstBytes acceptance) {
    if (link.connector || driver_ == nullptr || link.core == nullptr) return absl::InvalidArgumentError("an RDMA acceptance out of turn");
    SLUICE_ASSIGN_OR_RETURN(const PathDriver::Reply reply, driver_->Conclude(link.id, acceptance));
    // The peer hears of them before anything travels over them.
    Tell(link.id, kReady, AsBytes(reply.message));
    PathsUp(link, reply.paths);
    return absl::OkStatus();
  }

  absl::Status OnReady(GrownLink& link, ConstBytes ready) {
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

  void PathsUp(GrownLink& link, const std::vector<PathDriver::NewPath>& paths) {
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

  // ---- sending ----

  size_t Room(LinkId id, PathId path) const {
    const LinkId connection = ConnectionOf(id, path);
    if (connection == 0) return driver_->Room(id, path);
    return tcp_->Writable(connection) ? kBaseRoom : 0;
  }

  void SendPacket(LinkId id, PathId path, ConstBytes packet, uint64_t token) {
    if (path == kBasePath) return Tell(id, kPacket, packet);
    driver_->SendPacket(id, path, packet, token);
  }

  void SendChunk(LinkId id, PathId path, const Chunk& chunk, uint64_t token) {
    const LinkId connection = ConnectionOf(id, path);
    if (connection == 0) return driver_->SendChunk(id, path, chunk, token);
    FrameHeader header;
    header.type = FrameType::kTransport;
    header.aux = kChunk;
    header.aux64 = chunk.tag;
    header.slot = path == kBasePath ? chunk.slot : chunk.target.address;
    header.stripe_offset = chunk.offset;
    header.payload_bytes = static_cast<uint32_t>(chunk.payload.size());
    header.total_bytes = chunk.offset + chunk.payload.size();
    tcp_->Send(connection, header, chunk.payload, token);
  }

  void BreakPath(LinkId id, PathId path, const absl::Status& why) {
    const LinkId connection = ConnectionOf(id, path);
    if (connection == 0) return driver_->Break(id, path, why);
    tcp_->Close(connection, why);   // OnDown follows
  }

  // Everything that was queued in this turn. Handlers refill in OnSent, so a few passes.
  void Flush() {
    if (flushing_) return;
    flushing_ = true;
    const TimeNs now = clock_->Now();
    for (int pass = 0; pass < 4 && !dirty_.empty(); ++pass) {
      std::vector<LinkId> dirty;
      dirty.swap(dirty_);
      for (const LinkId id : dirty) {
        const auto link = Hold(id);
        if (link == nullptr) continue;
        link->dirty = false;
        if (link->core == nullptr || !link->up) continue;
        link->core->Pump(now);
        if (link->up && link->wants_writable && link->core->queued_bytes() < limits().max_queued_bytes / 2) {
          link->wants_writable = false;
          handler_->OnWritable(id);
        }
      }
      if (driver_ != nullptr) driver_->Flush();
    }
    flushing_ = false;
    if (!dirty_.empty() && again_timer_ == 0) {
      again_timer_ = loop_->After(0, [this] {
        again_timer_ = 0;
        Flush();
      });
    }
  }

  // Paths that stall are judged by the passing of time, and offers wait for theirs.
  void ArmTick() {
    tick_timer_ = loop_->After(kTick, [this] {
      tick_timer_ = 0;
      bool grown = false;
      std::vector<LinkId> ids;
      for (auto& [id, link] : links_) {
        if (link->core == nullptr || !link->up) continue;
        grown = true;
        ids.push_back(id);
      }
      for (const LinkId id : ids) {
        if (const auto link = Grown(id)) {
          Offer(*link);
          Check(*link, link->core->Overdue(clock_->Now()));
          if (link->up && link->core->queued_bytes() > 0) MarkDirty(*link);
        }
      }
      Flush();
      if (grown) ArmTick();
    });
  }

  Loop* const loop_;
  const Clock* const clock_;
  MultipathOptions options_;
  const std::unique_ptr<PathDriver> driver_;
  const std::shared_ptr<Impl*> alive_ = std::make_shared<Impl*>(this);
  std::mt19937_64 random_;
  Handler* handler_ = nullptr;
  std::unordered_map<LinkId, std::shared_ptr<GrownLink>> links_;
  std::unordered_map<LinkId, Further> further_;   // connections by their own id
  std::unordered_map<SlotId, std::vector<std::pair<LinkId, SlotId>>> further_slots_;   // a slot's namesakes on them
  PathTotals gone_;   // of links and paths that are gone, and all reconnects
  std::vector<LinkId> dirty_;
  bool flushing_ = false;
  bool told_no_rdma_ = false;
  uint64_t tick_timer_ = 0, again_timer_ = 0;
  std::unique_ptr<TcpEndpoint> tcp_;   // last: it goes first, and calls nobody back
};

}  // namespace

absl::StatusOr<std::unique_ptr<MultipathEndpoint>> MultipathEndpoint::Create(Loop* loop, const Clock* clock,
                                                                             MultipathOptions options) {
  auto endpoint = std::make_unique<Impl>(loop, clock, std::move(options));
  SLUICE_RETURN_IF_ERROR(endpoint->Start());
  return endpoint;
}

}  // namespace sluice::transport
