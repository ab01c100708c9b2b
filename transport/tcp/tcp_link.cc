#include "transport/tcp/tcp_link.h"

#include "transport/tcp/tcp_info.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "transport/hello.h"

namespace sluice::transport {
namespace {

constexpr size_t kMaxTextBytes = 4096;   // of an ERROR in the handshake and of a bye
constexpr size_t kMaxTransportBytes = 16 << 10;   // of a TRANSPORT frame without a slot
constexpr uint32_t kBye = 1;             // aux of a TRANSPORT frame: status and text say why the link closes

std::string Duration(TimeNs ns) {
  const TimeNs unit = ns >= kSecond ? 10 * kMillisecond : ns >= kMillisecond ? 10 * kMicrosecond : kMicrosecond;
  return absl::FormatDuration(absl::Nanoseconds(ns / unit * unit));
}

absl::Status StatusOf(const FrameHeader& header, ConstBytes text) {
  // Code 0 would read as success, and what is no code of ours stays an error all the same.
  const int code = header.status == 0 || header.status > 16 ? static_cast<int>(absl::StatusCode::kUnknown) : header.status;
  return absl::Status(static_cast<absl::StatusCode>(code),
                      absl::string_view(reinterpret_cast<const char*>(text.data()), text.size()));
}

FrameHeader TextFrame(FrameType type, uint32_t aux, const absl::Status& reason, std::string* text) {
  text->assign(reason.message().data(), std::min(reason.message().size(), kMaxTextBytes));
  FrameHeader header;
  header.type = type;
  header.aux = aux;
  header.status = static_cast<uint16_t>(reason.code());
  header.total_bytes = text->size();
  return header;
}

}  // namespace

TcpLink::TcpLink(LinkId id, bool acceptor, const TcpOptions& options, const Clock* clock, Owner* owner)
    : id_(id),
      acceptor_(acceptor),
      options_(options),
      clock_(clock),
      owner_(owner),
      created_(clock->Now()),
      reader_(this),
      writer_(options.hash) {}

void TcpLink::Start(UniqueFd fd, std::string peer_address) {
  fd_ = std::move(fd);
  peer_address_ = std::move(peer_address);
  state_ = State::kGreeting;
  last_heard_ = clock_->Now();
  if (acceptor_) return;
  const std::vector<std::byte> payload = EncodeHello(self_);
  FrameHeader hello;
  hello.type = FrameType::kHello;
  hello.total_bytes = payload.size();
  writer_.AddUrgent(hello, payload);
  owner_->LinkHasOutput(*this);
}

void TcpLink::Send(const FrameHeader& header, ConstBytes payload, uint64_t cookie) {
  writer_.Add(header, payload, cookie);
  if (writer_.queued_bytes() > options_.limits.max_queued_bytes) was_full = true;
  owner_->LinkHasOutput(*this);
}

absl::StatusOr<bool> TcpLink::Read(MutableBytes staging, size_t budget) {
  refusal_ = absl::OkStatus();
  const auto progress = reader_.Read(fd_.get(), staging, budget);
  if (state_ == State::kDown) return false;
  SLUICE_RETURN_IF_ERROR(refusal_);
  if (!progress.ok()) return progress.status();
  bytes_in_ += progress->bytes;
  if (progress->bytes > 0) last_heard_ = clock_->Now();
  if (state_ == State::kGreeting) {
    SLUICE_RETURN_IF_ERROR(CheckPreamble());
  }
  if (progress->end) {
    return absl::UnavailableError(
        absl::StrCat("closed by the peer ", reader_.Position(), "; check whether that process still runs, and its log"));
  }
  return progress->more;
}

absl::Status TcpLink::Write(size_t budget, std::vector<uint64_t>* done) {
  const bool was_blocked = writer_.blocked();
  const auto written = writer_.Write(fd_.get(), budget, done);
  if (!written.ok()) return written.status();
  bytes_out_ += *written;
  // A full socket that takes bytes again shows a peer that reads, even if it has nothing to say.
  if (was_blocked && *written > 0) last_heard_ = clock_->Now();
  return absl::OkStatus();
}

void TcpLink::CloseSlot(SlotId slot) {
  slots_.erase(slot);
  if (slot != 0 && target_slot_ == slot && reader_.in_payload()) {
    reader_.DropPayload();
    target_ = nullptr;
    target_slot_ = 0;
  }
}

absl::StatusOr<std::byte*> TcpLink::OnHeader(const FrameHeader& header) {
  target_slot_ = 0;
  target_ = nullptr;
  buffer_.reset();
  if (state_ == State::kGreeting) SLUICE_RETURN_IF_ERROR(CheckHandshake(header));
  if (state_ == State::kUp && (header.type == FrameType::kHello || header.type == FrameType::kWelcome))
    return absl::InvalidArgumentError("a second handshake on one link");
  if (header.payload_bytes == 0) return nullptr;

  if (header.slot != 0) {
    const auto it = slots_.find(header.slot);
    if (it == slots_.end()) return nullptr;  // revoked: the frame is dropped
    const MutableBytes memory = it->second;
    if (header.payload_bytes > memory.size() || header.stripe_offset > memory.size() - header.payload_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("a stripe lies outside its slot of ", memory.size(), " bytes: ",
                                                     DebugString(header)));
    }
    target_slot_ = header.slot;
    target_ = memory.data() + header.stripe_offset;
    return target_;
  }
  const size_t limit = header.type == FrameType::kTransport ? kMaxTransportBytes : options_.limits.max_slotless_bytes;
  if (header.payload_bytes > limit) {
    return absl::ResourceExhaustedError(absl::StrCat("a frame without a slot of ", header.payload_bytes, " bytes (at most ",
                                                     limit, "): ", DebugString(header)));
  }
  buffer_ = std::make_shared_for_overwrite<std::byte[]>(header.payload_bytes);
  target_ = buffer_.get();
  return target_;
}

