// An opened device port (a rail) with its completion queue, protection domains, and registered memory.
//
// Waiting for completions without losing one (the loop's thread does all of it):
//   1. completion_fd() is readable, or it is time to look: Arm(), which takes the events off the channel and asks for
//      the next one;
//   2. Poll(): everything that came before the arming, for which no event will come, is found now;
//   3. wait for completion_fd().
// To spin for a while instead: Poll() alone, then 1.
//
// QPs are destroyed before their context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "rdma/device.h"
#include "rdma/memory.h"
#include "rdma/range_map.h"
#include "rdma/verbs.h"

namespace sluice::rdma {

class Context;

struct ContextOptions {
  int cq_entries = 4096;             // less where the device has less
  MemoryRegistry* memory = nullptr;  // outlives the context; null: Find finds dmabufs only
  // Called at the first memory that the device refuses, on the thread of Find: that region goes without RDMA from then
  // on, as may others, about which it is silent.
  std::function<void(const absl::Status&)> refused;
  uint64_t seed = 0;  // of packet sequence numbers; 0 = from the system
};

// A protection domain: QPs of one job, and the memory that they may touch.
class Domain {
 public:
  struct Keys {
    uint32_t lkey = 0;
    uint32_t rkey = 0;  // of no use to a peer if the region is only sent from
  };
  struct Stats {
    uint64_t registered_bytes = 0;  // of the registry, of QPs' packets, and dmabufs
    uint64_t regions = 0;
    uint64_t refused = 0;  // regions that go without RDMA
  };

  ~Domain();
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  Context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }

  // Keys of memory in the registry (registered at first use) or in a dmabuf (by its iova). Thread-safe.
  std::optional<Keys> Find(ConstBytes bytes, Access access = Access::kSend);

  // GPU memory: found by iova, the address that peers and payloads name it by. UNIMPLEMENTED: library, kernel or device
  // cannot. The number is for DeregisterDmabuf.
  absl::StatusOr<uint64_t> RegisterDmabuf(int fd, uint64_t offset, size_t bytes, uint64_t iova,
                                          Access access = Access::kSendAndReceive);
  void DeregisterDmabuf(uint64_t number);

  // For packets of QPs: local use only. RESOURCE_EXHAUSTED names the memlock limit and how to raise it.
  absl::StatusOr<ibv_mr*> RegisterLocal(void* address, size_t bytes);
  void DeregisterLocal(ibv_mr* mr);

  Stats stats() const;

 private:
  friend class Context;
  struct Registered {
    ibv_mr* mr = nullptr;  // null: refused
    Access access = Access::kSend;
  };
  static constexpr uint64_t kDmabuf = uint64_t{1} << 63;  // ids of dmabufs, beside those of the registry

  Domain(Context* context, ibv_pd* pd, MemoryRegistry* memory, std::function<void(const absl::Status&)> refused);
  std::optional<Keys> FindLocked(ConstBytes bytes, Access access, absl::Status* refusal);
  void Deregister(ibv_mr* mr);  // needs mutex_
  void Forget(uint64_t id);

  Context* const context_;
  ibv_pd* const pd_;
  MemoryRegistry* const memory_;
  const std::function<void(const absl::Status&)> refused_;
  uint64_t listener_ = 0;
  mutable std::mutex mutex_;  // held while memory is registered, see memory.h
  // Guarded by mutex_:
  RangeMap<Registered> regions_;
  uint64_t last_dmabuf_ = kDmabuf;
  Stats stats_;
};

class Context {
 public:
  // NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE, RESOURCE_EXHAUSTED: which device, what failed and what to do.
  static absl::StatusOr<std::unique_ptr<Context>> Open(Verbs* verbs, const Rail& rail, const ContextOptions& options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Verbs* verbs() const { return verbs_; }
  ibv_context* device() const { return device_; }
  ibv_cq* cq() const { return cq_; }
  const ibv_device_attr& attributes() const { return attributes_; }
  const ibv_port_attr& port() const { return port_; }  // as of Open or Refresh
  const Rail& rail() const { return rail_; }

  // After a port came back: reads the port again and checks that the rail's GID is still where it was. UNAVAILABLE: the
  // port is down. FAILED_PRECONDITION: the GID has gone; choose again (rdma/device.h) and UseRail.
  absl::Status Refresh();
  // Same device and port, another GID; for QPs from now on.
  void UseRail(const Rail& rail) { rail_ = rail; }

  int completion_fd() const { return channel_->fd; }  // both non-blocking
  int async_fd() const { return device_->async_fd; }

  // Made at the first use. RESOURCE_EXHAUSTED: the device has no more.
  absl::StatusOr<Domain*> DomainOf(uint32_t job);

  // Hands out every completion that is there. With `more` it stops after kPollBatch of them; *more: there may be
  // others, call again before waiting. An error means that the queue is of no use any more.
  static constexpr size_t kPollBatch = 256;
  absl::Status Poll(absl::FunctionRef<void(const ibv_wc&)> on_completion, bool* more = nullptr);
  absl::Status Arm();

  // Hands out and acknowledges the asynchronous events that are there; returns how many.
  int OnAsyncEvents(absl::FunctionRef<void(const ibv_async_event&)> on_event);

  // For QueuePair. Room in the completion queue for all work requests of a QP; a queue that overruns is lost.
  absl::Status ReserveCompletions(size_t entries);
  void ReleaseCompletions(size_t entries) { reserved_ -= entries; }
  size_t reserved_completions() const { return reserved_; }
  // Names a QP in its work requests: QP numbers come again, this does not.
  uint32_t NextSerial() { return ++last_serial_; }
  uint32_t RandomPacketSequence() { return static_cast<uint32_t>(random_()) & 0xffffff; }

 private:
  Context(Verbs* verbs, const Rail& rail, const ContextOptions& options);

  Verbs* const verbs_;
  const ContextOptions options_;
  Rail rail_;
  std::mt19937_64 random_;
  ibv_context* device_ = nullptr;
  ibv_device_attr attributes_{};
  ibv_port_attr port_{};
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  size_t reserved_ = 0;
  uint32_t last_serial_ = 0;
  bool refused_ = false;
  std::mutex refused_mutex_;
  std::map<uint32_t, std::unique_ptr<Domain>> domains_;
};

}  // namespace sluice::rdma
