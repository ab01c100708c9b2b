// One reliable-connected queue pair and its work requests in flight. It moves bytes; what they mean is the link's
// business (transport/multipath/link.h), and who connects to whom the driver's (rdma/verbs_driver.h).
//
// Life:
//   1. Create: the QP is in INIT and every receive is posted, so that a peer that is fast finds them.
//   2. local() travels to the peer, the peer's comes here; Connect moves it to RTR and RTS.
//   3. Packet and Write collect work requests, Flush posts them as one chain. Only the last one of a chain and every
//      signal_every-th one are signalled: a completion covers all before it. What was collected before Connect waits.
//   4. Completions of its context's queue are handed to OnCompletion. The first bad one, or a post that fails, ends it:
//      `broken` from then on.
//   5. Break: to ERR. The owner polls the completion queue until drained() or a deadline: what still completed well is
//      reported, everything else never. Then it is destroyed, after which nothing of the peer's can land through it.
//
// A completion names its QP by wc.qp_num; those that a destroyed QP left in the queue are known by their wr_id and
// ignored, even by a new QP of the same number.
//
// Single-threaded, on the loop's thread. An owner may call anything from its callbacks but the destructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "rdma/context.h"
#include "rdma/qp_counters.h"
#include "rdma/verbs.h"

namespace sluice::rdma {

class PacketMemory;

// What the peer must know to connect; travels over the link's control messages.
struct QpAddress {
  uint32_t qp_number = 0;
  uint32_t packet_sequence = 0;  // first PSN, random: 24 bits
  uint8_t gid[16] = {};
  uint16_t lid = 0;           // InfiniBand; 0 on RoCE
  uint8_t mtu = 0;            // ibv_mtu: the largest of this port; the smaller of both is taken
  uint8_t read_atomic = 0;    // outstanding reads that this side can answer (max_dest_rd_atomic)
  uint8_t link_layer = 0;     // IBV_LINK_LAYER_*: both ends must be alike
  uint8_t gid_type = 0;       // GidType: both ends must be alike
  uint16_t receives = 0;      // posted before local() was given out: the first credits of the peer
  uint32_t packet_bytes = 0;  // size of each of them
};

struct QueuePairOptions {
  uint32_t sends = 128;  // work requests in flight: packets, writes and notices together
  uint32_t receives = 128;
  uint32_t packet_bytes = 8192;
  uint32_t inline_bytes = 256;  // asked for; less where the device grants less
  uint32_t signal_every = 16;
  uint8_t traffic_class = 0;  // DSCP << 2 | ECN
  uint8_t service_level = 0;
  uint8_t timeout = 14;        // 4.096 us * 2^timeout: wait for an acknowledgement before a retry
  uint8_t retry_count = 6;     // 7 means for ever on some devices
  uint8_t rnr_retry = 7;       // 7 = for ever: the peer is there, but late with its receives
  uint8_t min_rnr_timer = 12;  // 0.64 ms
  uint8_t mtu = 0;             // ibv_mtu; 0 = the port's active one
};

class QueuePair {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // The peer has acknowledged this packet, or this write and its notice. In the order of posting.
    virtual void QpDone(QueuePair& qp, uint64_t cookie) = 0;
    // Valid until it returns; its receive is posted again then.
    virtual void QpPacket(QueuePair& qp, ConstBytes packet) = 0;
    // All bytes of the peer's write with this tag have landed.
    virtual void QpNotice(QueuePair& qp, uint32_t tag) = 0;
  };

  // domain and owner outlive it. Fails with what the device lacks and what to do (RESOURCE_EXHAUSTED for memory and
  // numbers of objects).
  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(Domain* domain, const QueuePairOptions& options,
                                                           Owner* owner);
  ~QueuePair();

  const QpAddress& local() const { return local_; }
  // INVALID_ARGUMENT: the ends do not fit (link layer, GID type, packet size), and how. UNAVAILABLE: no way
  // to the peer.
  absl::Status Connect(const QpAddress& remote, TimeNs now);

