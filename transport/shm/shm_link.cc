// Life of a link and its socket: steps 1, 5 and 6 of shm_link.h. Sending and receiving stand in files of their own.
#include "transport/shm/shm_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/hello.h"

namespace sluice::transport {
namespace {

constexpr TimeNs kConnectRetry = 10 * kMillisecond;
// A peer sends few packets before it waits for us; one that sends more at a time is served in turns.
constexpr int kMaxPacketsAtOnce = 1024;
constexpr size_t kMaxReasonBytes = 1024;

std::string TypeName(FrameType type) { return std::string(FrameTypeName(type)); }

}  // namespace

ShmLink::ShmLink(ShmContext* context, LinkId id, const Hello& self) : context_(context), id_(id), self_(self) {
  stats_.kind = "shm";
}

ShmLink::~ShmLink() = default;

absl::Status ShmLink::Describe(const absl::Status& reason) const {
  return absl::Status(reason.code(), absl::StrCat("link to ", peer_name_, ": ", reason.message()));
}

void ShmLink::StartConnect(const std::string& name) {
  peer_name_ = stats_.peer = absl::StrCat("shm:@", name);
  TryConnect(name, 0);
}

void ShmLink::TryConnect(const std::string& name, TimeNs waited) {
  absl::StatusOr<UniqueFd> socket = ConnectPackets(name);
  absl::Status status = socket.status();
  if (absl::IsResourceExhausted(status) && waited < context_->handshake_timeout) {
    timer_ = context_->loop->After(kConnectRetry, [weak = weak_from_this(), name, waited] {
      if (auto self = weak.lock(); self != nullptr && self->state_ == State::kConnecting) {
        self->TryConnect(name, waited + kConnectRetry);
      }
    });
    return;
  }
  if (status.ok()) {
    absl::StatusOr<PeerProcess> peer = CheckPeerProcess(socket->get());
    status = peer.ok() ? BeginHandshake(*std::move(socket)) : peer.status();
  }
  if (status.ok()) {
    FrameHeader hello{.type = FrameType::kHello, .job = self_.job};
    status = SendFrame(hello, EncodeHello(self_), own_->file());
  }
  if (!status.ok()) Fail(status);
}

void ShmLink::StartAccept(UniqueFd socket, const PeerProcess& peer) {
  accepted_ = true;
  peer_name_ = stats_.peer = absl::StrCat("shm:process ", peer.pid);
  if (absl::Status status = BeginHandshake(std::move(socket)); !status.ok()) Fail(status);
}

void ShmLink::Refuse(const absl::Status& reason) { ShutDown(reason, false); }

absl::Status ShmLink::BeginHandshake(UniqueFd socket) {
  socket_ = std::move(socket);
  state_ = State::kHandshake;
  SLUICE_ASSIGN_OR_RETURN(own_, Outbox::Create(context_->shape));
  slots_.emplace(&*own_);
  timer_ = context_->loop->After(context_->handshake_timeout, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (self == nullptr || self->state_ != State::kHandshake) return;
    self->Fail(absl::DeadlineExceededError(
        absl::StrCat("no ", self->accepted_ ? "HELLO" : "WELCOME", " within ",
                     self->context_->handshake_timeout / kMillisecond, " ms; is the process stopped or overloaded?")));
  });
  return context_->loop->Watch(socket_.get(), EPOLLIN, [weak = weak_from_this()](uint32_t events) {
    if (auto self = weak.lock()) self->OnEvent(events);
  });
}

absl::Status ShmLink::SendFrame(FrameHeader header, ConstBytes payload, int file) {
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.total_bytes = payload.size();
  std::vector<std::byte> packet(kHeaderBytes + payload.size());
  EncodeHeader(header, packet.data());
  std::copy(payload.begin(), payload.end(), packet.begin() + kHeaderBytes);
  SLUICE_RETURN_IF_ERROR(SendPacket(socket_.get(), packet, file));
  stats_.bytes_out += packet.size();
  ++stats_.frames_out;
  return absl::OkStatus();
}

void ShmLink::Wake() {
  // A full socket is as good as a wake-up: the peer has packets to read, and looks into the ring after them.
  const std::byte byte{1};
  SendPacket(socket_.get(), ConstBytes(&byte, 1)).IgnoreError();
  ++stats_.bytes_out;
}

