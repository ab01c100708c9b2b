// libibverbs by dlopen. Half of infiniband/verbs.h is inline: what goes through context->ops (posting, polling, arming)
// needs no symbol; ibv_query_port and ibv_reg_mr are macros round functions of several ages, and are written out here.
#include <dlfcn.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "rdma/verbs.h"

namespace sluice::rdma {
namespace {

constexpr char kLibrary[] = "libibverbs.so.1";

// The header turns these names into macros that call the library, which nothing here links.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

struct Functions {
  decltype(&::ibv_get_device_list) get_device_list;
  decltype(&::ibv_free_device_list) free_device_list;
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_open_device) open_device;
  decltype(&::ibv_close_device) close_device;
  decltype(&::ibv_query_device) query_device;
  decltype(&::ibv_query_port) query_port;
  decltype(&::ibv_query_gid) query_gid;
  decltype(&::ibv_get_async_event) get_async_event;
  decltype(&::ibv_ack_async_event) ack_async_event;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  decltype(&::ibv_reg_mr) reg_mr;
  decltype(&::ibv_reg_mr_iova2) reg_mr_iova2;    // null before rdma-core 28
  decltype(&::ibv_reg_dmabuf_mr) reg_dmabuf_mr;  // null before rdma-core 34
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_create_comp_channel) create_comp_channel;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_destroy_cq) destroy_cq;
  decltype(&::ibv_get_cq_event) get_cq_event;
  decltype(&::ibv_ack_cq_events) ack_cq_events;
  decltype(&::ibv_create_qp) create_qp;
  decltype(&::ibv_modify_qp) modify_qp;
  decltype(&::ibv_destroy_qp) destroy_qp;
};

class LibraryVerbs final : public Verbs {
 public:
  explicit LibraryVerbs(const Functions& functions) : f_(functions) {}

  ibv_device** GetDeviceList(int* count) override { return f_.get_device_list(count); }
  void FreeDeviceList(ibv_device** list) override { f_.free_device_list(list); }
  const char* GetDeviceName(ibv_device* device) override { return f_.get_device_name(device); }
  ibv_context* OpenDevice(ibv_device* device) override { return f_.open_device(device); }
  int CloseDevice(ibv_context* context) override { return f_.close_device(context); }
  int QueryDevice(ibv_context* context, ibv_device_attr* out) override { return f_.query_device(context, out); }

  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* out) override {
    *out = {};
    // The function of the library fills the shorter structure of old; the provider's operation knows the size.
    verbs_context* provider = verbs_get_ctx_op(context, query_port);
    if (provider != nullptr) return provider->query_port(context, port, out, sizeof(*out));
    return f_.query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(out));
  }

  int QueryGid(ibv_context* context, uint8_t port, int index, ibv_gid* out) override {
    return f_.query_gid(context, port, index, out);
  }
  int GetAsyncEvent(ibv_context* context, ibv_async_event* out) override { return f_.get_async_event(context, out); }
  void AckAsyncEvent(ibv_async_event* event) override { f_.ack_async_event(event); }

  ibv_pd* AllocPd(ibv_context* context) override { return f_.alloc_pd(context); }
  int DeallocPd(ibv_pd* pd) override { return f_.dealloc_pd(pd); }

  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    // Optional rights (relaxed ordering) are what a device may ignore; ibv_reg_mr refuses them.
    const int optional = static_cast<int>(IBV_ACCESS_OPTIONAL_RANGE);
    if ((access & optional) != 0 && f_.reg_mr_iova2 != nullptr) {
      return f_.reg_mr_iova2(pd, address, bytes, reinterpret_cast<uintptr_t>(address), static_cast<unsigned>(access));
    }
    return f_.reg_mr(pd, address, bytes, access & ~optional);
  }
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access) override {
    if (f_.reg_dmabuf_mr == nullptr) {
      errno = ENOTSUP;
      return nullptr;
    }
    return f_.reg_dmabuf_mr(pd, offset, bytes, iova, fd, access);
  }
  int DeregMr(ibv_mr* mr) override { return f_.dereg_mr(mr); }

  ibv_comp_channel* CreateCompChannel(ibv_context* context) override { return f_.create_comp_channel(context); }
  int DestroyCompChannel(ibv_comp_channel* channel) override { return f_.destroy_comp_channel(channel); }
  ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) override {
    return f_.create_cq(context, entries, nullptr, channel, 0);
  }
  int DestroyCq(ibv_cq* cq) override { return f_.destroy_cq(cq); }
  int ReqNotifyCq(ibv_cq* cq, int solicited_only) override {
    return cq->context->ops.req_notify_cq(cq, solicited_only);
  }
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override {
    void* cq_context = nullptr;
    return f_.get_cq_event(channel, cq, &cq_context);
  }
  void AckCqEvents(ibv_cq* cq, unsigned count) override { f_.ack_cq_events(cq, count); }
  int PollCq(ibv_cq* cq, int entries, ibv_wc* out) override { return cq->context->ops.poll_cq(cq, entries, out); }

  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) override { return f_.create_qp(pd, attributes); }
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override { return f_.modify_qp(qp, attributes, mask); }
  int DestroyQp(ibv_qp* qp) override { return f_.destroy_qp(qp); }
  int PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) override {
    return qp->context->ops.post_send(qp, first, bad);
  }
  int PostRecv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) override {
    return qp->context->ops.post_recv(qp, first, bad);
  }

 private:
  const Functions f_;
};

