// A fabric in memory for tests: hosts with RDMA devices, each host seen through rdma/verbs.h.
//
//   fake::Fabric fabric;
//   fake::Host& a = fabric.AddHost("a");
//   fake::Host& b = fabric.AddHost("b");
//   a.AddDevice({.name = "fake0", .address = "10.0.0.1"});
//   b.AddDevice({.name = "fake0", .address = "10.0.0.2"});
//   auto context = rdma::Context::Open(&a, a.RailOf("fake0"), {});
//
// Work requests run on the thread of whoever makes them able to: at once when they are posted (Mode::kImmediate; two
// event loops in one test just work), or when the test says so (kStepped: Step picks QPs at random by the seed, and a
// WRITE lands in pieces). Nothing runs by itself: no threads, no clock.
//
// It is as strict as hardware, or stricter: states of QPs and their attributes, keys and rights at the moment of each
// piece, receives, room in queues (a send queue's slots come back only when a completion that covers them was polled),
// packet sequence numbers of both ends, flushes, broken peers. What real libraries answer by hanging or by undefined
// behaviour (destroying what is in use, naming what was destroyed) is refused and noted in misuses().
//
// Faults are methods of Fabric and Host. Thread-safe; one lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "rdma/device.h"
#include "rdma/verbs.h"

namespace sluice::rdma::fake {

class Host;
struct State;

enum class Mode { kImmediate, kStepped };

struct FabricOptions {
  Mode mode = Mode::kImmediate;
  uint64_t seed = 1;
  bool reuse_qp_numbers = false;  // the smallest that is free, as some devices do
};

struct DeviceOptions {
  std::string name = "fake0";
  std::string address = "10.0.0.1";  // IPv4: GID 1 (RoCE v1) and 2 (RoCE v2); GID 0 is link-local
  std::string netdev;                // empty: the name with "eth" before it
  uint32_t netdev_mtu = 4200;
  bool infiniband = false;  // then there is one GID, and a LID
  uint8_t ports = 1;        // further ones have the address with its last byte counted up
  uint8_t mtu = 5;          // ibv_mtu, active and largest
  uint32_t max_message = 1 << 30;
  uint32_t max_inline = 512;
  bool refuse_inline = true;  // more is refused with EINVAL; else less is granted
  int max_qp = 1024;
  int max_qp_wr = 4096;
  int max_cqe = 65536;
  size_t bytes_per_step = SIZE_MAX;  // a slow device moves little in a step
};

// kFail: work requests end with RETRY_EXC at the first try. kSilent: they wait until the path is mended, or until
// ExpireRetries.
enum class Cut { kFail, kSilent };

struct Live {
  size_t contexts = 0, domains = 0, regions = 0, channels = 0, queues = 0, queue_pairs = 0;
  bool operator==(const Live&) const = default;
};

struct PortName {
  Host* host = nullptr;
  std::string device = "fake0";
  uint8_t port = 1;
};

class Fabric {
 public:
  explicit Fabric(const FabricOptions& options = {});
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  Host& AddHost(const std::string& name);

  // kImmediate runs what is pending.
  void SetMode(Mode mode);
  // Up to n pieces of work, each of a QP picked at random among those that can go on; returns how many there were.
  size_t Step(size_t n = 1);
  // Everything that can run.
  void Run();

  // Both ways. One way cuts the data of `from` and the acknowledgements for `to`: what `to` sends to `from` lands, but
  // ends badly all the same.
  void CutPath(const PortName& a, const PortName& b, Cut cut = Cut::kFail);
  void CutOneWay(const PortName& from, const PortName& to, Cut cut = Cut::kFail);
  void MendPath(const PortName& a, const PortName& b);
  // Everything that waits for a peer that does not answer (silent cuts, peers that are not ready) ends with RETRY_EXC.
  void ExpireRetries();

  // IBV_EVENT_PORT_ERR on every context of the device; sends end badly, with the status that Soft-RoCE gives.
  void PortDown(const PortName& port);
  // IBV_EVENT_PORT_ACTIVE. With another address the GIDs change (IBV_EVENT_GID_CHANGE), and QPs made before lead
  // nowhere.
  void PortUp(const PortName& port, const std::string& address = "");

  Live live() const;
  std::vector<std::string> misuses() const;

 private:
  friend class Host;
  std::unique_ptr<State> state_;
};

// The verbs of one host, and its faults.
class Host final : public Verbs {
 public:
  ~Host() override;

  void AddDevice(const DeviceOptions& options);
  // As ChooseRails would choose it: GID 2.
  Rail RailOf(const std::string& device, uint8_t port = 1) const;
  // What GatherFacts reads, below a folder that is there: GID tables, rates, counters, interfaces.
  void WriteSysfs(const std::string& root) const;
  std::map<std::string, std::vector<Gid>> Addresses() const;

  // RegMr and RegDmabufMr: the next n succeed, then ENOMEM. nullopt: no limit.
  void LimitRegistrations(std::optional<size_t> n);
  void FailDmabuf(bool fail);                           // EOPNOTSUPP
  void FailReqNotify(bool fail);                        // EIO
  void FailPostSendAfter(std::optional<size_t> n);      // the next n work requests are taken, then ENOMEM
  void FailOpen(const std::string& device, int error);  // 0: works
  void SetInline(const std::string& device, uint32_t max, bool refuse);
  void SetBytesPerStep(const std::string& device, size_t bytes);
  // qp_number 0: all QPs of the device. Work requests do not run; a flush takes them.
  void Hang(const std::string& device, uint32_t qp_number, bool hang = true);
  // Sends run, and their completions are lost.
  void LoseCompletions(const std::string& device, uint32_t qp_number, bool lose = true);

  // Verbs:
  ibv_device** GetDeviceList(int* count) override;
  void FreeDeviceList(ibv_device** list) override;
  const char* GetDeviceName(ibv_device* device) override;
  ibv_context* OpenDevice(ibv_device* device) override;
  int CloseDevice(ibv_context* context) override;
  int QueryDevice(ibv_context* context, ibv_device_attr* out) override;
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* out) override;
  int QueryGid(ibv_context* context, uint8_t port, int index, ibv_gid* out) override;
  int GetAsyncEvent(ibv_context* context, ibv_async_event* out) override;
  void AckAsyncEvent(ibv_async_event* event) override;
  ibv_pd* AllocPd(ibv_context* context) override;
  int DeallocPd(ibv_pd* pd) override;
  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override;
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access) override;
  int DeregMr(ibv_mr* mr) override;
  ibv_comp_channel* CreateCompChannel(ibv_context* context) override;
  int DestroyCompChannel(ibv_comp_channel* channel) override;
  ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) override;
  int DestroyCq(ibv_cq* cq) override;
  int ReqNotifyCq(ibv_cq* cq, int solicited_only) override;
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override;
  void AckCqEvents(ibv_cq* cq, unsigned count) override;
  int PollCq(ibv_cq* cq, int entries, ibv_wc* out) override;
  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) override;
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override;
  int DestroyQp(ibv_qp* qp) override;
  int PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) override;
  int PostRecv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) override;

 private:
  friend class Fabric;
  Host(State* state, const std::string& name) : state_(state), name_(name) {}
  State* const state_;
  const std::string name_;
};

}  // namespace sluice::rdma::fake
