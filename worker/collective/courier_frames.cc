// Frames that come, and the passing of time.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/collective/courier.h"

namespace sluice::collective {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;
using transport::Payload;

namespace {

constexpr TimeNs kMaxBackoff = 8;   // times Options::resend
constexpr size_t kMaxErrorText = 1024;

absl::Status Bad(const FrameHeader& header, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", transport::DebugString(header)));
}

}  // namespace

void Courier::OnFrame(uint32_t peer, LinkId link, const FrameHeader& header, Payload payload) {
  absl::Status status;
  if (header.job != options_.job) {
    status = Bad(header, "a frame of another job");
  } else {
    switch (header.type) {
      case FrameType::kGrant: status = OnGrant(peer, link, header); break;
      case FrameType::kPush: status = OnPush(peer, link, header, std::move(payload)); break;
      case FrameType::kAnnounce: status = OnAnnounce(peer, link, header); break;
      case FrameType::kApplied: status = OnAppliedFrame(peer, header); break;
      case FrameType::kError: status = OnError(peer, header, payload.bytes()); break;
      default: status = Bad(header, "a frame that no worker sends to a worker");
    }
  }
  if (!status.ok()) owner_->EndLink(link, status);
}

void Courier::Reply(LinkId link, const FrameHeader& about, FrameType type) {
  FrameHeader header;
  header.type = type;
  header.job = options_.job;
  header.rank = about.rank;
  header.incarnation = options_.incarnation;
  header.tensor = about.tensor;
  header.term = about.term;
  header.aux64 = about.aux64;
  header.round = about.round;
  header.partition = about.partition;
  header.aux = about.aux;
  queue_->SendSmall(link, header, {});
}

// Where a frame belongs that no open message waits for.
bool Courier::Judge(uint32_t peer, LinkId link, const FrameHeader& header, const OpName& name, bool* future,
                    absl::Status* status) {
  absl::Status why;
  *future = false;
  switch (owner_->Where(name, peer, &why)) {
    case Place::kFuture: *future = true; return true;
    case Place::kPast:
      if (header.type == FrameType::kPush || header.type == FrameType::kAnnounce) Reply(link, header, FrameType::kApplied);
      return false;
    case Place::kFailed:
      if (header.type != FrameType::kApplied) SendError(peer, name, header.rank, why);
      return false;
    case Place::kStranger: return false;
    case Place::kNever: *status = Bad(header, "a frame for no group of both workers"); return false;
  }
  return false;
}

absl::Status Courier::OnGrant(uint32_t peer, LinkId link, const FrameHeader& header) {
  if (header.rank != options_.rank) return Bad(header, "a grant for another worker's message");
  if (header.slot == 0 || header.attempt == 0) return Bad(header, "a grant without a slot or an attempt");
  const OpName name = NameOf(peer, true, header);
  Op* op = FindOpen(name);
  if (op != nullptr) {
    const auto it = op->out.find({peer, header.partition});
    if (it != op->out.end()) {
      if (header.aux != op->signature) {
        Fail(*op, peer, absl::InvalidArgumentError(kAnotherCall));
        return absl::OkStatus();
      }
      Outgoing& message = it->second;
      if (message.bytes.size() > header.total_bytes) return Bad(header, "a grant for less than the message");
      if (message.link == link && header.attempt <= message.attempt) return absl::OkStatus();
      if (message.link != link) message.answered = 0;   // attempts of another link's slot
      message.link = link;
      message.slot = header.slot;
      message.attempt = header.attempt;
      // A small message of a codec crosses its first grant: it is not sent twice for that.
      if (message.sent && message.answered == 0 && message.attempt == 1 && message.backoff == options_.resend &&
          clock_->Now() < message.ask_at)
        message.answered = 1;
      TrySend(*op, it->first, message);
      return absl::OkStatus();
    }
  }
  bool future = false;
  absl::Status status;
  if (!Judge(peer, link, header, name, &future, &status)) return status;
  Peer& from = peers_[peer];
  const EarlyKey key{name, true, header.partition};
  const auto it = from.early.find(key);
  if (it != from.early.end() && it->second.link == link && it->second.attempt >= header.attempt) return absl::OkStatus();
  if (it == from.early.end() && from.early.size() >= kEarlyFrames) return absl::OkStatus();
  Keep(from, key,
       {.kind = Early::Kind::kGrant, .signature = header.aux, .link = link, .slot = header.slot, .attempt = header.attempt,
        .codec = 0, .bytes = {}, .error = {}});
  return absl::OkStatus();
}

absl::Status Courier::OnPush(uint32_t peer, LinkId link, const FrameHeader& header, Payload payload) {
  if (header.rank != peer) return Bad(header, "a message of another worker");
  if (header.partition == kErrorNumber) return Bad(header, "a message's number that cannot be");
  const bool whole = header.stripe_offset == 0 && header.payload_bytes == header.total_bytes;
  if (header.slot == 0 && !whole) return Bad(header, "a part of a message without a slot");
  Peer& from = peers_[peer];
  from.heard = clock_->Now();
  const OpName name = NameOf(peer, false, header);
  Op* op = FindOpen(name);
  const auto it = op == nullptr ? std::map<Where, Incoming>::iterator() : op->in.find({peer, header.partition});
  if (op == nullptr || it == op->in.end()) {
    bool future = false;
    absl::Status status;
    if (!Judge(peer, link, header, name, &future, &status)) return status;
    if (header.slot != 0 || payload.size() > kEagerBytes) return absl::OkStatus();   // of a slot that is closed
    const EarlyKey key{name, false, header.partition};
    if (!from.early.contains(key)) {
      if (from.early.size() >= kEarlyFrames || from.early_bytes + payload.size() > kEarlyBytes) return absl::OkStatus();
      // A copy: the payload may be a part of a larger frame, which it would keep alive.
      Keep(from, key, {.kind = Early::Kind::kBytes, .signature = header.aux, .link = 0, .slot = 0, .attempt = 0,
                       .codec = header.codec, .bytes = {payload.bytes().begin(), payload.bytes().end()}, .error = {}});
    }
    Reply(link, header, FrameType::kApplied);
    return absl::OkStatus();
  }
  if (header.aux != op->signature) {
    Fail(*op, peer, absl::InvalidArgumentError(kAnotherCall));
    return absl::OkStatus();
  }
  Incoming& message = it->second;
  if (message.state == Incoming::State::kArrived) {   // step 3; once for a message that comes again in stripes
    if (header.stripe_offset + header.payload_bytes == header.total_bytes) Reply(link, header, FrameType::kApplied);
    return absl::OkStatus();
  }
  if (message.state == Incoming::State::kClosing) return absl::OkStatus();
  if (header.total_bytes > message.memory.size() || (message.exact && header.total_bytes != message.memory.size()))
    return Bad(header, absl::StrCat("a message of another size than the expected ", message.memory.size(), " bytes"));
  message.heard = clock_->Now();
  message.backoff = options_.resend;
  message.ask_at = message.heard + message.backoff;
  if (header.slot == 0) {
    message.payload = std::move(payload);
    message.in_memory = false;
  } else {
    if (header.slot != message.slot || link != message.link) return absl::OkStatus();   // a former link's
    if (!message.stripes.has_value()) message.stripes.emplace(header.total_bytes);
    if (message.stripes->total() != header.total_bytes) return Bad(header, "stripes of messages of two sizes");
    if (absl::Status status = message.stripes->Add(header.stripe_offset, header.payload_bytes); !status.ok()) return status;
    if (!message.stripes->complete()) return absl::OkStatus();
    message.in_memory = true;
  }
  message.size = header.total_bytes;
  message.codec = header.codec;
  message.state = Incoming::State::kClosing;
  if (message.slot != 0) {
    if (!endpoint_->CloseSlot(message.link, message.slot)) return absl::OkStatus();   // OnSlotClosed follows
    by_slot_.erase(message.slot);
    message.slot = 0;
  }
  Arrived(*op, it->first, message);
  return absl::OkStatus();
}

absl::Status Courier::OnAnnounce(uint32_t peer, LinkId link, const FrameHeader& header) {
  if (header.rank != peer) return Bad(header, "a message of another worker");
  const OpName name = NameOf(peer, false, header);
  Op* op = FindOpen(name);
  if (op != nullptr) {
    const auto it = op->in.find({peer, header.partition});
    if (it != op->in.end()) {
      if (header.aux != op->signature) Fail(*op, peer, absl::InvalidArgumentError(kAnotherCall));
      else if (it->second.state == Incoming::State::kArrived) Reply(link, header, FrameType::kApplied);
      else if (it->second.state == Incoming::State::kWaits && it->second.slot == 0) Grant(*op, it->first, it->second);
      return absl::OkStatus();
    }
  }
  bool future = false;
  absl::Status status;
  if (!Judge(peer, link, header, name, &future, &status)) return status;
  if (peers_[peer].early.contains({name, false, header.partition})) Reply(link, header, FrameType::kApplied);
  return absl::OkStatus();
}

absl::Status Courier::OnAppliedFrame(uint32_t peer, const FrameHeader& header) {
  if (header.rank != options_.rank) return Bad(header, "an answer to another worker's message");
  Op* op = FindOpen(NameOf(peer, true, header));
  if (op == nullptr) return absl::OkStatus();
  const auto it = op->out.find({peer, header.partition});
  // What was never sent cannot have come: the peer is wrong, but the message goes on.
  if (it != op->out.end() && it->second.was_sent) Acknowledged(*op, it->first, it->second);
  return absl::OkStatus();
}

absl::Status Courier::OnError(uint32_t peer, const FrameHeader& header, ConstBytes text) {
  if (header.status == 0 || header.status > 16) return Bad(header, "an error without a code");
  std::string said(reinterpret_cast<const char*>(text.data()), std::min(text.size(), kMaxErrorText));
  for (char& c : said) c = absl::ascii_isprint(c) || (c & 0x80) != 0 ? c : '?';
  const absl::Status why(static_cast<absl::StatusCode>(header.status), said);
  const OpName name = NameOf(peer, header.rank == options_.rank, header);
  if (Op* op = FindOpen(name); op != nullptr) {
    absl::Status unused;
    if (owner_->Where(name, peer, &unused) != Place::kNever) Fail(*op, peer, why);
    return absl::OkStatus();
  }
  absl::Status none;
  const Place place = owner_->Where(name, peer, &none);
  if (place == Place::kNever) return Bad(header, "a frame for no group of both workers");
  Peer& from = peers_[peer];
  const EarlyKey key{name, false, kErrorNumber};
  if (place != Place::kFuture || from.early.size() >= kEarlyFrames || from.early.contains(key)) return absl::OkStatus();
  Keep(from, key, {.kind = Early::Kind::kError, .signature = 0, .link = 0, .slot = 0, .attempt = 0, .codec = 0, .bytes = {},
                   .error = why});
  return absl::OkStatus();
}

// ---------------------------------------------------------------------------------------------------- time

void Courier::OnTick() {   // step 5
  const TimeNs now = clock_->Now();
  for (auto& [id, op] : ops_) {
    if (op.closed) continue;
    for (auto& [where, message] : op.in) {
      if (message.state != Incoming::State::kWaits || now < message.ask_at) continue;
      const Peer& peer = peers_[where.first];
      // Other messages of the source come: this one waits for its turn, unless that takes too long to be true.
      if (now < peer.heard + message.backoff && now < message.heard + kMaxBackoff * options_.resend) continue;
      message.heard = now;
      message.backoff = std::min(message.backoff * 2, kMaxBackoff * options_.resend);
      Grant(op, where, message);
      message.ask_at = now + message.backoff;
    }
    for (auto& [where, message] : op.out) {
      if (!message.was_sent || message.acknowledged || message.key != 0 || now < message.ask_at) continue;
      const Peer& peer = peers_[where.first];
      if (peer.link == 0) continue;
      message.backoff = std::min(message.backoff * 2, kMaxBackoff * options_.resend);
      message.ask_at = now + message.backoff;
      queue_->SendSmall(peer.link, Header(FrameType::kAnnounce, op, options_.rank, where.second), {});
    }
  }
}

void Courier::Run() {
  while (!events_.empty()) {
    const Event event = std::move(events_.front());
    events_.pop_front();
    Op* op = Find(event.op);
    if (op == nullptr) continue;
    if (event.kind == Event::Kind::kReleased) {
      ops_.erase(event.op);
      owner_->OnReleased(event.op);
      continue;
    }
    if (op->closed) continue;
    switch (event.kind) {
      case Event::Kind::kArrived: {
        Incoming& message = op->in.at(event.where);
        const Payload payload = std::move(message.payload);
        message.payload = Payload();
        const ConstBytes bytes = message.in_memory ? ConstBytes(message.memory.first(message.size)) : payload.bytes();
        owner_->OnArrived(event.op, event.handle, message.codec, bytes);
        break;
      }
      case Event::Kind::kAcknowledged: owner_->OnAcknowledged(event.op, event.handle); break;
      case Event::Kind::kFailed: owner_->OnFailed(event.op, event.where.first, event.why); break;
      case Event::Kind::kReleased: break;
    }
  }
}

Courier::Silence Courier::Waits(uint64_t id) const {
  const auto found = ops_.find(id);
  if (found == ops_.end()) return {};
  const Op& op = found->second;
  Silence silence;
  TimeNs oldest = INT64_MAX;
  const auto seconds = [&](TimeNs since) { return static_cast<double>(clock_->Now() - since) / kSecond; };
  for (const auto& [where, message] : op.in) {
    if (message.state == Incoming::State::kArrived || message.since >= oldest) continue;
    oldest = message.since;
    silence = {true, where.first,
               absl::StrFormat("message %d of %d bytes from rank %d is awaited for %.1f s", where.second,
                               message.memory.size(), where.first, seconds(message.since))};
  }
  if (silence.waits) return silence;
  for (const auto& [where, message] : op.out) {
    if (message.acknowledged || message.since >= oldest) continue;
    oldest = message.since;
    silence = {true, where.first,
               absl::StrFormat("rank %d has not taken message %d of %d bytes for %.1f s%s", where.first, where.second,
                               message.bytes.size(), seconds(message.since),
                               message.was_sent ? "" : " (it has not asked for it: is it in the same call?)")};
  }
  return silence;
}

bool Courier::Needs(uint64_t id, uint32_t peer) const {
  const auto found = ops_.find(id);
  if (found == ops_.end()) return false;
  const Op& op = found->second;
  for (auto it = op.in.lower_bound({peer, 0}); it != op.in.end() && it->first.first == peer; ++it)
    if (it->second.state != Incoming::State::kArrived) return true;
  for (auto it = op.out.lower_bound({peer, 0}); it != op.out.end() && it->first.first == peer; ++it)
    if (!it->second.acknowledged) return true;
  return false;
}

size_t Courier::early_bytes(uint32_t peer) const {
  const auto it = peers_.find(peer);
  return it == peers_.end() ? 0 : it->second.early_bytes;
}

size_t Courier::early_frames(uint32_t peer) const {
  const auto it = peers_.find(peer);
  return it == peers_.end() ? 0 : it->second.early.size();
}

}  // namespace sluice::collective
