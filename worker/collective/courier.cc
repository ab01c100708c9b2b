#include "worker/collective/courier.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace sluice::collective {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;
using transport::Payload;
using transport::SlotId;

namespace {

constexpr size_t kMaxErrorText = 1024;

}  // namespace

Courier::Courier(transport::Endpoint* endpoint, transport::LinkQueue* queue, const Clock* clock, Owner* owner)
    : endpoint_(endpoint), queue_(queue), clock_(clock), owner_(owner) {
  key_base_ = queue_->AttachSender([this](uint64_t key) { Released(key); }, [] {});
}

Courier::~Courier() { queue_->DetachSender(key_base_); }

Courier::Op* Courier::Find(uint64_t op) {
  const auto it = ops_.find(op);
  return it == ops_.end() ? nullptr : &it->second;
}

Courier::Op* Courier::FindOpen(const OpName& name) {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &ops_.at(it->second);
}

FrameHeader Courier::Header(FrameType type, const Op& op, uint32_t source, uint32_t number) const {
  FrameHeader header;
  header.type = type;
  header.job = options_.job;
  header.rank = source;
  header.incarnation = options_.incarnation;
  header.tensor = op.name.group;
  header.term = op.name.epoch;
  header.aux64 = op.name.channel;
  header.round = op.name.sequence;
  header.partition = number;
  header.aux = op.signature;
  return header;
}

OpName Courier::NameOf(uint32_t peer, bool outgoing, const FrameHeader& header) const {
  OpName name{.group = header.tensor, .epoch = header.term, .channel = header.aux64, .sequence = header.round};
  if ((header.aux64 & kTagChannel) != 0) {
    name.source = outgoing ? options_.rank : peer;
    name.destination = outgoing ? peer : options_.rank;
  }
  return name;
}

// ---------------------------------------------------------------------------------------------------- operations

void Courier::Open(uint64_t id, const OpName& name, uint32_t signature) {
  Op& op = ops_[id];
  op.id = id;
  op.name = name;
  op.signature = signature;
  by_name_[name] = id;
  for (auto& [rank, peer] : peers_) {
    const auto it = peer.early.find({name, false, kErrorNumber});
    if (it == peer.early.end()) continue;
    Fail(op, rank, it->second.error);
    Drop(peer, it);
  }
}

void Courier::Send(uint64_t id, uint32_t handle, uint32_t peer, uint32_t number, ConstBytes bytes, uint16_t codec,
                   uint32_t elements, int32_t priority) {
  Op* op = Find(id);
  if (op == nullptr || op->closed) return;
  const Where where{peer, number};
  Outgoing& message = op->out[where];
  message.handle = handle;
  message.bytes = bytes;
  message.codec = codec;
  message.elements = elements;
  message.priority = priority;
  message.since = clock_->Now();
  Peer& to = peers_[peer];
  if (const auto it = to.early.find({op->name, true, number}); it != to.early.end()) {
    const Early early = it->second;
    Drop(to, it);
    if (early.signature != op->signature) {
      Fail(*op, peer, absl::InvalidArgumentError(kAnotherCall));
      return;
    }
    message.link = early.link;
    message.slot = early.slot;
    message.attempt = early.attempt;
  }
  TrySend(*op, where, message);
}

void Courier::TrySend(Op& op, Where where, Outgoing& message) {
  Peer& peer = peers_[where.first];
  if (peer.link == 0 || message.acknowledged || message.key != 0) return;
  if (message.link == peer.link && message.attempt > message.answered) {   // step 2
    const bool by_reference = endpoint_->ByReference(peer.link, message.bytes);
    FrameHeader header = Header(FrameType::kPush, op, options_.rank, where.second);
    header.codec = message.codec;
    header.elements = message.elements;
    header.attempt = message.attempt;
    header.slot = by_reference ? 0 : message.slot;
    message.answered = message.attempt;
    message.sent = true;
    resent_ += std::exchange(message.was_sent, true);
    message.backoff = options_.resend;
    message.ask_at = clock_->Now() + message.backoff;
    message.key = key_base_ + next_key_++;
    by_key_[message.key] = {op.id, where};
    queue_->SendLarge(peer.link, header, message.bytes, message.priority, message.key, by_reference);
    return;
  }
  if (message.sent || message.bytes.size() > kEagerBytes) return;
  if (!message.counted && peer.eager_unacknowledged + message.bytes.size() > kEagerUnacknowledged) {
    peer.held_back.push_back({op.id, where});
    return;
  }
  SendEager(op, where, message, peer);
}

