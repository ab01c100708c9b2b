// The verbs that the transport uses, as an interface: libibverbs behind it in the product, a fabric in memory in tests
// (rdma/fake), and either with single calls replaced to make them fail.
//
// Calls mean what libibverbs says of the function of the same name; they return its results (0 or an errno value, a
// pointer or null with errno set). Thread-safe as libibverbs is: everything but the use of one queue by two threads.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace sluice::rdma {

class Verbs {
 public:
  virtual ~Verbs() = default;

  virtual ibv_device** GetDeviceList(int* count) = 0;
  virtual void FreeDeviceList(ibv_device** list) = 0;
  virtual const char* GetDeviceName(ibv_device* device) = 0;
  virtual ibv_context* OpenDevice(ibv_device* device) = 0;
  virtual int CloseDevice(ibv_context* context) = 0;
  virtual int QueryDevice(ibv_context* context, ibv_device_attr* out) = 0;
  virtual int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* out) = 0;
  virtual int QueryGid(ibv_context* context, uint8_t port, int index, ibv_gid* out) = 0;
  // For context->async_fd: one event, or -1 with errno EAGAIN (the descriptor is made non-blocking by its owner).
  virtual int GetAsyncEvent(ibv_context* context, ibv_async_event* out) = 0;
  virtual void AckAsyncEvent(ibv_async_event* event) = 0;

  virtual ibv_pd* AllocPd(ibv_context* context) = 0;
  virtual int DeallocPd(ibv_pd* pd) = 0;
  virtual ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) = 0;
  // GPU memory: descriptor fd of a dmabuf, bytes from offset, which peers name by iova. ENOTSUP: the library is too
  // old.
  virtual ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access) = 0;
  virtual int DeregMr(ibv_mr* mr) = 0;

  virtual ibv_comp_channel* CreateCompChannel(ibv_context* context) = 0;
  virtual int DestroyCompChannel(ibv_comp_channel* channel) = 0;
  virtual ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) = 0;
  virtual int DestroyCq(ibv_cq* cq) = 0;
  virtual int ReqNotifyCq(ibv_cq* cq, int solicited_only) = 0;
  virtual int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) = 0;  // -1 with errno EAGAIN: none
  virtual void AckCqEvents(ibv_cq* cq, unsigned count) = 0;
  virtual int PollCq(ibv_cq* cq, int entries, ibv_wc* out) = 0;

  virtual ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) = 0;
  virtual int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = 0;
  virtual int DestroyQp(ibv_qp* qp) = 0;
  virtual int PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) = 0;
  virtual int PostRecv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) = 0;
};

// libibverbs.so.1, loaded when this is called, so that the daemons run on machines without it; it stays loaded, as its
// providers may have threads of their own. NOT_FOUND says which packages to install. FAILED_PRECONDITION: it lacks a
// function.
absl::StatusOr<std::unique_ptr<Verbs>> LoadVerbs();

}  // namespace sluice::rdma
