// A partition's client side: residual, replica, encoded payload, reply slot, reassembly, decode. One exchange at a
// time.
//
// A push of round t
//   1. StartPush   encodes gradient + residual into the partition's own buffer; the new residual goes to the other half
//                  of a pair. Without a codec the payload is the caller's memory. A reply slot is opened on the link.
//   2.             StreamSender brings it to the owner, over whatever link Route names.
//   3. OnReply     stripes land in the slot, or whole in a batch. The last one ends the push.
//   4. Finish      the residual pair is swapped, unless the step was skipped: then the old residual stays. Was this
//   push
//                  alone dropped (REJECTED), then it is swapped and the decoded payload is added back.
//   5. Drain       until nothing touches the payload and the slot any more; then on_idle. (2 may still be sending a
//   repeat.)
// A pull
//   1. StartPull   opens a slot, sends PULL with a number of its own. OnTick asks again, with a new number and slot,
//   when
//                  nothing has arrived for a while: so bytes of two answers never mix.
//   2. OnValue     as OnReply. 3. Drain.
// Where the slot lies: in the caller's output if the answer is plain fp32, else in a staging buffer. Answers of up to
// eager_bytes need no slot; these, and whole ones that come by reference, are decoded from where the transport has
// them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "compression/codec.h"
#include "compression/codec_schedule.h"
#include "transport/stream/link_queue.h"
#include "transport/stream/reassembler.h"
#include "transport/stream/stream_sender.h"
#include "transport/transport.h"
#include "worker/core.h"
#include "worker/calibration.h"
#include "worker/codec_stats.h"
#include "worker/links.h"
#include "worker/plain_traffic.h"
#include "worker/route.h"
#include "worker/slab.h"

namespace sluice::worker {

class Partition;

// What all partitions of a worker share; outlives them.
struct PartitionEnv {
  transport::Endpoint* endpoint = nullptr;
  transport::LinkQueue* queue = nullptr;
  transport::StreamSender* sender = nullptr;
  const Clock* clock = nullptr;
  SlabAllocator* slab = nullptr;
  WorkerObserver* observer = nullptr;       // may be null
  std::function<void(Partition*)> on_idle;  // an exchange has ended and nothing touches its memory; never from Start…
  uint32_t job = 0, rank = 0, incarnation = 0;
  uint64_t plan_version = 0;
  bool optimizer = false;  // rates mean something
  uint64_t random_seed = 0;  // compression::RandomSeed of the job's name and the rank
  size_t eager_bytes = 16 << 10;
  TimeNs resend = kSecond;
  uint64_t next_request = 1;  // numbers of pulls
  CodecStats codec_stats;
  Calibration* calibration = nullptr;  // null: not wanted
  PlainTraffic plain_traffic;
  std::vector<float> scratch;  // a clipped gradient, while it is encoded

  // Small pushes that may wait in a batch for company; only kept for an observer, which is told when they have gone.
  struct Fusing {
    uint32_t tensor = 0, partition = 0;
    uint64_t round = 0;
    TimeNs since = 0;
  };
  std::vector<Fusing> fusing;
};

class Partition {
 public:
  enum class Phase { kIdle, kPushing, kPulling, kDraining };

  struct Shape {
    uint32_t tensor = 0;
    uint32_t index = 0;  // job-wide
    size_t offset = 0;   // first element in its tensor
    size_t elements = 0;
    size_t siblings = 1;     // partitions of the tensor, this one included
  };
  struct Push {
    uint64_t round = 0;
    uint16_t flags = 0;               // kFlagAssign, kFlagEmpty, kFlagNonfinite
    std::span<const float> gradient;  // empty with kFlagEmpty and kFlagNonfinite
    float factor = 1;                 // of the gradient: below 1 where it is clipped
    std::span<float> output;          // empty = not wanted
    int32_t priority = 0;
    TimeNs submitted = 0;             // when the caller asked for it
    // A payload that was prepared elsewhere (a table's segment: worker/rows.h; GPU memory: worker/device_tensor.h), of
    // so many rows or elements. 0: there is none. Without rows the push is kFlagEmpty.
    ConstBytes prepared;
    uint32_t prepared_count = 0;
    uint16_t prepared_codec = 0;
    bool plain = false;               // the payload stands for fp32 as it is: it counts in plain_traffic
  };
  struct Pull {
    uint64_t round = 0;  // rounds that must have been applied
    bool admit = false;
    bool bare = false;        // the round alone is asked for, no value
    std::span<float> output;  // may be empty with admit
  };
  struct Answer {
    absl::Status status;
    uint64_t round = 0;  // of a push: the one that was applied; of a pull: the next one
    uint16_t flags = 0;
    uint32_t contributors = 0;
    bool has_output = false;   // the output was written
  };

  // codecs: for gradients; keep_residual: error feedback. reply_codec: replies are changes in it, and a replica is kept;
  // null = they are values. Both outlive the partition.
  Partition(Shape shape, const compression::CodecSchedule* codecs, bool keep_residual,
            const compression::Codec* reply_codec, PartitionEnv* env);

  const Shape& shape() const { return shape_; }
  Phase phase() const { return phase_; }
  LaneKey lane() const { return route_.owner; }
  // Where an exchange goes: pulls to the owner, pushes where the plan says, or to the owner after GoDirect.
  LaneKey target(bool push) const {
    return push && !(direct_ && phase_ == Phase::kPushing) ? route_.push : route_.owner;
  }
  LaneKey target() const { return target(phase_ == Phase::kPushing); }
  uint32_t term() const { return route_.term; }
  transport::LinkId link() const { return link_; }
  const Answer& answer() const { return answer_; }
  uint64_t round() const { return push_.round; }
  bool keeps_residual() const { return keep_residual_; }
  float next_rate() const { return std::bit_cast<float>(rate_bits_); }

