// Devices, domains, memory and completion queues: the verbs that hold objects.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rdma/fake/objects.h"

namespace sluice::rdma::fake {
namespace {

template <typename T>
T* Null(int error) {
  errno = error;
  return nullptr;
}

}  // namespace

ibv_device** Host::GetDeviceList(int* count) {
  std::lock_guard lock(state_->mutex);
  auto** list = new ibv_device*[state_->devices.size() + 1];
  int found = 0;
  for (const auto& device : state_->devices) {
    if (device->host == this) list[found++] = device.get();
  }
  list[found] = nullptr;
  if (count != nullptr) *count = found;
  return list;
}

void Host::FreeDeviceList(ibv_device** list) { delete[] list; }
const char* Host::GetDeviceName(ibv_device* device) { return device->name; }

ibv_context* Host::OpenDevice(ibv_device* device) {
  std::lock_guard lock(state_->mutex);
  auto* on = static_cast<FakeDevice*>(device);
  if (on->open_errno != 0) return Null<ibv_context>(on->open_errno);
  auto context = std::make_unique<FakeContext>();
  static_cast<ibv_context&>(*context) = {};
  context->device = device;
  context->on = on;
  context->async_fd = context->event.fd();
  context->cmd_fd = -1;
  context->num_comp_vectors = 1;
  ibv_context* key = context.get();
  state_->contexts.emplace(key, std::move(context));
  return key;
}

int Host::CloseDevice(ibv_context* context) {
  std::lock_guard lock(state_->mutex);
  if (state_->Get(state_->contexts, context, "CloseDevice") == nullptr) return EINVAL;
  const auto of = [context](const auto& all) {
    return std::any_of(all.begin(), all.end(),
                       [context](const auto& entry) { return entry.second->context == context; });
  };
  if (of(state_->domains) || of(state_->channels) || of(state_->queues)) {
    return state_->Refuse(EBUSY, "CloseDevice: has domains, channels or queues");
  }
  state_->contexts.erase(context);
  return 0;
}

int Host::QueryDevice(ibv_context* context, ibv_device_attr* out) {
  std::lock_guard lock(state_->mutex);
  const FakeContext* of = state_->Get(state_->contexts, context, "QueryDevice");
  if (of == nullptr) return EINVAL;
  const DeviceOptions& options = of->on->options;
  *out = {};
  out->max_qp = options.max_qp;
  out->max_qp_wr = options.max_qp_wr;
  out->max_cqe = options.max_cqe;
  out->max_cq = out->max_mr = out->max_pd = 1 << 16;
  out->max_sge = 4;
  out->max_mr_size = UINT64_MAX;
  out->max_qp_rd_atom = out->max_qp_init_rd_atom = 16;
  out->phys_port_cnt = options.ports;
  return 0;
}

int Host::QueryPort(ibv_context* context, uint8_t number, ibv_port_attr* out) {
  std::lock_guard lock(state_->mutex);
  const FakeContext* of = state_->Get(state_->contexts, context, "QueryPort");
  if (of == nullptr || number < 1 || number > of->on->port_list.size()) return EINVAL;
  const Port& port = *of->on->port_list[number - 1];
  const DeviceOptions& options = of->on->options;
  *out = {};
  out->state = port.up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  out->max_mtu = out->active_mtu = static_cast<ibv_mtu>(options.mtu);
  out->gid_tbl_len = static_cast<int>(port.gids.size());
  out->max_msg_sz = options.max_message;
  out->lid = port.lid;
  out->link_layer = options.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  return 0;
}

int Host::QueryGid(ibv_context* context, uint8_t number, int index, ibv_gid* out) {
  std::lock_guard lock(state_->mutex);
  const FakeContext* of = state_->Get(state_->contexts, context, "QueryGid");
  errno = EINVAL;
  if (of == nullptr || number < 1 || number > of->on->port_list.size()) return -1;
  const Port& port = *of->on->port_list[number - 1];
  if (index < 0 || static_cast<size_t>(index) >= port.gids.size()) return -1;
  std::memcpy(out->raw, port.gids[static_cast<size_t>(index)].data(), sizeof(out->raw));
  return 0;
}

int Host::GetAsyncEvent(ibv_context* context, ibv_async_event* out) {
  std::lock_guard lock(state_->mutex);
  FakeContext* of = state_->Get(state_->contexts, context, "GetAsyncEvent");
  errno = EAGAIN;
  if (of == nullptr || of->events.empty()) return -1;
  *out = of->events.front();
  of->events.pop_front();
  of->event.Set(!of->events.empty());
  if (out->event_type == IBV_EVENT_QP_ACCESS_ERR) ++static_cast<FakeQp*>(out->element.qp)->unacknowledged;
  return 0;
}

void Host::AckAsyncEvent(ibv_async_event* event) {
  std::lock_guard lock(state_->mutex);
  if (event->event_type != IBV_EVENT_QP_ACCESS_ERR) return;
  FakeQp* qp = state_->Get(state_->queue_pairs, event->element.qp, "AckAsyncEvent");
  if (qp != nullptr && qp->unacknowledged > 0) --qp->unacknowledged;
}

// --- Domains and memory ---

ibv_pd* Host::AllocPd(ibv_context* context) {
  std::lock_guard lock(state_->mutex);
  FakeContext* of = state_->Get(state_->contexts, context, "AllocPd");
  if (of == nullptr) return Null<ibv_pd>(EINVAL);
  auto pd = std::make_unique<FakePd>();
  static_cast<ibv_pd&>(*pd) = {};
  pd->context = context;
  pd->of = of;
  ibv_pd* key = pd.get();
  state_->domains.emplace(key, std::move(pd));
  return key;
}

int Host::DeallocPd(ibv_pd* pd) {
  std::lock_guard lock(state_->mutex);
  if (state_->Get(state_->domains, pd, "DeallocPd") == nullptr) return EINVAL;
  const auto in = [pd](const auto& all) {
    return std::any_of(all.begin(), all.end(), [pd](const auto& entry) { return entry.second->pd == pd; });
  };
  if (in(state_->regions) || in(state_->queue_pairs)) {
    return state_->Refuse(EBUSY, "DeallocPd: has memory regions or QPs");
  }
  state_->domains.erase(pd);
  return 0;
}

ibv_mr* Host::RegMr(ibv_pd* pd, void* address, size_t bytes, int access) {
  std::lock_guard lock(state_->mutex);
  FakePd* in = state_->Get(state_->domains, pd, "RegMr");
  if (in == nullptr || address == nullptr || bytes == 0) return Null<ibv_mr>(EINVAL);
  if ((access & IBV_ACCESS_REMOTE_WRITE) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return Null<ibv_mr>(EINVAL);
  auto& left = state_->faults[this].registrations;
  if (left.has_value() && *left == 0) return Null<ibv_mr>(ENOMEM);
  if (left.has_value()) --*left;
  auto mr = std::make_unique<FakeMr>();
  static_cast<ibv_mr&>(*mr) = {};
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = address;
  mr->length = bytes;
  mr->lkey = ++state_->last_key << 4;
  mr->rkey = mr->lkey | 1;  // two, so that nobody takes one for the other
  mr->in = in;
  mr->access = access;
  mr->begin = reinterpret_cast<uintptr_t>(address);
  mr->data = static_cast<std::byte*>(address);
  FakeMr* key = mr.get();
  state_->by_key[mr->lkey] = key;
  state_->by_key[mr->rkey] = key;
  state_->regions.emplace(static_cast<ibv_mr*>(key), std::move(mr));
  return key;
}

// The descriptor is of a file (memfd) that stands for the GPU's memory; peers see it at iova.
ibv_mr* Host::RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->faults[this].dmabuf) return Null<ibv_mr>(EOPNOTSUPP);
  }
  void* mapped = mmap(nullptr, offset + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return nullptr;
  ibv_mr* mr = RegMr(pd, static_cast<std::byte*>(mapped) + offset, bytes, access);
  if (mr == nullptr) {
    const int error = errno;
    munmap(mapped, offset + bytes);
    return Null<ibv_mr>(error);
  }
  std::lock_guard lock(state_->mutex);
  auto* fake = static_cast<FakeMr*>(mr);
  fake->begin = iova;
  fake->mapped = mapped;
  fake->mapped_bytes = offset + bytes;
  return mr;
}