  // Room for so many more work requests; a write takes two. 0 if broken.
  size_t room() const;
  // Copies the packet (at most packet_bytes). Needs room for 1. On a broken QP this and Write do nothing.
  void Packet(ConstBytes packet, uint64_t cookie);
  // payload (registered in this domain under local_key, untouched until QpDone or the end) to the peer's memory, then a
  // notice with this tag (WRITE_IMM of no bytes). Needs room for 2.
  void Write(ConstBytes payload, uint32_t local_key, uint64_t remote_address, uint32_t remote_key, uint32_t tag,
             uint64_t cookie);
  // The longest payload that the device takes in one Write.
  size_t max_write_bytes() const;
  // Posts what was collected, and receives that are due again. An error breaks the QP.
  absl::Status Flush(TimeNs now);

  // One completion of the context's queue that names this QP. A bad one breaks it; broken() says why, with the status
  // in words and what to check: UNAVAILABLE, or ABORTED if the peer's memory was revoked.
  void OnCompletion(const ibv_wc& wc, TimeNs now);
  const absl::Status& broken() const { return broken_; }
  void Break(const absl::Status& why);
  bool drained() const;  // broken, and every work request has completed
  bool receives_drained() const;  // of them, the receives: nothing of the peer's is still to be told

  // How long the oldest work request in flight has waited; 0 if there is none: for a watchdog.
  TimeNs oldest_wait(TimeNs now) const;
  uint32_t inline_bytes() const { return inline_bytes_; }  // what the device granted
  uint32_t number() const { return local_.qp_number; }
  uint32_t receives_posted() const { return receives_posted_; }  // since Create, wraps: credits of the peer
  const QpCounters& counters() const { return counters_; }

 private:
  enum class Kind : uint8_t { kPacket, kWrite, kNotice };
  // A work request, from Packet or Write until its completion. The n-th one uses the n-th packet buffer (modulo).
  struct Send {
    Kind kind;
    uint64_t cookie;
    TimeNs posted;
  };

  QueuePair(Domain* domain, const QueuePairOptions& options, Owner* owner);
  absl::Status Init();
  absl::Status MakeQp();
  absl::Status Fits(const QpAddress& remote) const;
  absl::Status ToReady(const QpAddress& remote);
  absl::Status PostReceives();
  ibv_send_wr& Stage(Kind kind, uint64_t cookie);
  void SendsDone(size_t count, bool well, TimeNs now);
  void ReceiveDone(const ibv_wc& wc, uint32_t buffer);
  std::byte* send_buffer(uint64_t number) const;
  std::byte* receive_buffer(uint32_t number) const;
  std::string Name() const;

  // Constant after Create.
  Domain* const domain_;
  Context* const context_;
  Verbs* const verbs_;
  const QueuePairOptions options_;
  Owner* const owner_;
  const uint32_t serial_;
  QpAddress local_;
  size_t reserved_ = 0;                   // completions of the context's queue
  uint32_t inline_bytes_ = 0;             // granted
  std::unique_ptr<PacketMemory> memory_;  // sends, then receives
  ibv_qp* qp_ = nullptr;

  bool connected_ = false;
  absl::Status broken_;
  // Sends in flight, then those collected: staged_ holds the work requests of the latter.
  std::deque<Send> sends_;
  uint64_t first_send_ = 0;  // number of sends_.front()
  std::vector<ibv_send_wr> staged_;
  std::vector<ibv_sge> staged_memory_;  // of staged_, at the same place
  std::vector<uint32_t> due_receives_;  // buffers to be posted again
  std::vector<ibv_recv_wr> receive_requests_;
  std::vector<ibv_sge> receive_memory_;
  size_t receives_out_ = 0;
  uint32_t receives_posted_ = 0;
  QpCounters counters_;
};

}  // namespace sluice::rdma