  // The plan's owner of this partition, and the way of its pushes. True if that has changed (Route must follow if an exchange
  // runs).
  bool SetRoute(const worker::Route& route);
  // RETRY(DIRECT): the running push is of a round that the owner has closed, and goes there. Until the next Route after the one
  // that follows.
  void GoDirect() { direct_ = true; }
  void GoByPlan() { direct_ = false; }

  // link 0 = none yet; Route follows.
  absl::Status StartPush(const Push& push, transport::LinkId link);
  absl::Status StartPull(const Pull& pull, transport::LinkId link);
  // The running exchange goes over this link from now on (0: waits), to the owner and term of SetOwner.
  void Route(transport::LinkId link);
  // A link went, and its slots with it. True if the running exchange used it: Route follows.
  bool LinkDown(transport::LinkId link);
  void RetryAfter(TimeNs delay) { retry_at_ = env_->clock->Now() + delay; }
  TimeNs retry_at() const { return retry_at_; }

  // REPLY, APPLIED and VALUE about this partition. An error is the peer's fault: the link must end.
  absl::Status OnReply(const transport::FrameHeader& header, const transport::Payload& payload);
  absl::Status OnValue(const transport::FrameHeader& header, const transport::Payload& payload);
  void NoteState(transport::PushState state);

  void OnPayloadReleased();  // StreamSender::released
  void OnSlotClosed(transport::SlotId slot);
  bool PullIsSilent() const;  // nothing has come for the resend interval: Route again
  void AskLessOften() { pull_interval_ = std::min(pull_interval_ * 2, 8 * env_->resend); }
  void Abandon(absl::Status why);  // ends the exchange without an answer; on_idle follows
  // "pushed 3.2 s ago, received by the server, waits for other workers": the running exchange, for people.
  std::string Progress() const;
  TimeNs since() const { return since_; }

  // State that survives in a snapshot.
  struct Saved {
    uint32_t rate_bits = 0, residual_rate_bits = 0;
    std::span<const float> residual;  // empty = zeros
    std::span<const float> replica;   // empty = none
    ConstBytes codec_state;           // empty = none yet
  };
  Saved Save() const;
  absl::Status Restore(const Saved& saved);
  // Error feedback moves elsewhere (worker/device_tensor.h): none is kept here any more.
  struct Kept {
    std::vector<float> residual;
    std::vector<std::byte> codec_state;
    float residual_rate = 0;
  };
  Kept TakeKept();

 private:
  absl::StatusOr<ConstBytes> Encode(const compression::Codec& codec);
  void Measure(const compression::EncodeInput* input, const compression::Codec& codec, ConstBytes payload);
  absl::Status OpenSlot();
  void CloseSlot();
  void SendPull();
  // The message's bytes once it is whole; nullopt = more to come, or not for us.
  absl::StatusOr<std::optional<ConstBytes>> Collect(const transport::FrameHeader& header,
                                                    const transport::Payload& payload);
  absl::Status TakeValue(const transport::FrameHeader& header, ConstBytes bytes, std::span<float> output);
  absl::Status TakeChange(const transport::FrameHeader& header, ConstBytes bytes, std::span<float> output);
  void SettleResidual(uint16_t flags);
  void Drain();
  void MaybeIdle();

  const Shape shape_;
  const compression::CodecSchedule* const codecs_;
  const bool keep_residual_;
  const compression::Codec* const reply_codec_;
  PartitionEnv* const env_;

  Phase phase_ = Phase::kIdle;
  worker::Route route_;
  bool direct_ = false;
  transport::LinkId link_ = 0;
  TimeNs since_ = 0;     // start of the exchange
  TimeNs retry_at_ = 0;  // 0 = none
  std::optional<transport::PushState> state_;

  Push push_;
  Pull pull_;
  uint64_t request_ = 0;  // of the running pull
  TimeNs heard_ = 0;      // last stripe or request of the pull
  TimeNs pull_interval_ = 0;
  Answer answer_;

  std::shared_ptr<std::byte> encoded_;  // payload, if a codec is in the way
  size_t encoded_room_ = 0, encoded_bytes_ = 0;
  uint16_t encoded_codec_ = 0;
  bool plain_ = false;                  // the push counts in plain_traffic
  bool payload_held_ = false;           // the sender may still touch the payload
  std::shared_ptr<std::byte> staging_;  // where answers land that cannot land in the caller's output
  MutableBytes target_;                 // the slot's memory
  transport::SlotId slot_ = 0;
  transport::LinkId slot_link_ = 0;
  transport::SlotId closing_slot_ = 0;  // being revoked while the peer is in the middle of it
  transport::LinkId closing_link_ = 0;
  bool route_waits_ = false;  // Route came while closing_slot_ was there: again when it is gone
  std::optional<transport::Reassembler> reassembler_;
  std::pair<uint32_t, uint64_t> reassembling_;  // attempt and round of the stripes that are counted

  uint32_t rate_bits_ = 0;  // of the next round, as the owner said
  float residual_rate_ = 0;
  float residual_rate_next_ = 0;
  std::vector<float> residual_, residual_next_;
  std::vector<std::byte> codec_state_, codec_state_next_;   // swapped with the residuals
  bool residual_pending_ = false;  // residual_next_ and codec_state_next_ belong to the push that runs
  std::vector<float> replica_;
};

}  // namespace sluice::worker
