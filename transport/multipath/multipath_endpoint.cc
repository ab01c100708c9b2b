#include "transport/multipath/multipath_endpoint.h"

#include <algorithm>
#include <random>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/hello.h"
#include "transport/multipath/growing_endpoint.h"
#include "transport/multipath/grown_link.h"

namespace sluice::transport::multipath {

absl::Status GrowingEndpoint::Start() {
  // Before the base's own hook, so that what is sent at the end of a turn leaves in it.
  loop_->AtTurnEnd([alive = std::weak_ptr<GrowingEndpoint*>(alive_)] {
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

LinkId GrowingEndpoint::Connect(const Address& address, const Hello& self) {
  auto link = std::make_shared<GrownLink>();
  Address way = address;
  if (const auto ways = ways_.find(address.ToString()); ways != ways_.end()) way.host = ways->second.hosts[ways->second.current];
  link->id = tcp_->Connect(way, self);
  link->connector = true;
  link->address = address;
  link->hello = self;
  link->next_path = 2;
  links_.emplace(link->id, link);
  return link->id;
}

void GrowingEndpoint::Send(LinkId id, const FrameHeader& header, ConstBytes payload, uint64_t cookie) {
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

bool GrowingEndpoint::Writable(LinkId id) const {
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

void GrowingEndpoint::Close(LinkId id, const absl::Status& reason) {
  if (const auto link = Hold(id)) {
    if (link->core != nullptr && link->up) link->core->Finish();
    Wither(*link);
  }
  tcp_->Close(id, reason);
}

SlotId GrowingEndpoint::OpenSlot(LinkId id, MutableBytes memory) {
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

bool GrowingEndpoint::CloseSlot(LinkId id, SlotId slot) {
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

absl::StatusOr<std::shared_ptr<std::byte>> GrowingEndpoint::Allocate(size_t bytes) {
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

std::shared_ptr<void> GrowingEndpoint::Register(MutableBytes memory) {
  return driver_ == nullptr ? nullptr : driver_->Register(memory);
}

LinkStats GrowingEndpoint::Stats(LinkId id) const {
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

std::vector<PathReport> GrowingEndpoint::Paths() const {
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

std::vector<PathRow> GrowingEndpoint::Rows(LinkId id) const {
  const auto it = links_.find(id);
  if (it == links_.end()) return {};
  const GrownLink& link = *it->second;
  return multipath::Rows(link, tcp_->Stats(id), driver_ == nullptr ? std::vector<PathDriver::Report>{} : driver_->Reports(id),
                         WhyTcp(link));
}

PathTotals GrowingEndpoint::Totals() const {
  PathTotals totals = gone_;
  for (const auto& [id, link] : links_) multipath::Count(*link, tcp_->Stats(id), &totals);
  if (driver_ != nullptr) totals.Add(driver_->Counters());
  return totals;
}

void GrowingEndpoint::OnUp(LinkId id, const Hello& peer) {
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
  link->up = link->was_up = true;
  handler_->OnUp(id, peer);
  if (!link->connector && link->up) TellPaths(*link);
}

void GrowingEndpoint::OnDown(LinkId id, const absl::Status& reason) {
  held_acks_.erase(id);
  if (const auto further = further_.find(id); further != further_.end()) {
    const Further lost = further->second;
    further_.erase(further);
    if (const auto base = Hold(lost.base)) ConnectionDown(*base, lost.path, reason);
    return;
  }
  const auto link = Hold(id);
  if (link == nullptr) return;   // a stranger among the further ones
  if (!link->was_up) NextWay(*link);
  Wither(*link);
  // The handler may still send to it meanwhile.
  while (!link->cookies_at_down.empty()) {
    for (const uint64_t cookie : std::exchange(link->cookies_at_down, {})) handler_->OnSent(id, cookie);
  }
  multipath::Count(*link, tcp_->Stats(id), &gone_);
  links_.erase(id);
  handler_->OnDown(id, reason);
}

void GrowingEndpoint::OnFrame(LinkId id, const FrameHeader& header, Payload payload) {
  if (links_.contains(id)) handler_->OnFrame(id, header, std::move(payload));
}

void GrowingEndpoint::OnSent(LinkId id, uint64_t cookie) {
  if (further_.contains(id)) return;   // the peer's acknowledgement counts
  const auto link = Hold(id);
  if (link == nullptr) return handler_->OnSent(id, cookie);
  if (link->plain_cookies > 0) {
    --link->plain_cookies;
    return handler_->OnSent(id, cookie);
  }
  // Of a chunk: the peer's acknowledgement counts.
}

void GrowingEndpoint::OnWritable(LinkId id) {
  SendHeldAcks(id);
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

void GrowingEndpoint::PathPacket(LinkId id, PathId path, ConstBytes packet) {
  const auto link = Grown(id);
  if (link != nullptr) Check(*link, link->core->OnPacket(path, packet));
}

void GrowingEndpoint::PathChunk(LinkId id, PathId path, uint32_t tag) {
  const auto link = Grown(id);
  if (link != nullptr) Check(*link, link->core->OnChunk(path, tag));
}

void GrowingEndpoint::PathDone(LinkId id, PathId path, uint64_t token) {
  const auto link = Grown(id);
  if (link == nullptr) return;
  link->core->Done(path, token, clock_->Now());
  MarkDirty(*link);
}

void GrowingEndpoint::PathUp(LinkId id, const PathDriver::NewPath& path) {
  if (const auto link = Grown(id)) PathsUp(*link, {path});
}

void GrowingEndpoint::PathBroken(LinkId id, PathId path, const absl::Status& why) {
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

void GrowingEndpoint::PathDoubtful(LinkId id, PathId path, const absl::Status& why) {
  if (const auto link = Grown(id)) {
    Check(*link, absl::Status(why.code(), absl::StrCat("RDMA path ", path, " broke, and its device does not say what had arrived: ",
                                                       why.message())));
  }
}

void GrowingEndpoint::PathsPossible() {
  for (auto& [id, link] : links_) {
    if (!link->up) continue;
    if (link->connector) {
      OfferSoon(*link);
    } else {
      TellPaths(*link);
    }
  }
}

GrownLink* GrowingEndpoint::Find(LinkId id) const {
  const auto it = links_.find(id);
  return it == links_.end() ? nullptr : it->second.get();
}

std::shared_ptr<GrownLink> GrowingEndpoint::Hold(LinkId id) const {
  const auto it = links_.find(id);
  return it == links_.end() ? nullptr : it->second;
}

std::shared_ptr<GrownLink> GrowingEndpoint::Grown(LinkId id) const {
  auto link = Hold(id);
  return link != nullptr && link->up && link->core != nullptr ? link : nullptr;
}

void GrowingEndpoint::Log(const std::string& text) const {
  if (options_.log) options_.log(text);
}

std::string GrowingEndpoint::Name(const GrownLink& link) const {
  return link.connector ? link.address.ToString() : DebugString(link.hello);
}

void GrowingEndpoint::MarkDirty(GrownLink& link) {
  if (link.dirty) return;
  link.dirty = true;
  dirty_.push_back(link.id);
}

void GrowingEndpoint::LosePath(GrownLink& link, PathId path) {
  multipath::CountPath(link, path, &gone_);
  link.rails.erase(path);
  ++link.lost;
  link.core->PathLost(path, clock_->Now());
}

void GrowingEndpoint::CountPathUp(GrownLink& link) {
  if (link.lost == 0) return;
  --link.lost;
  ++gone_.reconnects;
}

std::string GrowingEndpoint::WhyTcp(const GrownLink& link) const {
  if (driver_ == nullptr) return options_.why_no_driver;
  if (!driver_->Usable()) return "no RDMA rail is up here";
  if (!link.why_tcp.empty()) return link.why_tcp;
  if (const std::string trouble = driver_->Trouble(); !trouble.empty()) return trouble;
  if (link.connector) return link.peer_has_rdma ? "queue pairs are being made" : "the peer offers no RDMA";
  return "the peer has asked for no queue pair";
}

void GrowingEndpoint::Check(GrownLink& link, const absl::Status& status) {
  MarkDirty(link);
  if (status.ok() || !link.up) return;
  Wither(link);
  tcp_->Close(link.id, absl::Status(status.code(), absl::StrCat("link to ", Name(link), ": ", status.message())));
}

size_t GrowingEndpoint::Room(LinkId id, PathId path) const {
  const LinkId connection = ConnectionOf(id, path);
  if (connection == 0) return driver_->Room(id, path);
  return tcp_->Writable(connection) ? kBaseRoom : 0;
}

void GrowingEndpoint::SendPacket(LinkId id, PathId path, ConstBytes packet, uint64_t token) {
  if (path == kBasePath) return Tell(id, kPacket, packet);
  driver_->SendPacket(id, path, packet, token);
}

void GrowingEndpoint::SendChunk(LinkId id, PathId path, const Chunk& chunk, uint64_t token) {
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

void GrowingEndpoint::TakeBack(LinkId id, PathId path, uint64_t token) {
  if (const LinkId connection = ConnectionOf(id, path); connection != 0) tcp_->TakeBack(connection, token);
}

void GrowingEndpoint::BreakPath(LinkId id, PathId path, const absl::Status& why) {
  const LinkId connection = ConnectionOf(id, path);
  if (connection == 0) return driver_->Break(id, path, why);
  tcp_->Close(connection, why);   // OnDown follows
}

void GrowingEndpoint::Flush() {
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

void GrowingEndpoint::ArmTick() {
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
        const TimeNs now = clock_->Now();
        Check(*link, link->core->Overdue(now));
        if (link->up) Unstall(*link, now);
        if (link->up && (link->core->queued_bytes() > 0 || link->core->WaitsForChunks())) MarkDirty(*link);
      }
    }
    Flush();
    if (grown) ArmTick();
  });
}

}  // namespace sluice::transport::multipath

namespace sluice::transport {

absl::StatusOr<std::unique_ptr<MultipathEndpoint>> MultipathEndpoint::Create(Loop* loop, const Clock* clock,
                                                                             MultipathOptions options) {
  auto endpoint = std::make_unique<multipath::GrowingEndpoint>(loop, clock, std::move(options));
  SLUICE_RETURN_IF_ERROR(endpoint->Start());
  return endpoint;
}

}  // namespace sluice::transport
