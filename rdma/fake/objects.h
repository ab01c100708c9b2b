// The fabric's insides: what stands behind each pointer of the verbs. All of it is guarded by State::mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "rdma/fake/fabric.h"

namespace sluice::rdma::fake {

struct FakeDevice;

struct Port {
  FakeDevice* device = nullptr;
  uint8_t number = 1;
  bool up = true;
  uint16_t lid = 0;
  std::string address;
  std::vector<Gid> gids;
  std::vector<GidType> types;
};

struct FakeDevice : ibv_device {
  Host* host = nullptr;
  DeviceOptions options;
  std::vector<std::unique_ptr<Port>> port_list;
  int open_errno = 0;
  uint32_t last_qp_number = 16;
  bool all_hang = false, all_lose = false;
};

// A descriptor that is readable while there are events.
class EventDescriptor {
 public:
  EventDescriptor();
  ~EventDescriptor();
  int fd() const { return fd_; }
  void Set(bool readable);

 private:
  int fd_;
  bool readable_ = false;
};

struct FakeContext : ibv_context {
  FakeDevice* on = nullptr;
  EventDescriptor event;
  std::deque<ibv_async_event> events;
};

struct FakePd : ibv_pd {
  FakeContext* of = nullptr;
};

struct FakeMr : ibv_mr {
  FakePd* in = nullptr;
  int access = 0;
  uint64_t begin = 0;         // as peers and work requests name it
  std::byte* data = nullptr;  // where it is
  void* mapped = nullptr;     // of a dmabuf
  size_t mapped_bytes = 0;
};

struct FakeCq;

struct FakeChannel : ibv_comp_channel {
  EventDescriptor event;
  std::deque<FakeCq*> events;
};

struct Completion {
  ibv_wc wc;
  uint64_t qp = 0;      // FakeQp::id
  uint64_t covers = 0;  // sends up to this one, counted from 1; 0 = a receive
};

struct FakeCq : ibv_cq {
  FakeContext* of = nullptr;
  FakeChannel* on = nullptr;
  std::deque<Completion> completions;
  bool armed = false;
  bool overrun = false;
  unsigned unacknowledged = 0;
};

struct SendWork {
  uint64_t number = 0;  // counted from 1
  ibv_send_wr request;
  std::vector<ibv_sge> memory;
  std::vector<std::byte> inlined;
  bool is_inline = false;
  size_t bytes = 0;
  size_t moved = 0;        // of a write
  bool delivered = false;  // waits for its acknowledgement only
};

struct ReceiveWork {
  uint64_t id = 0;
  std::vector<ibv_sge> memory;
};

struct FakeQp : ibv_qp {
  uint64_t id = 0;  // never reused
  FakeContext* of = nullptr;
  FakePd* in = nullptr;
  FakeCq* sends_to = nullptr;
  FakeCq* receives_to = nullptr;
  ibv_qp_cap cap{};
  bool signal_all = false;
  ibv_qp_attr now{};  // as far as it was set
  Gid source{};       // GID at its index when the QP became ready
  std::deque<SendWork> sends;
  std::deque<ReceiveWork> receives;
  uint64_t sends_posted = 0, sends_retired = 0;
  uint64_t receives_posted = 0, receives_retired = 0;
  unsigned unacknowledged = 0;
  uint32_t not_ready_tries = 0;
  bool hang = false, lose = false;
};

struct HostFaults {
  std::optional<size_t> registrations;
  std::optional<size_t> post_sends;
  bool dmabuf = false;
  bool req_notify = false;
};

enum class Ran { kNothing, kSome };

struct State {
  explicit State(const FabricOptions& o) : options(o), random(o.seed) {}

  mutable std::mutex mutex;
  FabricOptions options;
  std::mt19937_64 random;
  std::vector<std::unique_ptr<Host>> hosts;
  std::map<const Host*, HostFaults> faults;
  std::vector<std::unique_ptr<FakeDevice>> devices;
  std::map<std::pair<const Port*, const Port*>, Cut> cuts;  // (from, to)
  std::vector<std::string> misuses;
  uint64_t last_id = 0;
  uint32_t last_key = 0x1000;
  bool expiring = false;

  std::map<const void*, std::unique_ptr<FakeContext>> contexts;
  std::map<const void*, std::unique_ptr<FakePd>> domains;
  std::map<const void*, std::unique_ptr<FakeMr>> regions;
  std::map<uint32_t, FakeMr*> by_key;
  std::map<const void*, std::unique_ptr<FakeChannel>> channels;
  std::map<const void*, std::unique_ptr<FakeCq>> queues;
  std::map<const void*, std::unique_ptr<FakeQp>> queue_pairs;
  std::map<uint64_t, FakeQp*> by_id;  // in the order of creation

  // Null, and a note, if there is no such object (any more).
  template <typename Fake>
  Fake* Get(const std::map<const void*, std::unique_ptr<Fake>>& all, const void* key, const char* what) {
    auto found = all.find(key);
    if (found != all.end()) return found->second.get();
    misuses.push_back(std::string(what) + ": no such object, or destroyed");
    return nullptr;
  }
  int Refuse(int error, const std::string& why) {
    misuses.push_back(why);
    return error;
  }

  // fabric.cc
  FakeDevice* DeviceOf(const Host* host, const std::string& name) const;
  Port* PortOf(const PortName& name) const;
  void AddEvent(FakeContext* context, const ibv_async_event& event);
  void PortEvent(const Port& port, ibv_event_type type);

  // engine.cc
  void Pump();  // in immediate mode
  void RunAll();
  Ran RunOne(FakeQp* qp);
  void Complete(FakeQp* qp, FakeCq* cq, const ibv_wc& wc, uint64_t covers);
  void ToError(FakeQp* qp);
  void Fail(FakeQp* qp, ibv_wc_status status);
  FakeQp* FindQp(const FakeDevice* device, uint32_t number) const;
  FakeMr* FindMr(uint32_t key, bool remote, const FakePd* pd, uint64_t address, size_t bytes, int access) const;

 private:
  struct Path;
  Path Resolve(FakeQp* qp);
  std::optional<ibv_wc_status> MoveWrite(FakeQp* qp, SendWork* work, FakeQp* peer);
  Ran Deliver(FakeQp* qp, SendWork* work, FakeQp* peer);
  std::optional<std::vector<std::byte>> Gather(FakeQp* qp, const SendWork& work, size_t offset, size_t bytes) const;
};

Gid MappedGid(const std::string& ipv4);

}  // namespace sluice::rdma::fake