ConstBytes TcpLink::payload_bytes(const FrameHeader& header) const { return {target_, header.payload_bytes}; }

bool TcpLink::OnPayload(const FrameHeader& header) {
  if (state_ == State::kGreeting) {
    FinishHandshake(header);
    return refusal_.ok() && state_ == State::kUp;
  }
  if (header.type == FrameType::kPing || header.type == FrameType::kPong || header.type == FrameType::kTransport) {
    TransportFrame(header);
    return refusal_.ok() && state_ == State::kUp;
  }
  owner_->LinkFrame(*this, header, Payload(payload_bytes(header), std::move(buffer_)));
  return state_ == State::kUp;
}

void TcpLink::OnDropped(const FrameHeader& header) {
  // Whoever sent it may wait for its memory.
  if (state_ == State::kUp && header.type == FrameType::kTransport && header.aux >= kFirstTransportAux)
    owner_->LinkTransportFrame(*this, header, Payload());
}

absl::Status TcpLink::CheckHandshake(const FrameHeader& header) const {
  if (header.type == FrameType::kError && !acceptor_) {
    if (header.payload_bytes <= kMaxTextBytes && header.slot == 0) return absl::OkStatus();
  } else if (header.type == (acceptor_ ? FrameType::kHello : FrameType::kWelcome)) {
    if (header.payload_bytes <= kMaxHelloBytes && header.slot == 0) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("expected ", acceptor_ ? "HELLO" : "WELCOME", ", got ",
                                                 DebugString(header)));
}

absl::Status TcpLink::CheckPreamble() const {
  // A stranger may never send a whole header; what it has said is judged by the first bytes.
  const ConstBytes bytes = reader_.partial_header();
  if (bytes.size() < 4) return absl::OkStatus();
  std::byte header[kHeaderBytes] = {};
  header[4] = std::byte{kWireVersion};
  std::copy(bytes.begin(), bytes.end(), header);
  const absl::Status status = DecodeHeader(header).status();
  // Magic and version are judged before the check, which cannot be right yet.
  return absl::IsDataLoss(status) ? absl::OkStatus() : status;
}

void TcpLink::FinishHandshake(const FrameHeader& header) {
  if (header.type == FrameType::kError) {
    const absl::Status said = StatusOf(header, payload_bytes(header));
    refusal_ = absl::Status(said.code(), absl::StrCat("refused by the peer: ", said.message()));
    return;
  }
  auto hello = DecodeHello(payload_bytes(header));
  if (!hello.ok()) {
    refusal_ = hello.status();
    return;
  }
  peer_ = *std::move(hello);
  if (acceptor_) {
    refusal_ = owner_->Admit(peer_);
    if (!refusal_.ok()) return;
    const std::vector<std::byte> payload = EncodeHello(options_.self);
    FrameHeader welcome;
    welcome.type = FrameType::kWelcome;
    welcome.total_bytes = payload.size();
    writer_.Add(welcome, payload, 0);
    owner_->LinkHasOutput(*this);
  }
  state_ = State::kUp;
  up_since_ = last_heard_ = clock_->Now();
  owner_->LinkUp(*this);
}

