#include "transport/sim/sim_endpoint.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice::transport {

// A frame under way. Its payload is read at most once, by Read, before the sender's OnSent.
struct SimEndpoint::Frame {
  FrameHeader header;
  ConstBytes lent;                    // valid until it was read or let go
  std::vector<std::byte> copy;
  uint64_t cookie = 0;
  bool read = false;
  bool let_go = false;                // OnSent was called
  bool by_reference = false;

  void Read() {
    if (std::exchange(read, true)) return;
    if (!by_reference) copy.assign(lent.begin(), lent.end());
  }
};

struct SimEndpoint::End {
  SimEndpoint* endpoint = nullptr;  // null: dead, or has had its OnDown
  LinkId id = 0;
  Hello hello;
  bool up = false;
  bool was_full = false;
  size_t queued = 0;
  TimeNs last_sent = 0;
  TimeNs last_arrival = 0;
  std::map<uint64_t, std::shared_ptr<Frame>> lent;  // by order of sending
  LinkStats stats;
};

struct SimEndpoint::Connection {
  SimNetwork* network = nullptr;
  End end[2];  // 0 has connected, 1 accepts
  bool closed = false;
  uint64_t next_frame = 1;
};

SimEndpoint::SimEndpoint(SimNetwork* network, std::string name, EndpointLimits limits)
    : network_(network), name_(std::move(name)), limits_(limits) {}

SimEndpoint::~SimEndpoint() { Die(); }

Address SimEndpoint::address() const {
  Address address;
  address.host = name_;
  address.port = 1;
  return address;
}

void SimEndpoint::Listen(Hello self, std::function<absl::Status(const Hello&)> accept) {
  listening_ = true;
  self_ = std::move(self);
  accept_ = std::move(accept);
}

size_t SimEndpoint::lent() const {
  size_t count = 0;
  for (const auto& [id, link] : links_) count += link.first->end[link.second].lent.size();
  return count;
}

std::shared_ptr<SimEndpoint::Connection> SimEndpoint::Find(LinkId link, int* side) const {
  const auto it = links_.find(link);
  if (it == links_.end()) return nullptr;
  *side = it->second.second;
  return it->second.first;
}

// --- links

LinkId SimEndpoint::Connect(const Address& address, const Hello& self) {
  auto connection = std::make_shared<Connection>();
  connection->network = network_;
  End& own = connection->end[0];
  own.endpoint = this;
  own.id = next_link_++;
  own.hello = self;
  own.stats.kind = "sim";
  own.stats.peer = address.host;
  links_[own.id] = {connection, 0};
  ++network_->stats_.connects;
  network_->Schedule(network_->RandomDelay(), [this, connection, host = address.host] {
    if (!connection->closed && connection->end[0].endpoint != nullptr) Accept(connection, host);
  });
  return own.id;
}

void SimEndpoint::Accept(const std::shared_ptr<Connection>& connection, const std::string& host) {
  const auto refuse = [&](absl::Status why) {
    ++network_->stats_.refused;
    Break(network_, connection, why, why);
  };
  const auto it = network_->endpoints_.find(host);
  if (it == network_->endpoints_.end() || !it->second->listening_)
    return refuse(absl::UnavailableError(absl::StrCat("connect to ", host, ": nobody listens")));
  if (network_->IsCut(name_, host) || network_->IsCutOneWay(name_, host) || network_->IsCutOneWay(host, name_) ||
      network_->random_.Chance(network_->faults_.connect_failure))
    return refuse(absl::UnavailableError(absl::StrCat("connect to ", host, ": timed out")));
  SimEndpoint* const peer = it->second;
  const Hello& hello = connection->end[0].hello;
  if (peer->links_.size() >= peer->limits_.max_links)
    return refuse(absl::ResourceExhaustedError(absl::StrCat("connect to ", host, ": it has ", peer->limits_.max_links,
                                                            " links already")));
  if (hello.role == PeerRole::kUnknown)
    return refuse(absl::InvalidArgumentError(absl::StrCat("connect to ", host, ": a hello without a role")));
  if (peer->accept_) {
    if (const absl::Status status = peer->accept_(hello); !status.ok()) return refuse(status);
  }
  End& theirs = connection->end[1];
  theirs.endpoint = peer;
  theirs.id = peer->next_link_++;
  theirs.hello = peer->self_;
  theirs.up = true;
  theirs.stats.kind = "sim";
  theirs.stats.peer = name_;
  peer->links_[theirs.id] = {connection, 1};
  const TimeNs delay = network_->RandomDelay();
  connection->end[0].last_arrival = network_->Now() + delay;
  network_->Schedule(delay, [connection] {
    End& own = connection->end[0];
    if (connection->closed || own.endpoint == nullptr) return;
    own.up = true;
    own.endpoint->handler_->OnUp(own.id, connection->end[1].hello);
  });
  peer->handler_->OnUp(theirs.id, hello);
}

