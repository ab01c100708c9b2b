// QPs: their states, and posting to them.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rdma/fake/objects.h"

namespace sluice::rdma::fake {
namespace {

constexpr int kToInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kToReceive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kToSend =
    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

bool Has(int mask, int needed) { return (mask & needed) == needed; }

void Merge(ibv_qp_attr* now, const ibv_qp_attr& to, int mask) {
  if (mask & IBV_QP_PKEY_INDEX) now->pkey_index = to.pkey_index;
  if (mask & IBV_QP_PORT) now->port_num = to.port_num;
  if (mask & IBV_QP_ACCESS_FLAGS) now->qp_access_flags = to.qp_access_flags;
  if (mask & IBV_QP_AV) now->ah_attr = to.ah_attr;
  if (mask & IBV_QP_PATH_MTU) now->path_mtu = to.path_mtu;
  if (mask & IBV_QP_DEST_QPN) now->dest_qp_num = to.dest_qp_num;
  if (mask & IBV_QP_RQ_PSN) now->rq_psn = to.rq_psn;
  if (mask & IBV_QP_SQ_PSN) now->sq_psn = to.sq_psn;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) now->max_dest_rd_atomic = to.max_dest_rd_atomic;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) now->max_rd_atomic = to.max_rd_atomic;
  if (mask & IBV_QP_MIN_RNR_TIMER) now->min_rnr_timer = to.min_rnr_timer;
  if (mask & IBV_QP_TIMEOUT) now->timeout = to.timeout;
  if (mask & IBV_QP_RETRY_CNT) now->retry_cnt = to.retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) now->rnr_retry = to.rnr_retry;
}

bool SoundWay(const FakeQp& qp, const ibv_qp_attr& to, FakeDevice* device) {
  const Port& port = *device->port_list[qp.now.port_num - 1];
  if (!port.up || to.path_mtu < IBV_MTU_256 || to.path_mtu > device->options.mtu) return false;
  if (to.ah_attr.port_num != port.number) return false;
  if (!to.ah_attr.is_global) return device->options.infiniband && to.ah_attr.dlid != 0;
  return to.ah_attr.grh.sgid_index < port.gids.size() && to.ah_attr.grh.hop_limit > 0;
}

}  // namespace

ibv_qp* Host::CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  std::lock_guard lock(state_->mutex);
  errno = EINVAL;
  FakePd* in = state_->Get(state_->domains, pd, "CreateQp");
  FakeCq* sends_to = state_->Get(state_->queues, attributes->send_cq, "CreateQp");
  FakeCq* receives_to = state_->Get(state_->queues, attributes->recv_cq, "CreateQp");
  if (in == nullptr || sends_to == nullptr || receives_to == nullptr) return nullptr;
  if (sends_to->of != in->of || receives_to->of != in->of) return nullptr;
  FakeDevice* device = in->of->on;
  const DeviceOptions& options = device->options;
  ibv_qp_cap& cap = attributes->cap;
  if (attributes->qp_type != IBV_QPT_RC || cap.max_send_sge > 4 || cap.max_recv_sge > 4) return nullptr;
  const auto most = static_cast<uint32_t>(options.max_qp_wr);
  if (cap.max_send_wr > most || cap.max_recv_wr > most) return nullptr;
  if (cap.max_inline_data > options.max_inline && options.refuse_inline) return nullptr;
  size_t on_device = 0;
  for (const auto& [id, qp] : state_->by_id) on_device += qp->of->on == device;
  if (on_device >= static_cast<size_t>(options.max_qp)) {
    errno = ENOMEM;
    return nullptr;
  }
  cap.max_inline_data = std::min(cap.max_inline_data, options.max_inline);

  auto qp = std::make_unique<FakeQp>();
  static_cast<ibv_qp&>(*qp) = {};
  qp->context = in->of;
  qp->qp_context = attributes->qp_context;
  qp->pd = pd;
  qp->send_cq = sends_to;
  qp->recv_cq = receives_to;
  qp->qp_type = IBV_QPT_RC;
  qp->state = IBV_QPS_RESET;
  qp->id = ++state_->last_id;
  qp->of = in->of;
  qp->in = in;
  qp->sends_to = sends_to;
  qp->receives_to = receives_to;
  qp->cap = cap;
  qp->signal_all = attributes->sq_sig_all != 0;
  if (state_->options.reuse_qp_numbers) {
    qp->qp_num = 17;
    while (state_->FindQp(device, qp->qp_num) != nullptr) ++qp->qp_num;
  } else {
    qp->qp_num = ++device->last_qp_number;
  }
  FakeQp* key = qp.get();
  state_->by_id.emplace(key->id, key);
  state_->queue_pairs.emplace(static_cast<ibv_qp*>(key), std::move(qp));
  return key;
}