void TcpLink::TransportFrame(const FrameHeader& header) {
  if (header.type == FrameType::kTransport && header.aux >= kFirstTransportAux) {
    owner_->LinkTransportFrame(*this, header, Payload(payload_bytes(header), std::move(buffer_)));
  } else if (header.type == FrameType::kTransport && header.aux == kBye) {
    const absl::Status said = StatusOf(header, payload_bytes(header));
    refusal_ = absl::UnavailableError(absl::StrCat("the peer closed it: ", said.ToString()));
  } else if (header.type == FrameType::kPing && writer_.queued_bytes() <= options_.limits.max_queued_bytes) {
    // (With a longer queue the peer hears from us anyway, and cannot make it grow by pings that it never reads back.)
    FrameHeader pong;
    pong.type = FrameType::kPong;
    pong.aux64 = header.aux64;
    writer_.AddUrgent(pong);
    owner_->LinkHasOutput(*this);
  }
}

absl::Status TcpLink::Tick(TimeNs now, const absl::Status& connect_error) {
  if (state_ == State::kConnecting || state_ == State::kGreeting) {
    const TimeNs limit = acceptor_ ? options_.handshake_timeout : options_.connect_timeout;
    if (now - created_ < limit) return absl::OkStatus();
    if (acceptor_) return absl::DeadlineExceededError(absl::StrCat("no HELLO within ", Duration(limit)));
    return absl::DeadlineExceededError(absl::StrCat(
        state_ == State::kConnecting ? "no connection" : "connected, but no WELCOME", " within ", Duration(limit),
        connect_error.ok() ? "" : absl::StrCat(" (", connect_error.message(), ")"),
        "; check that the peer runs there and that no firewall drops packets"));
  }
  if (state_ != State::kUp || options_.ping_every <= 0) return absl::OkStatus();
  const TimeNs silent = now - last_heard_;
  if (silent >= options_.ping_timeout) {
    return absl::UnavailableError(absl::StrCat("the peer has been silent for ", Duration(silent),
                                               "; check its machine and the network between"));
  }
  if (silent >= options_.ping_every && now - last_ping_ >= options_.ping_every) {
    last_ping_ = now;
    FrameHeader ping;
    ping.type = FrameType::kPing;
    writer_.AddUrgent(ping);
    owner_->LinkHasOutput(*this);
  }
  return absl::OkStatus();
}

UniqueFd TcpLink::Down(const absl::Status& reason, bool tell, std::vector<uint64_t>* done) {
  if (tell && fd_.valid()) {
    // Best effort, without waiting: what is queued, then the reason. A frame that is cut cannot be followed by another.
    const bool greeting = state_ == State::kGreeting;
    std::string text;
    const FrameHeader header = greeting ? TextFrame(FrameType::kError, 0, reason, &text)
                                        : TextFrame(FrameType::kTransport, kBye, reason, &text);
    if (writer_.Write(fd_.get(), 1 << 20, done).ok() && writer_.empty()) {
      writer_.Add(header, std::as_bytes(std::span(text)), 0);
      (void)writer_.Write(fd_.get(), 1 << 20, done);
    }
  }
  state_ = State::kDown;
  slots_.clear();
  writer_.TakeCookies(done);
  if (reader_.in_payload()) reader_.DropPayload();
  return std::move(fd_);
}

LinkStats TcpLink::Stats() const {
  LinkStats stats;
  stats.bytes_in = bytes_in_;
  stats.bytes_out = bytes_out_;
  stats.frames_in = reader_.frames();
  stats.frames_out = writer_.frames();
  stats.payload_in = reader_.payload_bytes();
  stats.payload_out = writer_.payload_bytes();
  stats.kind = "tcp";
  stats.peer = peer_address_;
  const TcpMeasure measure = MeasureTcp(fd_.get());
  stats.rtt_s = measure.rtt_s;
  stats.delivery_rate = measure.delivery_rate;
  stats.retransmits = measure.retransmits;
  stats.congestion_marks = measure.congestion_marks;
  return stats;
}

absl::Status TcpLink::Explain(const absl::Status& what) const {
  std::string text = acceptor_ ? "connection from " : "link to ";
  if (up_since_ != 0) {
    text = absl::StrCat("link to ", DebugString(peer_), " at ", peer_address_, ", up for ",
                        Duration(clock_->Now() - up_since_));
  } else {
    absl::StrAppend(&text, peer_address_, ", after ", Duration(clock_->Now() - created_));
  }
  return absl::Status(what.code(), absl::StrCat(text, ": ", what.message()));
}

}  // namespace sluice::transport