void SimEndpoint::Close(LinkId link, const absl::Status& reason) {
  int side = 0;
  const auto connection = Find(link, &side);
  if (connection == nullptr) return;
  const absl::Status told =
      absl::UnavailableError(absl::StrCat("closed by ", name_, ": ", std::string(reason.message())));
  Break(network_, connection, side == 0 ? reason : told, side == 0 ? told : reason);
}

void SimEndpoint::Break(SimNetwork* network, const std::shared_ptr<Connection>& connection, const absl::Status& first,
                        const absl::Status& second) {
  if (std::exchange(connection->closed, true)) return;
  network->Schedule(network->RandomDelay(), [connection, first] { Down(connection, 0, first); });
  network->Schedule(network->RandomDelay(), [connection, second] { Down(connection, 1, second); });
}

void SimEndpoint::Down(const std::shared_ptr<Connection>& connection, int side, const absl::Status& reason) {
  End& own = connection->end[side];
  SimEndpoint* const endpoint = own.endpoint;
  if (endpoint == nullptr) return;
  for (auto it = endpoint->slots_.begin(); it != endpoint->slots_.end();)
    it = it->second.link == own.id ? endpoint->slots_.erase(it) : ++it;
  endpoint->links_.erase(own.id);
  const auto lent = std::move(own.lent);
  own.lent.clear();
  own.endpoint = nullptr;
  for (const auto& [order, frame] : lent) {
    frame->let_go = true;
    endpoint->handler_->OnSent(own.id, frame->cookie);
  }
  if (endpoint->network_->tracing())
    endpoint->network_->Trace(absl::StrCat(endpoint->name_, ": link ", own.id, " down: ", reason.ToString()));
  endpoint->handler_->OnDown(own.id, reason);
}

void SimEndpoint::Die() {
  if (alive_ == nullptr) return;
  alive_.reset();
  if (const auto it = network_->endpoints_.find(name_); it != network_->endpoints_.end() && it->second == this)
    network_->endpoints_.erase(it);
  const auto links = std::move(links_);
  links_.clear();
  slots_.clear();
  for (const auto& [id, link] : links) {
    const auto& [connection, side] = link;
    End& own = connection->end[side];
    for (const auto& [order, frame] : own.lent) frame->let_go = true;  // what was not read is lost
    own.lent.clear();
    own.endpoint = nullptr;
    const absl::Status reason = absl::UnavailableError(absl::StrCat(name_, " is gone"));
    Break(network_, connection, reason, reason);
  }
}

// --- frames

void SimEndpoint::Send(LinkId link, const FrameHeader& header, ConstBytes payload, uint64_t cookie) {
  int side = 0;
  const auto connection = Find(link, &side);
  if (connection == nullptr) {
    if (cookie == 0) return;
    network_->Schedule(0, [this, alive = std::weak_ptr(alive_), link, cookie] {
      if (!alive.expired()) handler_->OnSent(link, cookie);
    });
    return;
  }
  SimFaults& faults = network_->faults_;
  PhiloxRandom& random = network_->random_;
  End& own = connection->end[side];
  const bool by_reference = cookie != 0 && header.slot == 0 && !payload.empty() && ByReference(link, payload);
  auto frame = std::make_shared<Frame>();
  frame->header = header;
  frame->lent = payload;
  frame->cookie = cookie;
  frame->by_reference = by_reference;
  if (cookie == 0 || random.Chance(0.5)) frame->Read();

  const size_t bytes = kHeaderBytes + payload.size();
  own.queued += bytes;
  own.was_full |= own.queued > limits_.max_queued_bytes;
  own.stats.bytes_out += bytes;
  own.stats.payload_out += payload.size();
  ++own.stats.frames_out;
  ++network_->stats_.frames;

  const uint64_t order = connection->next_frame++;
  if (cookie != 0) own.lent[order] = frame;
  const auto finish = [connection, side, frame, order] {
    if (frame->let_go || connection->end[side].lent.erase(order) == 0) return;
    connection->end[side].endpoint->Sent(connection, side, frame);
  };
  own.last_sent = std::max(own.last_sent, network_->Now() + network_->RandomDelay() / 4);
  network_->Schedule(own.last_sent - network_->Now(), [connection, side, frame, bytes, finish] {
    End& own = connection->end[side];
    if (own.endpoint == nullptr) return;
    SimNetwork* const network = connection->network;
    own.queued -= bytes;
    if (own.was_full && own.queued * 2 < own.endpoint->limits_.max_queued_bytes) {
      own.was_full = false;
      own.endpoint->handler_->OnWritable(own.id);
    }
    if (frame->by_reference || own.endpoint == nullptr) return;  // by reference: sent when the receiver drops it
    // Some completions come late, as after a zero-copy send: perhaps behind the answer to what was sent.
    frame->Read();
    const bool late = network->random_.Chance(0.1);
    if (late) {
      network->Schedule(3 * network->RandomDelay(), finish);
    } else {
      finish();
    }
  });
  std::shared_ptr<const void> owner;  // by reference: keeps the sender's memory, and OnSent comes when it goes
  if (by_reference) {
    const auto memory = network_->memory_->pieces.upper_bound(payload.data());
    owner = std::shared_ptr<const void>(
        payload.data(), [network = network_, alive = std::weak_ptr(network_->alive_), finish,
                         keep = std::prev(memory)->second.second.lock()](const void*) {
          if (!alive.expired()) network->Schedule(0, finish);
        });
  }

  const int to = 1 - side;
  const bool lost = random.Chance(faults.drop) || network_->IsCutOneWay(name_, own.stats.peer);
  const bool reset = random.Chance(faults.reset);
  const int copies = lost || reset ? 0 : random.Chance(faults.duplicate) ? 2 : 1;
  if (lost) ++network_->stats_.dropped;
  if (copies == 2) ++network_->stats_.duplicated;
  if (network_->tracing())
    network_->Trace(absl::StrCat(name_, " -> ", own.stats.peer, " ", DebugString(header), lost ? " LOST" : "",
                                 reset ? " RESET" : "", copies == 2 ? " TWICE" : ""));
  for (int i = 0; i < copies; ++i) {
    TimeNs arrival = own.last_sent + network_->RandomDelay();
    TimeNs& last = connection->end[to].last_arrival;
    if (!random.Chance(faults.reorder)) last = arrival = std::max(arrival, last);
    network_->Schedule(arrival - network_->Now(), [connection, to, frame, owner] {
      SimEndpoint* const endpoint = connection->end[to].endpoint;
      if (endpoint != nullptr && connection->end[to].up) endpoint->Deliver(connection, to, frame, owner);
    });
  }
  if (reset) {
    ++network_->stats_.resets;
    const absl::Status reason = absl::UnavailableError("connection reset");
    Break(network_, connection, reason, reason);
  }
}