// Step 1, the small ones. The payload is copied.
void Courier::SendEager(Op& op, Where where, Outgoing& message, Peer& peer) {
  if (!message.counted) peer.eager_unacknowledged += message.bytes.size();
  message.counted = true;
  message.sent = true;
  resent_ += std::exchange(message.was_sent, true);
  message.backoff = options_.resend;
  message.ask_at = clock_->Now() + message.backoff;
  FrameHeader header = Header(FrameType::kPush, op, options_.rank, where.second);
  header.codec = message.codec;
  header.elements = message.elements;
  queue_->SendSmall(peer.link, header, message.bytes);
}

void Courier::SendHeldBack(Peer& peer) {
  while (!peer.held_back.empty() && peer.eager_unacknowledged < kEagerUnacknowledged) {
    const auto [id, where] = peer.held_back.front();
    peer.held_back.pop_front();
    Op* op = Find(id);
    if (op == nullptr || op->closed) continue;
    const auto it = op->out.find(where);
    if (it != op->out.end() && peer.link != 0 && !it->second.sent && !it->second.acknowledged && it->second.key == 0)
      SendEager(*op, where, it->second, peer);
  }
}

void Courier::Acknowledged(Op& op, Where where, Outgoing& message) {
  if (message.acknowledged) return;
  message.acknowledged = true;
  if (std::exchange(message.counted, false)) {
    Peer& peer = peers_[where.first];
    peer.eager_unacknowledged -= message.bytes.size();
    SendHeldBack(peer);
  }
  if (message.key != 0) {
    queue_->Cancel(message.key);   // Released settles it, perhaps now
  } else {
    Settle(op, where, message);
  }
}

void Courier::Settle(Op& op, Where where, Outgoing& message) {
  events_.push_back({.kind = Event::Kind::kAcknowledged, .op = op.id, .where = where, .handle = message.handle, .why = {}});
}

void Courier::Released(uint64_t key) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return;
  const auto [id, where] = it->second;
  by_key_.erase(it);
  Op& op = ops_.at(id);
  if (op.closed) {
    --op.held;
    Unhold(op);
    return;
  }
  Outgoing& message = op.out.at(where);
  message.key = 0;
  if (message.acknowledged) Settle(op, where, message);
  else TrySend(op, where, message);   // a later grant may have come meanwhile
}

void Courier::Expect(uint64_t id, uint32_t handle, uint32_t peer, uint32_t number, MutableBytes memory, bool exact) {
  Op* op = Find(id);
  if (op == nullptr || op->closed) return;
  const Where where{peer, number};
  Incoming& message = op->in[where];
  message.handle = handle;
  message.memory = memory;
  message.exact = exact;
  message.since = message.heard = clock_->Now();
  message.backoff = options_.resend;
  message.ask_at = message.since + message.backoff;
  if (TakeEarly(*op, where, message)) return;
  if (!exact || memory.size() > kEagerBytes) Grant(*op, where, message);   // step 1
}

// Step 4: what came before it was expected.
bool Courier::TakeEarly(Op& op, Where where, Incoming& message) {
  Peer& peer = peers_[where.first];
  const auto it = peer.early.find({op.name, false, where.second});
  if (it == peer.early.end()) return false;
  peer.early_bytes -= it->second.bytes.size();
  Early early = std::move(it->second);
  peer.early.erase(it);
  const size_t size = early.bytes.size();
  if (early.signature != op.signature || size > message.memory.size() || (message.exact && size != message.memory.size())) {
    Fail(op, where.first, absl::InvalidArgumentError(kAnotherCall));
    return true;
  }
  auto bytes = std::make_shared<const std::vector<std::byte>>(std::move(early.bytes));
  message.payload = Payload(*bytes, bytes);
  message.size = size;
  message.codec = early.codec;
  message.state = Incoming::State::kArrived;   // it was acknowledged when it came
  events_.push_back({.kind = Event::Kind::kArrived, .op = op.id, .where = where, .handle = message.handle, .why = {}});
  return true;
}