int Host::DeregMr(ibv_mr* mr) {
  std::lock_guard lock(state_->mutex);
  FakeMr* fake = state_->Get(state_->regions, mr, "DeregMr");
  if (fake == nullptr) return EINVAL;
  state_->by_key.erase(fake->lkey);
  state_->by_key.erase(fake->rkey);
  if (fake->mapped != nullptr) munmap(fake->mapped, fake->mapped_bytes);
  state_->regions.erase(mr);
  return 0;
}

// --- Completion queues ---

ibv_comp_channel* Host::CreateCompChannel(ibv_context* context) {
  std::lock_guard lock(state_->mutex);
  if (state_->Get(state_->contexts, context, "CreateCompChannel") == nullptr) return Null<ibv_comp_channel>(EINVAL);
  auto channel = std::make_unique<FakeChannel>();
  static_cast<ibv_comp_channel&>(*channel) = {};
  channel->context = context;
  channel->fd = channel->event.fd();
  ibv_comp_channel* key = channel.get();
  state_->channels.emplace(key, std::move(channel));
  return key;
}

int Host::DestroyCompChannel(ibv_comp_channel* channel) {
  std::lock_guard lock(state_->mutex);
  if (state_->Get(state_->channels, channel, "DestroyCompChannel") == nullptr) return EINVAL;
  if (channel->refcnt != 0) return state_->Refuse(EBUSY, "DestroyCompChannel: has completion queues");
  state_->channels.erase(channel);
  return 0;
}

