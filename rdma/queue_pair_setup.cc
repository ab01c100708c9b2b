// A queue pair's way from nothing to ready: Create and Connect.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rdma/packet_memory.h"
#include "rdma/queue_pair.h"

namespace sluice::rdma {
namespace {

constexpr uint8_t kHopLimit = 64;

absl::Status Sound(const QueuePairOptions& options, const ibv_device_attr& device) {
  const auto bad = [](auto... text) { return absl::InvalidArgumentError(absl::StrCat("queue pair: ", text...)); };
  if (options.sends < 2 || options.receives < 1) return bad("needs 2 sends and 1 receive at least");
  if (options.packet_bytes < 1) return bad("packets of no bytes");
  if (options.signal_every < 1) return bad("signal_every must be 1 at least");
  if (options.retry_count > 7 || options.rnr_retry > 7) return bad("retry counts go up to 7");
  if (options.timeout < 1 || options.timeout > 31) {
    return bad("timeout must be 1 to 31 (0 would wait for an acknowledgement for ever)");
  }
  if (options.min_rnr_timer < 1 || options.min_rnr_timer > 31) {
    return bad("min_rnr_timer must be 1 to 31 (0 means 655 ms: some hundred times slower when receives are late)");
  }
  if (options.mtu > IBV_MTU_4096) return bad("mtu ", options.mtu, " is none of 1 (256 bytes) to 5 (4096 bytes)");
  const auto most = static_cast<uint32_t>(std::max(device.max_qp_wr, 0));
  if (options.sends > most || options.receives > most || options.receives > UINT16_MAX) {
    return bad(options.sends, " sends and ", options.receives, " receives; the device takes ",
               std::min<uint32_t>(most, UINT16_MAX), " of each");
  }
  return absl::OkStatus();
}

std::string Bytes(uint8_t mtu) { return absl::StrCat(mtu == 0 || mtu > IBV_MTU_4096 ? 0 : 128u << mtu); }

}  // namespace

absl::StatusOr<std::unique_ptr<QueuePair>> QueuePair::Create(Domain* domain, const QueuePairOptions& options,
                                                             Owner* owner) {
  SLUICE_RETURN_IF_ERROR(Sound(options, domain->context()->attributes()));
  auto qp = std::unique_ptr<QueuePair>(new QueuePair(domain, options, owner));
  SLUICE_RETURN_IF_ERROR(qp->Init());
  return qp;
}

absl::Status QueuePair::Init() {
  SLUICE_RETURN_IF_ERROR(context_->Refresh());  // a flap since the last QP may have moved the GID or the MTU
  const size_t completions = size_t{options_.sends} + options_.receives;
  SLUICE_RETURN_IF_ERROR(context_->ReserveCompletions(completions));
  reserved_ = completions;
  SLUICE_ASSIGN_OR_RETURN(memory_, PacketMemory::Create(domain_, completions * options_.packet_bytes));
  SLUICE_RETURN_IF_ERROR(MakeQp());

  const Rail& rail = context_->rail();
  const ibv_port_attr& port = context_->port();
  local_.qp_number = qp_->qp_num;
  local_.packet_sequence = context_->RandomPacketSequence();
  std::copy(rail.gid.begin(), rail.gid.end(), local_.gid);
  local_.lid = port.lid;
  local_.mtu = static_cast<uint8_t>(port.active_mtu);
  if (options_.mtu != 0) local_.mtu = std::min(local_.mtu, options_.mtu);
  local_.read_atomic = 1;  // nothing is read; some devices do not like 0
  local_.link_layer = port.link_layer;
  local_.gid_type = static_cast<uint8_t>(rail.gid_type);
  local_.receives = static_cast<uint16_t>(options_.receives);
  local_.packet_bytes = options_.packet_bytes;

  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = 0;
  attributes.port_num = rail.port;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  const int failed =
      verbs_->ModifyQp(qp_, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (failed != 0) return absl::UnavailableError(absl::StrCat(Name(), ": no INIT state: ", std::strerror(failed)));

  staged_.reserve(options_.sends);
  staged_memory_.reserve(options_.sends);
  due_receives_.resize(options_.receives);
  std::iota(due_receives_.begin(), due_receives_.end(), 0);
  return PostReceives();
}

absl::Status QueuePair::MakeQp() {
  // Devices that grant less inline room than was asked for refuse instead of saying how much, so ask for less and less.
  for (uint32_t inline_bytes = std::min(options_.inline_bytes, options_.packet_bytes);; inline_bytes /= 2) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = context_->cq();
    attributes.recv_cq = context_->cq();
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = options_.sends;
    attributes.cap.max_recv_wr = options_.receives;
    attributes.cap.max_send_sge = 1;
    attributes.cap.max_recv_sge = 1;
    attributes.cap.max_inline_data = inline_bytes;
    qp_ = verbs_->CreateQp(domain_->pd(), &attributes);
    if (qp_ != nullptr) {
      inline_bytes_ = attributes.cap.max_inline_data;
      return absl::OkStatus();
    }
    const int error = errno;
    if (inline_bytes != 0 && error != ENOMEM) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat(context_->rail().device, " makes no queue pair of ", options_.sends, " sends and ",
                     options_.receives, " receives: ", std::strerror(error), " (it has ", context_->attributes().max_qp,
                     " in all; `rdma resource show qp` lists who holds them)",
                     error == ENOMEM ? absl::StrCat("; or the memlock limit: ", MemlockMend()) : ""));
  }
}