void Courier::Grant(Op& op, Where where, Incoming& message) {
  const Peer& peer = peers_[where.first];
  if (peer.link == 0 || message.memory.empty()) return;
  if (message.link != peer.link || message.slot == 0) {
    message.link = peer.link;
    message.slot = endpoint_->OpenSlot(peer.link, message.memory);
    if (message.slot == 0) return;   // the link is going down, which is not known here yet
    message.stripes.reset();
    by_slot_[message.slot] = {op.id, where};
  }
  ++message.attempt;
  FrameHeader header = Header(FrameType::kGrant, op, where.first, where.second);
  header.slot = message.slot;
  header.attempt = message.attempt;
  header.total_bytes = message.memory.size();
  message.ask_at = clock_->Now() + message.backoff;
  queue_->SendSmall(peer.link, header, {});
}

void Courier::Arrived(Op& op, Where where, Incoming& message) {
  message.state = Incoming::State::kArrived;
  if (const Peer& peer = peers_[where.first]; peer.link != 0)
    queue_->SendSmall(peer.link, Header(FrameType::kApplied, op, where.first, where.second), {});
  events_.push_back({.kind = Event::Kind::kArrived, .op = op.id, .where = where, .handle = message.handle, .why = {}});
}

void Courier::Fail(Op& op, uint32_t peer, absl::Status why) {
  if (op.closed || std::exchange(op.failed, true)) return;
  events_.push_back({.kind = Event::Kind::kFailed, .op = op.id, .where = {peer, 0}, .handle = 0, .why = std::move(why)});
}

void Courier::SendError(uint32_t peer, const OpName& name, uint32_t source, const absl::Status& why) {
  const auto it = peers_.find(peer);
  if (it == peers_.end() || it->second.link == 0) return;
  Op about;
  about.name = name;
  FrameHeader header = Header(FrameType::kError, about, source, 0);
  header.status = static_cast<uint16_t>(why.code());
  const std::string text(why.message().substr(0, kMaxErrorText));
  queue_->SendSmall(it->second.link, header, {reinterpret_cast<const std::byte*>(text.data()), text.size()});
}

void Courier::Close(uint64_t id, const absl::Status& why, const std::vector<uint32_t>& tell) {
  Op* found = Find(id);
  if (found == nullptr || found->closed) return;
  Op& op = *found;
  op.closed = true;
  op.held = 1;   // until the end of this
  by_name_.erase(op.name);
  std::set<uint32_t> others(tell.begin(), tell.end());
  for (auto& [where, message] : op.out) {
    others.insert(where.first);
    if (std::exchange(message.counted, false)) {
      Peer& peer = peers_[where.first];
      peer.eager_unacknowledged -= message.bytes.size();
      SendHeldBack(peer);
    }
    if (message.key == 0) continue;
    ++op.held;
    queue_->Cancel(message.key);
  }
  for (auto& [where, message] : op.in) {
    others.insert(where.first);
    message.payload = Payload();
    if (message.slot == 0) continue;
    if (message.state == Incoming::State::kWaits && endpoint_->CloseSlot(message.link, message.slot)) {
      by_slot_.erase(message.slot);
      continue;
    }
    ++op.held;   // OnSlotClosed, or the end of the link
  }
  others.erase(options_.rank);
  for (const uint32_t other : others) {
    if (!why.ok()) SendError(other, op.name, op.name.source == UINT32_MAX ? options_.rank : op.name.source, why);
    Peer& peer = peers_[other];
    for (auto it = peer.early.lower_bound({op.name, false, 0}); it != peer.early.end() && std::get<0>(it->first) == op.name;)
      Drop(peer, it++);
  }
  --op.held;
  Unhold(op);
}

