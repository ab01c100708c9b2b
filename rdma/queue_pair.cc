#include "rdma/queue_pair.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rdma/completion_text.h"
#include "rdma/packet_memory.h"

namespace sluice::rdma {
namespace {

// wr_id: the QP's serial number, whether it is a receive, and the send's number (modulo 2^31) or the receive's buffer.
constexpr uint64_t kReceive = uint64_t{1} << 31;
constexpr uint64_t kNumberMask = kReceive - 1;

uint64_t SendId(uint32_t serial, uint64_t number) { return uint64_t{serial} << 32 | (number & kNumberMask); }
uint64_t ReceiveId(uint32_t serial, uint32_t buffer) { return uint64_t{serial} << 32 | kReceive | buffer; }

// Receives are posted again so many at a time: a doorbell each would cost more than the credit is worth.
size_t ReceiveChain(uint32_t receives) { return std::clamp<size_t>(receives / 4, 1, 16); }

}  // namespace

QueuePair::QueuePair(Domain* domain, const QueuePairOptions& options, Owner* owner)
    : domain_(domain),
      context_(domain->context()),
      verbs_(context_->verbs()),
      options_(options),
      owner_(owner),
      serial_(context_->NextSerial()) {}

QueuePair::~QueuePair() {
  if (qp_ != nullptr) verbs_->DestroyQp(qp_);
  memory_.reset();
  if (reserved_ != 0) context_->ReleaseCompletions(reserved_);
}

std::string QueuePair::Name() const {
  return absl::StrCat("queue pair ", local_.qp_number, " on ", context_->rail().device, " port ",
                      context_->rail().port);
}

std::byte* QueuePair::send_buffer(uint64_t number) const {
  return memory_->data() + (number % options_.sends) * options_.packet_bytes;
}

std::byte* QueuePair::receive_buffer(uint32_t number) const {
  return memory_->data() + (size_t{options_.sends} + number) * options_.packet_bytes;
}

// --- Sending ---

size_t QueuePair::room() const { return broken_.ok() ? options_.sends - sends_.size() : 0; }

size_t QueuePair::max_write_bytes() const {
  constexpr size_t kMost = size_t{1} << 30;
  const size_t device = context_->port().max_msg_sz;
  return device == 0 ? kMost : std::min(device, kMost);
}

ibv_send_wr& QueuePair::Stage(Kind kind, uint64_t cookie) {
  const uint64_t number = first_send_ + sends_.size();
  sends_.push_back(Send{kind, cookie, 0});
  ibv_send_wr& request = staged_.emplace_back();
  std::memset(&request, 0, sizeof(request));
  request.wr_id = SendId(serial_, number);
  staged_memory_.emplace_back();
  return request;
}

void QueuePair::Packet(ConstBytes packet, uint64_t cookie) {
  if (!broken_.ok()) return;
  if (room() < 1 || packet.size() > options_.packet_bytes) {
    return Break(absl::InternalError(absl::StrCat(Name(), ": a packet of ", packet.size(), " bytes with room for ",
                                                  room(), " requests and ", options_.packet_bytes, " bytes")));
  }
  std::byte* buffer = send_buffer(first_send_ + sends_.size());
  if (!packet.empty()) std::memcpy(buffer, packet.data(), packet.size());
  ibv_send_wr& request = Stage(Kind::kPacket, cookie);
  request.opcode = IBV_WR_SEND;
  request.num_sge = packet.empty() ? 0 : 1;
  if (packet.size() <= inline_bytes_ && !packet.empty()) request.send_flags = IBV_SEND_INLINE;
  staged_memory_.back() = {reinterpret_cast<uintptr_t>(buffer), static_cast<uint32_t>(packet.size()), memory_->key()};
}

void QueuePair::Write(ConstBytes payload, uint32_t local_key, uint64_t remote_address, uint32_t remote_key,
                      uint32_t tag, uint64_t cookie) {
  if (!broken_.ok()) return;
  if (room() < 2 || payload.size() > max_write_bytes()) {
    return Break(absl::InternalError(absl::StrCat(Name(), ": a write of ", payload.size(), " bytes with room for ",
                                                  room(), " requests and ", max_write_bytes(), " bytes")));
  }
  if (!payload.empty()) {
    ibv_send_wr& write = Stage(Kind::kWrite, 0);
    write.opcode = IBV_WR_RDMA_WRITE;
    write.num_sge = 1;
    write.wr.rdma.remote_addr = remote_address;
    write.wr.rdma.rkey = remote_key;
    staged_memory_.back() = {reinterpret_cast<uintptr_t>(payload.data()), static_cast<uint32_t>(payload.size()),
                             local_key};
  }
  // Without data of its own, as some fabrics route writes with immediate data along one path only.
  ibv_send_wr& notice = Stage(Kind::kNotice, cookie);
  notice.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  notice.imm_data = htonl(tag);
  notice.wr.rdma.remote_addr = remote_address;
  notice.wr.rdma.rkey = remote_key;
}

absl::Status QueuePair::Flush(TimeNs now) {
  if (!broken_.ok()) return broken_;
  if (!due_receives_.empty()) SLUICE_RETURN_IF_ERROR(PostReceives());
  if (!connected_ || staged_.empty()) return absl::OkStatus();

  const size_t count = staged_.size();
  const size_t first = sends_.size() - count;
  for (size_t i = 0; i < count; ++i) {
    ibv_send_wr& request = staged_[i];
    request.sg_list = request.num_sge == 0 ? nullptr : &staged_memory_[i];
    request.next = i + 1 < count ? &staged_[i + 1] : nullptr;
    if (i + 1 == count || (i + 1) % options_.signal_every == 0) request.send_flags |= IBV_SEND_SIGNALED;
    sends_[first + i].posted = now;
  }
  ibv_send_wr* bad = nullptr;
  const int failed = verbs_->PostSend(qp_, staged_.data(), &bad);
  // What came before the bad one is on its way.
  const size_t posted =
      failed == 0 ? count : std::min(count, static_cast<size_t>(bad == nullptr ? 0 : bad - staged_.data()));
  for (size_t i = 0; i < posted; ++i) {
    const ibv_send_wr& request = staged_[i];
    const uint64_t bytes = request.num_sge == 0 ? 0 : staged_memory_[i].length;
    if ((request.send_flags & IBV_SEND_SIGNALED) != 0) ++counters_.signalled;
    if (request.opcode == IBV_WR_SEND) {
      ++counters_.packets_out;
      counters_.packet_bytes_out += bytes;
      if ((request.send_flags & IBV_SEND_INLINE) != 0) ++counters_.inline_packets_out;
    } else if (request.opcode == IBV_WR_RDMA_WRITE) {
      counters_.write_bytes_out += bytes;
    } else {
      ++counters_.writes_out;
    }
  }
  ++counters_.posts;
  staged_.erase(staged_.begin(), staged_.begin() + static_cast<ptrdiff_t>(posted));
  if (failed != 0) {
    Break(absl::ResourceExhaustedError(
        absl::StrCat(Name(), ": the device took ", posted, " of ", count, " requests: ", std::strerror(failed),
                     failed == ENOMEM ? "; its send queue is smaller than it said" : "; see dmesg for the device")));
    return broken_;
  }
  staged_memory_.clear();
  return absl::OkStatus();
}

// --- Receiving ---

absl::Status QueuePair::PostReceives() {
  const size_t count = due_receives_.size();
  receive_requests_.resize(count);
  receive_memory_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t buffer = due_receives_[i];
    receive_memory_[i] = {reinterpret_cast<uintptr_t>(receive_buffer(buffer)), options_.packet_bytes, memory_->key()};
    ibv_recv_wr& request = receive_requests_[i];
    request = {};
    request.wr_id = ReceiveId(serial_, buffer);
    request.sg_list = &receive_memory_[i];
    request.num_sge = 1;
    request.next = i + 1 < count ? &receive_requests_[i + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  const int failed = verbs_->PostRecv(qp_, receive_requests_.data(), &bad);
  const size_t posted =
      failed == 0 ? count : std::min(count, static_cast<size_t>(bad == nullptr ? 0 : bad - receive_requests_.data()));
  receives_out_ += posted;
  receives_posted_ += static_cast<uint32_t>(posted);
  counters_.receives_posted += posted;
  due_receives_.clear();
  if (failed == 0) return absl::OkStatus();
  Break(absl::ResourceExhaustedError(
      absl::StrCat(Name(), ": the device took ", posted, " of ", count, " receives: ", std::strerror(failed))));
  return broken_;
}

void QueuePair::ReceiveDone(const ibv_wc& wc, uint32_t buffer) {
  --receives_out_;
  if (wc.status != IBV_WC_SUCCESS) return;
  if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    ++counters_.notices_in;
    owner_->QpNotice(*this, ntohl(wc.imm_data));
  } else {
    const size_t bytes = std::min(wc.byte_len, options_.packet_bytes);
    ++counters_.packets_in;
    counters_.packet_bytes_in += bytes;
    owner_->QpPacket(*this, ConstBytes(receive_buffer(buffer), bytes));
  }
  if (!broken_.ok()) return;
  due_receives_.push_back(buffer);
  if (due_receives_.size() >= ReceiveChain(options_.receives)) PostReceives().IgnoreError();  // broken_ says it
}

// --- Completions and the end ---

void QueuePair::OnCompletion(const ibv_wc& wc, TimeNs now) {
  if (wc.wr_id >> 32 != serial_) return;  // of an earlier QP with this number
  const uint64_t number = wc.wr_id & kNumberMask;
  const bool receive = (wc.wr_id & kReceive) != 0;
  // A send's completion covers those posted before it.
  const size_t in_flight = sends_.size() - staged_.size();
  const size_t behind = (number - first_send_) & kNumberMask;
  if (receive ? number >= options_.receives || receives_out_ == 0 : behind >= in_flight) return;  // not one of ours
  counters_.CountCompletion(static_cast<unsigned>(wc.status));
  if (wc.status != IBV_WC_SUCCESS && broken_.ok()) {
    const std::string text =
        absl::StrCat(Name(), ": a ", receive ? "receive" : "send", " ended with status ", static_cast<int>(wc.status),
                     " (", CompletionName(wc.status), ", vendor ", wc.vendor_err, "): ", CompletionMend(wc.status));
    Break(wc.status == IBV_WC_REM_ACCESS_ERR ? absl::AbortedError(text) : absl::UnavailableError(text));
  }
  if (receive) {
    ReceiveDone(wc, static_cast<uint32_t>(number));
  } else {
    SendsDone(behind + 1, wc.status == IBV_WC_SUCCESS, now);
  }
}

// After a bad completion those before it are not reported either: they may have landed, which the stream finds out.
void QueuePair::SendsDone(size_t count, bool well, TimeNs now) {
  for (; count != 0; --count) {
    const Send done = sends_.front();
    sends_.pop_front();
    ++first_send_;
    if (!well || done.kind == Kind::kWrite) continue;  // a write is done with its notice
    counters_.CountLatency(now - done.posted);
    owner_->QpDone(*this, done.cookie);
  }
}

void QueuePair::Break(const absl::Status& why) {
  if (!broken_.ok()) return;
  broken_ = why.ok() ? absl::CancelledError(absl::StrCat(Name(), ": broken without a reason")) : why;
  sends_.resize(sends_.size() - staged_.size());
  staged_.clear();
  staged_memory_.clear();
  due_receives_.clear();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  // If even this fails the device is gone: the owner's deadline ends the wait for its completions.
  if (qp_ != nullptr) verbs_->ModifyQp(qp_, &attributes, IBV_QP_STATE);
}

bool QueuePair::drained() const { return !broken_.ok() && sends_.empty() && receives_out_ == 0; }

bool QueuePair::receives_drained() const { return !broken_.ok() && receives_out_ == 0; }

TimeNs QueuePair::oldest_wait(TimeNs now) const {
  if (sends_.size() == staged_.size()) return 0;
  return std::max<TimeNs>(0, now - sends_.front().posted);
}

}  // namespace sluice::rdma