void SimEndpoint::Sent(const std::shared_ptr<Connection>& connection, int from, const std::shared_ptr<Frame>& frame) {
  frame->let_go = true;
  if (!frame->by_reference && !std::equal(frame->copy.begin(), frame->copy.end(), frame->lent.begin()))
    ++network_->stats_.changed_while_lent;
  handler_->OnSent(connection->end[from].id, frame->cookie);
}

void SimEndpoint::Deliver(const std::shared_ptr<Connection>& connection, int to, const std::shared_ptr<Frame>& frame,
                          const std::shared_ptr<const void>& owner) {
  // After a break, what is still under way arrives or not.
  if (connection->closed && (!frame->read || network_->random_.Chance(0.5))) return;
  if (!frame->read && !frame->by_reference) return;  // its sender died before it was read
  End& own = connection->end[to];
  std::byte encoded[kHeaderBytes];
  EncodeHeader(frame->header, encoded);
  const absl::StatusOr<FrameHeader> header = DecodeHeader(encoded);
  const size_t bytes = frame->by_reference ? frame->lent.size() : frame->copy.size();
  absl::Status bad = header.status();
  if (bad.ok() && header->payload_bytes != bytes) bad = absl::InvalidArgumentError("payload_bytes is not the payload's");
  if (bad.ok() && header->slot == 0 && !frame->by_reference && bytes > limits_.max_slotless_bytes)
    bad = absl::ResourceExhaustedError(absl::StrCat("a frame without a slot of ", bytes, " bytes, of ",
                                                    limits_.max_slotless_bytes, " allowed"));
  const auto slot = bad.ok() && frame->header.slot != 0 && bytes > 0 ? slots_.find(header->slot) : slots_.end();
  if (slot != slots_.end() && (header->stripe_offset > slot->second.memory.size() ||
                               bytes > slot->second.memory.size() - header->stripe_offset))
    bad = absl::InvalidArgumentError("a stripe outside its slot");
  if (!bad.ok()) {
    bad = absl::Status(bad.code(), absl::StrCat(name_, ": ", std::string(bad.message()), ": ", DebugString(frame->header)));
    Break(network_, connection, bad, bad);
    return;
  }
  own.stats.bytes_in += kHeaderBytes + bytes;
  own.stats.payload_in += bytes;
  ++own.stats.frames_in;
  if (header->slot == 0 || bytes == 0) {
    Payload payload;
    if (frame->by_reference) {
      payload = Payload(frame->lent, owner, /*by_reference=*/true);
    } else if (bytes > 0) {
      const auto copy = std::make_shared<const std::vector<std::byte>>(frame->copy);
      payload = Payload(*copy, copy);
    }
    handler_->OnFrame(own.id, *header, std::move(payload));
    return;
  }
  if (slot == slots_.end() || slot->second.closing || slot->second.link != own.id) {
    ++network_->stats_.closed_slot_drops;
    return;
  }
  // Writes into one slot are in the order of their frames: within a link transports keep it, and what another answer has
  // written is complete before this one is sent (its sender had the completions).
  if (slot->second.writing > 0) {
    network_->Schedule(network_->RandomDelay(), [connection, to, frame, owner] {
      SimEndpoint* const endpoint = connection->end[to].endpoint;
      if (endpoint != nullptr && connection->end[to].up) endpoint->Deliver(connection, to, frame, owner);
    });
    return;
  }
  if (network_->random_.Chance(network_->faults_.slow_write)) {
    std::memcpy(slot->second.memory.data() + header->stripe_offset, frame->copy.data(), bytes / 2);
    ++slot->second.writing;
    network_->Schedule(network_->RandomDelay(), [this, connection, to, frame] {
      if (connection->end[to].endpoint == this) FinishSlow(connection, to, frame);
    });
    return;
  }
  const MutableBytes target = slot->second.memory.subspan(header->stripe_offset, bytes);
  std::memcpy(target.data(), frame->copy.data(), bytes);
  handler_->OnFrame(own.id, *header, Payload(target, nullptr));
}