class Loader {
 public:
  explicit Loader(void* library) : library_(library) {}

  template <typename F>
  void Need(const char* name, F* out) {
    May(name, out);
    if (*out == nullptr && missing_.empty()) missing_ = name;
  }
  template <typename F>
  void May(const char* name, F* out) {
    *out = reinterpret_cast<F>(dlsym(library_, name));
  }
  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Verbs>> LoadVerbs() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = dlerror();
    return absl::NotFoundError(absl::StrCat(kLibrary, " cannot be loaded (", why != nullptr ? why : "no reason given",
                                            "); for RDMA install libibverbs1 and ibverbs-providers (Debian, Ubuntu) "
                                            "or libibverbs (Fedora, RHEL)"));
  }
  Functions f{};
  Loader loader(library);
  loader.Need("ibv_get_device_list", &f.get_device_list);
  loader.Need("ibv_free_device_list", &f.free_device_list);
  loader.Need("ibv_get_device_name", &f.get_device_name);
  loader.Need("ibv_open_device", &f.open_device);
  loader.Need("ibv_close_device", &f.close_device);
  loader.Need("ibv_query_device", &f.query_device);
  loader.Need("ibv_query_port", &f.query_port);
  loader.Need("ibv_query_gid", &f.query_gid);
  loader.Need("ibv_get_async_event", &f.get_async_event);
  loader.Need("ibv_ack_async_event", &f.ack_async_event);
  loader.Need("ibv_alloc_pd", &f.alloc_pd);
  loader.Need("ibv_dealloc_pd", &f.dealloc_pd);
  loader.Need("ibv_reg_mr", &f.reg_mr);
  loader.May("ibv_reg_mr_iova2", &f.reg_mr_iova2);
  loader.May("ibv_reg_dmabuf_mr", &f.reg_dmabuf_mr);
  loader.Need("ibv_dereg_mr", &f.dereg_mr);
  loader.Need("ibv_create_comp_channel", &f.create_comp_channel);
  loader.Need("ibv_destroy_comp_channel", &f.destroy_comp_channel);
  loader.Need("ibv_create_cq", &f.create_cq);
  loader.Need("ibv_destroy_cq", &f.destroy_cq);
  loader.Need("ibv_get_cq_event", &f.get_cq_event);
  loader.Need("ibv_ack_cq_events", &f.ack_cq_events);
  loader.Need("ibv_create_qp", &f.create_qp);
  loader.Need("ibv_modify_qp", &f.modify_qp);
  loader.Need("ibv_destroy_qp", &f.destroy_qp);
  if (!loader.missing().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(kLibrary, " has no function ", loader.missing(),
                                                      ": it is too old or another library of that name; install "
                                                      "libibverbs1 of rdma-core"));
  }
  return std::make_unique<LibraryVerbs>(f);
}

}  // namespace sluice::rdma