int Host::ModifyQp(ibv_qp* raw, ibv_qp_attr* to, int mask) {
  std::lock_guard lock(state_->mutex);
  FakeQp* qp = state_->Get(state_->queue_pairs, raw, "ModifyQp");
  if (qp == nullptr || (mask & IBV_QP_STATE) == 0) return EINVAL;
  FakeDevice* device = qp->of->on;
  const ibv_qp_state from = qp->state;
  switch (to->qp_state) {
    case IBV_QPS_RESET:
      if (from == IBV_QPS_RESET) return state_->Refuse(EINVAL, "ModifyQp: RESET to RESET");
      qp->sends.clear();
      qp->receives.clear();
      qp->sends_retired = qp->sends_posted;
      qp->receives_retired = qp->receives_posted;
      qp->now = {};
      break;
    case IBV_QPS_INIT:
      if (from != IBV_QPS_RESET && from != IBV_QPS_INIT) return EINVAL;
      if (from == IBV_QPS_RESET && !Has(mask, kToInit)) return EINVAL;
      if ((mask & IBV_QP_PORT) && (to->port_num < 1 || to->port_num > device->port_list.size())) return EINVAL;
      break;
    case IBV_QPS_RTR:
      if (from != IBV_QPS_INIT || !Has(mask, kToReceive) || !SoundWay(*qp, *to, device)) return EINVAL;
      if (to->ah_attr.is_global) {
        qp->source = device->port_list[qp->now.port_num - 1]->gids[to->ah_attr.grh.sgid_index];
      }
      break;
    case IBV_QPS_RTS:
      if (from != IBV_QPS_RTR && from != IBV_QPS_RTS) return EINVAL;
      if (from == IBV_QPS_RTR && !Has(mask, kToSend)) return EINVAL;
      break;
    case IBV_QPS_ERR: state_->ToError(qp); return 0;
    default: return EINVAL;
  }
  Merge(&qp->now, *to, mask);
  qp->state = to->qp_state;
  state_->Pump();
  return 0;
}

int Host::DestroyQp(ibv_qp* raw) {
  std::lock_guard lock(state_->mutex);
  FakeQp* qp = state_->Get(state_->queue_pairs, raw, "DestroyQp");
  if (qp == nullptr) return EINVAL;
  if (qp->unacknowledged != 0) return state_->Refuse(EBUSY, "DestroyQp: events not acknowledged (would hang)");
  std::erase_if(qp->of->events, [raw](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == raw;
  });
  qp->of->event.Set(!qp->of->events.empty());
  state_->by_id.erase(qp->id);
  state_->queue_pairs.erase(raw);
  state_->Pump();  // peers find nobody
  return 0;
}

int Host::PostSend(ibv_qp* raw, ibv_send_wr* first, ibv_send_wr** bad) {
  std::lock_guard lock(state_->mutex);
  *bad = first;
  FakeQp* qp = state_->Get(state_->queue_pairs, raw, "PostSend");
  if (qp == nullptr) return EINVAL;
  int failed = 0;
  for (ibv_send_wr* request = first; request != nullptr && failed == 0; request = request->next) {
    *bad = request;
    auto& left = state_->faults[this].post_sends;
    SendWork work;
    work.request = *request;
    work.request.next = nullptr;
    for (int i = 0; i < request->num_sge; ++i) {
      work.memory.push_back(request->sg_list[i]);
      work.bytes += request->sg_list[i].length;
    }
    work.is_inline = (request->send_flags & IBV_SEND_INLINE) != 0;
    const auto opcode = request->opcode;
    if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR) {
      failed = state_->Refuse(EINVAL, "PostSend: not in RTS");
    } else if (opcode != IBV_WR_SEND && opcode != IBV_WR_SEND_WITH_IMM && opcode != IBV_WR_RDMA_WRITE &&
               opcode != IBV_WR_RDMA_WRITE_WITH_IMM) {
      failed = EINVAL;
    } else if (static_cast<uint32_t>(request->num_sge) > qp->cap.max_send_sge) {
      failed = EINVAL;
    } else if (work.bytes > qp->of->on->options.max_message ||
               (work.is_inline && work.bytes > qp->cap.max_inline_data)) {
      failed = state_->Refuse(EINVAL, "PostSend: longer than inline data or messages may be");
    } else if (qp->sends_posted - qp->sends_retired >= qp->cap.max_send_wr) {
      failed = state_->Refuse(ENOMEM, "PostSend: send queue overrun");
    } else if (left.has_value() && *left == 0) {
      failed = ENOMEM;
    }
    if (failed != 0) break;
    if (left.has_value()) --*left;
    if (work.is_inline) {
      for (const ibv_sge& piece : work.memory) {
        const auto* data = reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(piece.addr));
        work.inlined.insert(work.inlined.end(), data, data + piece.length);
      }
    }
    work.number = ++qp->sends_posted;
    qp->sends.push_back(std::move(work));
  }
  if (qp->state == IBV_QPS_ERR) state_->ToError(qp);
  state_->Pump();
  if (failed == 0) *bad = nullptr;
  return failed;
}

int Host::PostRecv(ibv_qp* raw, ibv_recv_wr* first, ibv_recv_wr** bad) {
  std::lock_guard lock(state_->mutex);
  *bad = first;
  FakeQp* qp = state_->Get(state_->queue_pairs, raw, "PostRecv");
  if (qp == nullptr) return EINVAL;
  for (ibv_recv_wr* request = first; request != nullptr; request = request->next) {
    *bad = request;
    if (qp->state == IBV_QPS_RESET) return state_->Refuse(EINVAL, "PostRecv: in RESET");
    if (static_cast<uint32_t>(request->num_sge) > qp->cap.max_recv_sge) return EINVAL;
    if (qp->receives_posted - qp->receives_retired >= qp->cap.max_recv_wr) {
      return state_->Refuse(ENOMEM, "PostRecv: receive queue overrun");
    }
    ++qp->receives_posted;
    qp->receives.push_back(
        {request->wr_id, std::vector<ibv_sge>(request->sg_list, request->sg_list + request->num_sge)});
  }
  if (qp->state == IBV_QPS_ERR) state_->ToError(qp);
  state_->Pump();
  *bad = nullptr;
  return 0;
}

}  // namespace sluice::rdma::fake