absl::Status QueuePair::Fits(const QpAddress& remote) const {
  const auto bad = [this](auto... text) { return absl::InvalidArgumentError(absl::StrCat(Name(), ": ", text...)); };
  if (remote.link_layer != local_.link_layer) {
    return bad("the peer's port has link layer ", remote.link_layer, ", this one ", local_.link_layer,
               " (1 InfiniBand, 2 Ethernet): pair rails of one kind (rdma.devices)");
  }
  if (remote.gid_type != local_.gid_type) {
    return bad("the peer uses ", GidTypeName(static_cast<GidType>(remote.gid_type)), ", this end ",
               GidTypeName(static_cast<GidType>(local_.gid_type)), ": let both choose the same");
  }
  if (remote.packet_bytes != local_.packet_bytes) {
    return bad("the peer takes packets of ", remote.packet_bytes, " bytes, this end of ", local_.packet_bytes);
  }
  if (remote.qp_number == 0 || remote.qp_number > 0xffffff || remote.packet_sequence > 0xffffff) {
    return bad("the peer named QP ", remote.qp_number, " with packet sequence ", remote.packet_sequence);
  }
  if (remote.mtu < IBV_MTU_256 || remote.mtu > IBV_MTU_4096) return bad("the peer named MTU ", remote.mtu);
  if (remote.receives == 0) return bad("the peer posted no receives");
  if (local_.link_layer == IBV_LINK_LAYER_INFINIBAND) {
    if (remote.lid == 0) return bad("the peer has no LID: is its subnet manager running?");
  } else {
    Gid gid;
    std::copy(std::begin(remote.gid), std::end(remote.gid), gid.begin());
    if (IsZero(gid)) return bad("the peer named no GID");
  }
  return absl::OkStatus();
}

absl::Status QueuePair::ToReady(const QpAddress& remote) {
  const Rail& rail = context_->rail();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(local_.mtu, remote.mtu));
  attributes.dest_qp_num = remote.qp_number;
  attributes.rq_psn = remote.packet_sequence;
  attributes.max_dest_rd_atomic = local_.read_atomic;
  attributes.min_rnr_timer = options_.min_rnr_timer;
  attributes.ah_attr.port_num = rail.port;
  attributes.ah_attr.sl = options_.service_level;
  attributes.ah_attr.dlid = remote.lid;
  if (local_.link_layer != IBV_LINK_LAYER_INFINIBAND) {
    attributes.ah_attr.is_global = 1;
    std::copy(std::begin(remote.gid), std::end(remote.gid), attributes.ah_attr.grh.dgid.raw);
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(rail.gid_index);
    attributes.ah_attr.grh.hop_limit = kHopLimit;
    attributes.ah_attr.grh.traffic_class = options_.traffic_class;
  }
  int failed = verbs_->ModifyQp(qp_, &attributes,
                                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (failed == 0) {
    attributes = {};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = local_.packet_sequence;
    attributes.max_rd_atomic = std::min(local_.read_atomic, remote.read_atomic);
    attributes.timeout = options_.timeout;
    attributes.retry_cnt = options_.retry_count;
    attributes.rnr_retry = options_.rnr_retry;
    failed = verbs_->ModifyQp(
        qp_, &attributes,
        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
  }
  if (failed == 0) return absl::OkStatus();
  Gid gid;
  std::copy(std::begin(remote.gid), std::end(remote.gid), gid.begin());
  return absl::UnavailableError(
      absl::StrCat(Name(), " (", rail.ToString(), "): no way to QP ", remote.qp_number, " at GID ", GidText(gid),
                   ", LID ", remote.lid, ", MTU ", Bytes(std::min(local_.mtu, remote.mtu)), ": ", std::strerror(failed),
                   "; check that the address answers from ", rail.netdev.empty() ? "this port" : rail.netdev.c_str(),
                   " (ping -I) and that both GIDs are routable"));
}

absl::Status QueuePair::Connect(const QpAddress& remote, TimeNs now) {
  if (!broken_.ok()) return broken_;
  if (connected_) return absl::FailedPreconditionError(absl::StrCat(Name(), ": is connected already"));
  SLUICE_RETURN_IF_ERROR(Fits(remote));
  if (absl::Status ready = ToReady(remote); !ready.ok()) {
    Break(ready);
    return ready;
  }
  connected_ = true;
  return Flush(now);
}

}  // namespace sluice::rdma