void Courier::Unhold(Op& op) {
  if (op.closed && op.held == 0)
    events_.push_back({.kind = Event::Kind::kReleased, .op = op.id, .where = {}, .handle = 0, .why = {}});
}

// ---------------------------------------------------------------------------------------------------- links and peers

void Courier::LinkUp(uint32_t rank, LinkId link) {
  if (const LinkId former = peers_[rank].link; former != 0 && former != link) LinkDown(rank, former);
  peers_[rank].link = link;
  peers_[rank].heard = clock_->Now();
  for (auto& [id, op] : ops_) {
    if (op.closed) continue;
    for (auto it = op.out.lower_bound({rank, 0}); it != op.out.end() && it->first.first == rank; ++it) {
      TrySend(op, it->first, it->second);
      it->second.ask_at = std::min(it->second.ask_at, clock_->Now());   // its answer may have been lost with the link
    }
    for (auto it = op.in.lower_bound({rank, 0}); it != op.in.end() && it->first.first == rank; ++it) {
      Incoming& message = it->second;
      if (message.state != Incoming::State::kWaits) continue;
      message.heard = clock_->Now();
      if (!message.exact || message.memory.size() > kEagerBytes || message.attempt > 0) Grant(op, it->first, message);
    }
  }
}

void Courier::LinkDown(uint32_t rank, LinkId link) {
  Peer& peer = peers_[rank];
  const bool current = peer.link == link;   // else another has taken its place already
  if (current) peer.link = 0;
  for (auto it = peer.early.begin(); it != peer.early.end();) {
    const bool void_now = it->second.kind == Early::Kind::kGrant && it->second.link == link;
    if (void_now) Drop(peer, it++);
    else ++it;
  }
  for (auto& [id, op] : ops_) {
    for (auto it = op.out.lower_bound({rank, 0}); it != op.out.end() && it->first.first == rank; ++it) {
      if (it->second.link == link) it->second.link = 0;
      if (current) it->second.sent = false;
    }
    for (auto it = op.in.lower_bound({rank, 0}); it != op.in.end() && it->first.first == rank; ++it) {
      Incoming& message = it->second;
      if (message.link != link || message.slot == 0) continue;
      const bool known = by_slot_.erase(message.slot) > 0;
      message.slot = 0;
      message.link = 0;
      if (op.closed) {
        if (!known) continue;
        --op.held;
        Unhold(op);
      } else if (message.state == Incoming::State::kClosing) {
        Arrived(op, it->first, message);
      }
    }
  }
}

void Courier::OnSlotClosed(SlotId slot) {
  const auto it = by_slot_.find(slot);
  if (it == by_slot_.end()) return;
  const auto [id, where] = it->second;
  by_slot_.erase(it);
  Op& op = ops_.at(id);
  Incoming& message = op.in.at(where);
  message.slot = 0;
  if (op.closed) {
    --op.held;
    Unhold(op);
  } else if (message.state == Incoming::State::kClosing) {
    Arrived(op, where, message);
  }
}

void Courier::PeerFinished(uint32_t rank) {
  for (auto& [id, op] : ops_) {
    if (op.closed) continue;
    for (auto it = op.out.lower_bound({rank, 0}); it != op.out.end() && it->first.first == rank; ++it)
      if (it->second.was_sent) Acknowledged(op, it->first, it->second);
  }
}

void Courier::ForgetGroup(uint32_t group) {
  for (auto& [rank, peer] : peers_) {
    for (auto it = peer.early.begin(); it != peer.early.end();) {
      const auto here = it++;
      if (std::get<0>(here->first).group == group) Drop(peer, here);
    }
  }
}

void Courier::Keep(Peer& peer, const EarlyKey& key, Early early) {
  peer.early_bytes += early.bytes.size();
  peer.early[key] = std::move(early);
}

void Courier::Drop(Peer& peer, std::map<EarlyKey, Early>::iterator it) {
  peer.early_bytes -= it->second.bytes.size();
  peer.early.erase(it);
}

}  // namespace sluice::collective