void SimEndpoint::FinishSlow(const std::shared_ptr<Connection>& connection, int to, const std::shared_ptr<Frame>& frame) {
  const FrameHeader& header = frame->header;
  const auto it = slots_.find(header.slot);
  if (it == slots_.end()) return;
  Slot& slot = it->second;
  const MutableBytes target = slot.memory.subspan(header.stripe_offset, frame->copy.size());
  std::memcpy(target.data(), frame->copy.data(), frame->copy.size());
  --slot.writing;
  const LinkId link = connection->end[to].id;
  if (!slot.closing) return handler_->OnFrame(link, header, Payload(target, nullptr));
  ++network_->stats_.closed_slot_drops;
  if (slot.writing > 0) return;
  slots_.erase(it);
  handler_->OnSlotClosed(link, header.slot);
}

bool SimEndpoint::Writable(LinkId link) const {
  int side = 0;
  const auto connection = Find(link, &side);
  return connection != nullptr && connection->end[side].queued <= limits_.max_queued_bytes;
}

// --- memory

SlotId SimEndpoint::OpenSlot(LinkId link, MutableBytes memory) {
  const SlotId id = next_slot_++;
  if (links_.contains(link)) slots_[id] = {link, memory};
  return id;
}

bool SimEndpoint::CloseSlot(LinkId link, SlotId slot) {
  const auto it = slots_.find(slot);
  if (it == slots_.end() || it->second.link != link) return true;
  if (it->second.writing > 0) {
    it->second.closing = true;
    return false;
  }
  slots_.erase(it);
  return true;
}

bool SimEndpoint::ByReference(LinkId link, ConstBytes payload) const {
  if (!network_->faults_.by_reference || !links_.contains(link) || payload.empty()) return false;
  const auto next = network_->memory_->pieces.upper_bound(payload.data());
  if (next == network_->memory_->pieces.begin()) return false;
  const auto& [base, piece] = *std::prev(next);
  return payload.data() + payload.size() <= base + piece.first && !piece.second.expired();
}

absl::StatusOr<std::shared_ptr<std::byte>> SimEndpoint::Allocate(size_t bytes) {
  constexpr size_t kPage = 4096;
  const size_t size = (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(kPage, size));
  if (data == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
  std::memset(data, 0, size);
  std::shared_ptr<std::byte> memory(data, [pieces = network_->memory_](std::byte* p) {
    pieces->pieces.erase(p);
    std::free(p);
  });
  network_->memory_->pieces[data] = {size, memory};
  return memory;
}

LinkStats SimEndpoint::Stats(LinkId link) const {
  int side = 0;
  const auto connection = Find(link, &side);
  return connection == nullptr ? LinkStats{} : connection->end[side].stats;
}

// --- faults of the network that concern links

void SimNetwork::ResetLinks(const std::string& a, const std::string& b) {
  const std::string x = NodeOf(a), y = NodeOf(b);
  const auto endpoints = endpoints_;
  for (const auto& [name, endpoint] : endpoints) {
    if (NodeOf(name) != x) continue;
    const auto links = endpoint->links_;
    for (const auto& [id, link] : links) {
      if (NodeOf(link.first->end[link.second].stats.peer) != y) continue;
      const absl::Status reason = absl::UnavailableError(absl::StrCat("the link between ", x, " and ", y, " broke"));
      SimEndpoint::Break(this, link.first, reason, reason);
    }
  }
}

}  // namespace sluice::transport