void ShmLink::WaitForSocket() {
  if (socket_full_ || hung_up_) return;
  socket_full_ = true;
  context_->loop->Rewatch(socket_.get(), EPOLLIN | EPOLLOUT);
}

void ShmLink::OnEvent(uint32_t events) {
  const auto keep = shared_from_this();
  if (socket_full_ && (events & EPOLLOUT) != 0) {
    socket_full_ = false;
    context_->loop->Rewatch(socket_.get(), EPOLLIN);
  }
  ReadPackets(/*all=*/false);
  if (state_ == State::kUp) TellRetired();
  if (state_ == State::kUp) Receive(/*everything=*/false);
  if (state_ == State::kUp) Flush();
}

void ShmLink::ReadPackets(bool all) {
  for (int i = 0; i < kMaxPacketsAtOnce && !hung_up_ && state_ != State::kDown; ++i) {
    absl::StatusOr<Packet> packet = ReceivePacket(socket_.get());
    if (packet.ok() && packet->kind == Packet::Kind::kNone) return;
    if (!packet.ok() && !absl::IsInvalidArgument(packet.status())) {
      peer_reason_ = packet.status();
    } else if (packet.ok() && packet->kind == Packet::Kind::kData) {
      stats_.bytes_in += packet->bytes.size();
      if (packet->bytes.size() == 1 && !all) return;
      if (packet->bytes.size() == 1) {
        // A wake-up, read from inside a call that looked for something else: the ring still wants to be looked into.
        ReceiveLater();
        continue;
      }
      if (state_ == State::kLingering) continue;
      const absl::Status status = OnPacket(*packet);
      if (!status.ok()) Fail(status);
      continue;
    } else if (!packet.ok()) {
      Fail(packet.status());
      continue;
    }
    hung_up_ = true;
    context_->loop->Unwatch(socket_.get());
    // Not here: the socket is also read from inside calls.
    context_->loop->After(0, [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->OnHangUp();
    });
  }
}

absl::Status ShmLink::OnPacket(const Packet& packet) {
  if (packet.bytes.size() < kHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a packet of ", packet.bytes.size(), " bytes is no frame"));
  }
  SLUICE_ASSIGN_OR_RETURN(const FrameHeader header, DecodeHeader(packet.bytes.data()));
  const ConstBytes payload = ConstBytes(packet.bytes).subspan(kHeaderBytes);
  if (header.payload_bytes != payload.size()) {
    return absl::InvalidArgumentError(absl::StrCat(DebugString(header), " came with ", payload.size(), " bytes"));
  }
  ++stats_.frames_in;
  switch (header.type) {
    case FrameType::kHello:
    case FrameType::kWelcome:
      return OnGreeting(header, packet);
    case FrameType::kError:
      peer_reason_ = absl::Status(
          static_cast<absl::StatusCode>(header.status),
          absl::StrCat("closed by the peer: ",
                       absl::string_view(reinterpret_cast<const char*>(payload.data()), payload.size())));
      return absl::OkStatus();  // its hang-up follows
    case FrameType::kTransport:
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat(DebugString(header), " does not belong on the socket"));
  }
  if (state_ != State::kUp || header.aux64 > UINT32_MAX) {
    return absl::InvalidArgumentError("a slab was announced out of turn");
  }
  const auto slab = static_cast<uint32_t>(header.aux64);
  switch (static_cast<SocketMessage>(header.aux)) {
    case SocketMessage::kSlab:
      if (packet.files.size() != 1) return absl::InvalidArgumentError("a slab was announced without its file");
      return peer_memory_.Add(slab, packet.files[0]);
    case SocketMessage::kSlabRetired:
      peer_memory_.Remove(slab);
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown message ", header.aux, " on the socket"));
}

absl::Status ShmLink::OnGreeting(const FrameHeader& header, const Packet& packet) {
  if (state_ != State::kHandshake || accepted_ != (header.type == FrameType::kHello)) {
    return absl::InvalidArgumentError(absl::StrCat(TypeName(header.type), " out of turn"));
  }
  SLUICE_ASSIGN_OR_RETURN(const Hello peer, DecodeHello(ConstBytes(packet.bytes).subspan(kHeaderBytes)));
  if (packet.files.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(TypeName(header.type), " came without shared memory"));
  }
  SLUICE_ASSIGN_OR_RETURN(peer_, Outbox::Adopt(packet.files[0]));
  if (accepted_) {
    if (context_->admit) SLUICE_RETURN_IF_ERROR(context_->admit(peer));
    SLUICE_RETURN_IF_ERROR(
        SendFrame({.type = FrameType::kWelcome, .job = self_.job}, EncodeHello(self_), own_->file()));
  }
  GoUp(peer);
  return absl::OkStatus();
}