ibv_cq* Host::CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) {
  std::lock_guard lock(state_->mutex);
  FakeContext* of = state_->Get(state_->contexts, context, "CreateCq");
  FakeChannel* on = channel == nullptr ? nullptr : state_->Get(state_->channels, channel, "CreateCq");
  if (of == nullptr || (channel != nullptr && on == nullptr) || entries < 1 || entries > of->on->options.max_cqe) {
    return Null<ibv_cq>(EINVAL);
  }
  auto cq = std::make_unique<FakeCq>();
  static_cast<ibv_cq&>(*cq) = {};
  cq->context = context;
  cq->channel = channel;
  cq->cqe = entries;
  cq->of = of;
  cq->on = on;
  if (on != nullptr) ++on->refcnt;
  ibv_cq* key = cq.get();
  state_->queues.emplace(key, std::move(cq));
  return key;
}

int Host::DestroyCq(ibv_cq* cq) {
  std::lock_guard lock(state_->mutex);
  FakeCq* fake = state_->Get(state_->queues, cq, "DestroyCq");
  if (fake == nullptr) return EINVAL;
  for (const auto& [id, qp] : state_->by_id) {
    if (qp->send_cq == cq || qp->recv_cq == cq) return state_->Refuse(EBUSY, "DestroyCq: has QPs");
  }
  if (fake->unacknowledged != 0) return state_->Refuse(EBUSY, "DestroyCq: events not acknowledged (would hang)");
  if (fake->on != nullptr) {
    std::erase(fake->on->events, fake);
    fake->on->event.Set(!fake->on->events.empty());
    --fake->on->refcnt;
  }
  std::erase_if(fake->of->events, [cq](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq;
  });
  fake->of->event.Set(!fake->of->events.empty());
  state_->queues.erase(cq);
  return 0;
}

int Host::ReqNotifyCq(ibv_cq* cq, int) {
  std::lock_guard lock(state_->mutex);
  FakeCq* fake = state_->Get(state_->queues, cq, "ReqNotifyCq");
  if (fake == nullptr) return EINVAL;
  if (state_->faults[this].req_notify) return EIO;
  fake->armed = true;
  return 0;
}

int Host::GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) {
  std::lock_guard lock(state_->mutex);
  FakeChannel* fake = state_->Get(state_->channels, channel, "GetCqEvent");
  errno = EAGAIN;
  if (fake == nullptr || fake->events.empty()) return -1;
  FakeCq* of = fake->events.front();
  fake->events.pop_front();
  fake->event.Set(!fake->events.empty());
  ++of->unacknowledged;
  *cq = of;
  return 0;
}

void Host::AckCqEvents(ibv_cq* cq, unsigned count) {
  std::lock_guard lock(state_->mutex);
  FakeCq* fake = state_->Get(state_->queues, cq, "AckCqEvents");
  if (fake == nullptr) return;
  if (count > fake->unacknowledged) state_->misuses.push_back("AckCqEvents: more than there were");
  fake->unacknowledged -= std::min(count, fake->unacknowledged);
}

int Host::PollCq(ibv_cq* cq, int entries, ibv_wc* out) {
  std::lock_guard lock(state_->mutex);
  FakeCq* fake = state_->Get(state_->queues, cq, "PollCq");
  if (fake == nullptr) return -1;
  int count = 0;
  for (; count < entries && !fake->completions.empty(); ++count) {
    const Completion completion = fake->completions.front();
    fake->completions.pop_front();
    out[count] = completion.wc;
    if (completion.wc.status != IBV_WC_SUCCESS) {
      // What real devices leave undefined must not be relied on.
      out[count].opcode = static_cast<ibv_wc_opcode>(0x5a);
      out[count].byte_len = 0x5a5a5a5a;
    }
    auto qp = state_->by_id.find(completion.qp);
    if (qp == state_->by_id.end()) continue;
    if (completion.covers == 0) {
      ++qp->second->receives_retired;
    } else {
      qp->second->sends_retired = std::max(qp->second->sends_retired, completion.covers);
    }
  }
  return count == 0 && fake->overrun ? -1 : count;
}

}  // namespace sluice::rdma::fake
