// How work requests run. One piece of one QP at a time:
//   1. Resolve: is there a way to the peer, and is the peer ready?
//   2. a write's next bytes are checked and copied;
//   3. a send, or a write's notice, takes a receive of the peer;
//   4. the acknowledgement needs the way back; the sender's completion.
#include <algorithm>
#include <cstring>

#include "rdma/fake/objects.h"

namespace sluice::rdma::fake {

struct State::Path {
  enum class Kind { kReady, kWait, kFail } kind = Kind::kFail;
  ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;
  FakeQp* peer = nullptr;
  Kind back = Kind::kReady;  // of the acknowledgement
};

FakeQp* State::FindQp(const FakeDevice* device, uint32_t number) const {
  for (const auto& [id, qp] : by_id) {
    if (qp->of->on == device && qp->qp_num == number) return qp;
  }
  return nullptr;
}

FakeMr* State::FindMr(uint32_t key, bool remote, const FakePd* pd, uint64_t address, size_t bytes, int access) const {
  auto found = by_key.find(key);
  if (found == by_key.end()) return nullptr;
  FakeMr* mr = found->second;
  if (key != (remote ? mr->rkey : mr->lkey) || mr->in != pd || (mr->access & access) != access) return nullptr;
  if (address < mr->begin || address - mr->begin > mr->length || bytes > mr->length - (address - mr->begin)) {
    return nullptr;
  }
  return mr;
}

void State::Complete(FakeQp* qp, FakeCq* cq, const ibv_wc& wc, uint64_t covers) {
  if (cq->overrun) return;
  if (cq->completions.size() >= static_cast<size_t>(cq->cqe)) {
    cq->overrun = true;
    ibv_async_event event{};
    event.element.cq = cq;
    event.event_type = IBV_EVENT_CQ_ERR;
    AddEvent(cq->of, event);
    for (const auto& [id, other] : by_id) {
      if (other->sends_to == cq || other->receives_to == cq) ToError(other);
    }
    return;
  }
  Completion completion{wc, qp->id, covers};
  completion.wc.qp_num = qp->qp_num;
  cq->completions.push_back(completion);
  if (!cq->armed || cq->on == nullptr) return;
  cq->armed = false;
  cq->on->events.push_back(cq);
  cq->on->event.Set(true);
}

void State::ToError(FakeQp* qp) {
  qp->state = qp->now.qp_state = IBV_QPS_ERR;
  while (!qp->sends.empty()) {
    const SendWork work = std::move(qp->sends.front());
    qp->sends.pop_front();
    ibv_wc wc{};
    wc.wr_id = work.request.wr_id;
    wc.status = IBV_WC_WR_FLUSH_ERR;
    Complete(qp, qp->sends_to, wc, work.number);
  }
  while (!qp->receives.empty()) {
    ibv_wc wc{};
    wc.wr_id = qp->receives.front().id;
    wc.status = IBV_WC_WR_FLUSH_ERR;
    wc.opcode = IBV_WC_RECV;
    qp->receives.pop_front();
    Complete(qp, qp->receives_to, wc, 0);
  }
}

void State::Fail(FakeQp* qp, ibv_wc_status status) {
  if (qp->sends.empty()) return;  // flushed already: its own peer, or a completion queue that overran
  const SendWork work = std::move(qp->sends.front());
  qp->sends.pop_front();
  ibv_wc wc{};
  wc.wr_id = work.request.wr_id;
  wc.status = status;
  wc.vendor_err = 0x80;
  Complete(qp, qp->sends_to, wc, work.number);
  ToError(qp);
}

State::Path State::Resolve(FakeQp* qp) {
  using Kind = Path::Kind;
  Path path;
  const Port* from = qp->of->on->port_list[qp->now.port_num - 1].get();
  if (!from->up) {
    path.status = IBV_WC_LOC_QP_OP_ERR;  // what Soft-RoCE says
    return path;
  }
  const ibv_ah_attr& way = qp->now.ah_attr;
  if (way.is_global && from->gids[way.grh.sgid_index] != qp->source) return path;
  Port* to = nullptr;
  for (const auto& device : devices) {
    for (const auto& port : device->port_list) {
      const bool named = way.is_global
                             ? std::any_of(port->gids.begin(), port->gids.end(),
                                           [&](const Gid& gid) {
                                             return !IsZero(gid) && std::memcmp(gid.data(), way.grh.dgid.raw, 16) == 0;
                                           })
                             : port->lid != 0 && port->lid == way.dlid;
      if (named && to == nullptr) to = port.get();
    }
  }
  if (to == nullptr || !to->up) return path;
  if (auto cut = cuts.find({from, to}); cut != cuts.end()) {
    path.kind = cut->second == Cut::kSilent ? Kind::kWait : Kind::kFail;
    return path;
  }
  if (auto cut = cuts.find({to, from}); cut != cuts.end()) {
    path.back = cut->second == Cut::kSilent ? Kind::kWait : Kind::kFail;
  }
  FakeQp* peer = FindQp(to->device, qp->now.dest_qp_num);
  if (peer == nullptr) return path;
  if (peer->state == IBV_QPS_INIT) {
    path.kind = Kind::kWait;
    return path;
  }
  if (peer->state != IBV_QPS_RTR && peer->state != IBV_QPS_RTS) return path;
  if (peer->now.dest_qp_num != qp->qp_num || peer->now.rq_psn != qp->now.sq_psn) return path;
  path.kind = Kind::kReady;
  path.peer = peer;
  return path;
}

std::optional<std::vector<std::byte>> State::Gather(FakeQp* qp, const SendWork& work, size_t offset,
                                                    size_t bytes) const {
  if (work.is_inline) {
    return std::vector<std::byte>(work.inlined.begin() + static_cast<ptrdiff_t>(offset),
                                  work.inlined.begin() + static_cast<ptrdiff_t>(offset + bytes));
  }
  std::vector<std::byte> gathered;
  gathered.reserve(bytes);
  for (const ibv_sge& piece : work.memory) {
    const FakeMr* mr = FindMr(piece.lkey, false, qp->in, piece.addr, piece.length, 0);
    if (mr == nullptr) return std::nullopt;
    if (offset >= piece.length) {
      offset -= piece.length;
      continue;
    }
    const size_t some = std::min<size_t>(piece.length - offset, bytes - gathered.size());
    const std::byte* data = mr->data + (piece.addr - mr->begin) + offset;
    gathered.insert(gathered.end(), data, data + some);
    offset = 0;
    if (gathered.size() == bytes) break;
  }
  return gathered;
}

// The next piece. An error is the sender's status.
std::optional<ibv_wc_status> State::MoveWrite(FakeQp* qp, SendWork* work, FakeQp* peer) {
  const size_t bytes = std::min(work->bytes - work->moved, qp->of->on->options.bytes_per_step);
  const auto data = Gather(qp, *work, work->moved, bytes);
  if (!data.has_value()) return IBV_WC_LOC_PROT_ERR;
  const uint64_t address = work->request.wr.rdma.remote_addr;
  // All of it must be allowed, not only this piece; and still be, with each piece.
  const FakeMr* mr = FindMr(work->request.wr.rdma.rkey, true, peer->in, address, work->bytes, IBV_ACCESS_REMOTE_WRITE);
  if (mr == nullptr || (peer->now.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) {
    ibv_async_event event{};
    event.element.qp = peer;
    event.event_type = IBV_EVENT_QP_ACCESS_ERR;
    AddEvent(peer->of, event);
    ToError(peer);
    return IBV_WC_REM_ACCESS_ERR;
  }
  std::memcpy(mr->data + (address - mr->begin) + work->moved, data->data(), data->size());
  work->moved += bytes;
  return std::nullopt;
}

// Takes a receive of the peer. kNothing: it has none, wait.
Ran State::Deliver(FakeQp* qp, SendWork* work, FakeQp* peer) {
  if (peer->receives.empty()) {
    if (qp->now.rnr_retry == 7) return Ran::kNothing;
    if (qp->not_ready_tries++ < qp->now.rnr_retry && options.mode == Mode::kStepped) return Ran::kSome;
    Fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
    return Ran::kSome;
  }
  qp->not_ready_tries = 0;
  const bool send = work->request.opcode == IBV_WR_SEND || work->request.opcode == IBV_WR_SEND_WITH_IMM;
  const bool immediate = work->request.opcode != IBV_WR_SEND;
  ibv_wc wc{};
  wc.opcode = send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  wc.byte_len = static_cast<uint32_t>(work->bytes);
  wc.src_qp = qp->qp_num;
  if (immediate) {
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = work->request.imm_data;
  }
  std::optional<std::vector<std::byte>> data;
  if (send) {
    data = Gather(qp, *work, 0, work->bytes);
    if (!data.has_value()) {
      Fail(qp, IBV_WC_LOC_PROT_ERR);
      return Ran::kSome;
    }
  }
  const ReceiveWork receive = std::move(peer->receives.front());
  peer->receives.pop_front();
  wc.wr_id = receive.id;
  size_t at = 0;
  if (send) {
    for (const ibv_sge& piece : receive.memory) {
      const FakeMr* mr = FindMr(piece.lkey, false, peer->in, piece.addr, piece.length, IBV_ACCESS_LOCAL_WRITE);
      if (mr == nullptr) {
        wc.status = IBV_WC_LOC_PROT_ERR;
        break;
      }
      const size_t some = std::min<size_t>(piece.length, data->size() - at);
      if (some != 0) std::memcpy(mr->data + (piece.addr - mr->begin), data->data() + at, some);
      at += some;
    }
    if (wc.status == IBV_WC_SUCCESS && at < data->size()) wc.status = IBV_WC_LOC_LEN_ERR;
  }
  Complete(peer, peer->receives_to, wc, 0);
  if (qp->sends.empty()) return Ran::kSome;  // the completion queue overran and took this QP along
  if (wc.status != IBV_WC_SUCCESS) {
    ToError(peer);
    Fail(qp, wc.status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR);
    return Ran::kSome;
  }
  work->delivered = true;
  return Ran::kSome;
}

Ran State::RunOne(FakeQp* qp) {
  if (qp->state != IBV_QPS_RTS || qp->sends.empty() || qp->hang || qp->of->on->all_hang) return Ran::kNothing;
  SendWork* work = &qp->sends.front();
  const Path path = Resolve(qp);
  const bool waits = path.kind == Path::Kind::kWait || (work->delivered && path.back == Path::Kind::kWait);
  if (path.kind == Path::Kind::kFail || (waits && expiring)) {
    Fail(qp, path.status);
    return Ran::kSome;
  }
  if (waits) return Ran::kNothing;

  const auto opcode = work->request.opcode;
  const bool write = opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (!work->delivered) {
    if (write && work->moved < work->bytes) {
      if (auto bad = MoveWrite(qp, work, path.peer); bad.has_value()) {
        Fail(qp, *bad);
        return Ran::kSome;
      }
      if (work->moved < work->bytes) return Ran::kSome;
    }
    if (opcode == IBV_WR_RDMA_WRITE) {
      work->delivered = true;
    } else {
      const Ran ran = Deliver(qp, work, path.peer);
      // The queue may have overrun, which flushes everything.
      if (ran == Ran::kNothing || qp->sends.empty() || &qp->sends.front() != work || !work->delivered) return ran;
    }
  }
  if (path.back == Path::Kind::kFail) {
    Fail(qp, path.status);
    return Ran::kSome;
  }
  if (path.back == Path::Kind::kWait) return Ran::kSome;  // once: delivered, now it waits

  const SendWork done = std::move(*work);
  qp->sends.pop_front();
  if (!qp->signal_all && (done.request.send_flags & IBV_SEND_SIGNALED) == 0) return Ran::kSome;
  if (qp->lose || qp->of->on->all_lose) return Ran::kSome;
  ibv_wc wc{};
  wc.wr_id = done.request.wr_id;
  wc.opcode = write ? IBV_WC_RDMA_WRITE : IBV_WC_SEND;
  wc.byte_len = static_cast<uint32_t>(done.bytes);
  Complete(qp, qp->sends_to, wc, done.number);
  return Ran::kSome;
}

void State::RunAll() {
  for (bool some = true; some;) {
    some = false;
    for (const auto& [id, qp] : by_id) {
      while (RunOne(qp) == Ran::kSome) some = true;
    }
  }
}

void State::Pump() {
  if (options.mode == Mode::kImmediate) RunAll();
}

}  // namespace sluice::rdma::fake