void ShmLink::GoUp(const Hello& peer) {
  context_->loop->CancelTimer(timer_);
  state_ = State::kUp;
  was_up_ = true;
  own_->CloseFile();
  writer_.emplace(&*own_);
  reader_.emplace(&*peer_);
  peer_name_ = absl::StrCat(DebugString(peer), " at ", stats_.peer);
  context_->handler->OnUp(id_, peer);
}

void ShmLink::OnHangUp() {
  if (state_ == State::kDown) return;
  if (state_ == State::kLingering) return Finish();
  if (state_ == State::kUp) Receive(/*everything=*/true);
  const absl::Status reason =
      !peer_reason_.ok() ? peer_reason_ : absl::UnavailableError("the peer's process ended or closed its endpoint");
  ShutDown(Describe(reason), /*may_linger=*/false);
}

void ShmLink::Close(const absl::Status& reason) { ShutDown(reason, /*may_linger=*/true); }

void ShmLink::ShutDown(const absl::Status& reason, bool may_linger) {
  if (state_ == State::kLingering || state_ == State::kDown) return;
  state_ = State::kLingering;
  down_reason_ = reason;
  context_->loop->CancelTimer(timer_);
  // Without memory for the copies the payloads stay views of the peer's memory, which remains mapped: still readable.
  peer_memory_.DetachHeld().IgnoreError();
  incoming_.reset();
  Sent(std::exchange(publishing_, 0));
  for (const Outgoing& frame : pending_) Sent(frame.cookie);
  pending_.clear();
  pending_bytes_ = 0;
  pending_releases_.clear();
  const bool writing = slots_.has_value() && slots_->CloseAll();
  if (socket_.valid() && !hung_up_) {
    const std::string text(reason.message().substr(0, kMaxReasonBytes));
    SendFrame({.type = FrameType::kError, .status = static_cast<uint16_t>(reason.code())},
              std::as_bytes(std::span(text)), -1)
        .IgnoreError();
    ::shutdown(socket_.get(), SHUT_WR);
  }
  if (!may_linger || hung_up_ || !was_up_ || (lent_.empty() && !writing)) Finish();
}

void ShmLink::Finish() {
  state_ = State::kDown;
  for (const auto& [token, cookie] : lent_) Sent(cookie);
  lent_.clear();
  if (slots_.has_value()) {
    for (const SlotId slot : slots_->Abandon()) {
      context_->defer([context = context_, id = id_, slot] { context->handler->OnSlotClosed(id, slot); });
    }
  }
  if (socket_.valid() && !hung_up_) context_->loop->Unwatch(socket_.get());
  socket_.reset();
  context_->defer([self = shared_from_this()] { self->DeliverDown(); });
}

void ShmLink::DeliverDown() {
  // A handler may send on a link that is going down, from inside OnSent: that cookie's turn comes before OnDown, too.
  if (owed_ > 0) return context_->defer([self = shared_from_this()] { self->DeliverDown(); });
  if (!accepted_ || was_up_) {
    context_->handler->OnDown(id_, down_reason_);
  } else if (context_->refused) {
    context_->refused(down_reason_);
  }
  context_->forget(id_);
}

void ShmLink::Abandon() {
  if (state_ == State::kDown) return;
  state_ = State::kDown;
  context_->loop->CancelTimer(timer_);
  peer_memory_.DetachHeld().IgnoreError();
  if (socket_.valid() && !hung_up_) context_->loop->Unwatch(socket_.get());
  socket_.reset();
}

SlotId ShmLink::OpenSlot(MutableBytes memory) {
  if (!slots_.has_value() || (state_ != State::kUp && state_ != State::kHandshake)) return 0;
  std::optional<SlabRange> range;
  if (state_ == State::kUp) range = context_->slabs->Find(memory);
  if (range.has_value() && AnnounceSlab(range->slab) != Announced::kYes) range.reset();
  return slots_->Open(++context_->last_slot, memory, range);
}

LinkStats ShmLink::Stats() const { return stats_; }

}  // namespace sluice::transport
