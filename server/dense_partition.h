// A tensor's partition: one vector of values that all ranks push to and get back whole.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>

#include "server/partition.h"
#include "server/sent_sum.h"
#include "server/value_state.h"

namespace sluice::server {

// Step 2d of docs/wire.md, "A push, step by step".
absl::Status CheckDensePush(const PartitionShape& shape, const transport::FrameHeader& push, uint64_t max_message_bytes);
// The same of a forward.
absl::Status CheckForward(const PartitionShape& shape, uint32_t workers, proto::Order order, const transport::FrameHeader& push,
                          uint64_t max_message_bytes);

class DensePartition : public Partition {
 public:
  // By the job's mode. reply_codec: with REPLY_CHANGE; null = replies are whole values.
  static absl::StatusOr<std::unique_ptr<Partition>> Create(PartitionShape shape,
                                                           std::unique_ptr<compression::Codec> reply_codec,
                                                           JobContext* job);

  absl::Status CheckPush(const FrameHeader& push, uint64_t max_message_bytes) const override;
  absl::Status Pull(LinkId link, const FrameHeader& pull, ConstBytes payload) override;
  void LinkDown(LinkId link) override;
  uint64_t state_bytes() const override { return values_.state_bytes(); }
  uint64_t copy_bytes() const override {
    return shape_.elements * sizeof(float) * (values_.replica() != nullptr ? 2 : 1) + values_.state_bytes();
  }

 protected:
  // What the contributors of a round get.
  struct Result {
    uint64_t round = 0;
    uint16_t flags = 0;
    uint16_t codec = 0;
    uint32_t contributors = 0;
    uint32_t rate_bits = 0;                // of the next round
    ConstBytes payload;                    // empty: APPLIED says it all
    std::shared_ptr<const void> owner;
  };

  DensePartition(PartitionShape shape, std::unique_ptr<compression::Codec> reply_codec, ValueState values,
                 JobContext* job);

  // Seat and result must be of the same round.
  void SendResult(uint32_t rank, const Result& result);
  // The value as it is now, as a result of `round`.
  Result CurrentValue(uint64_t round, uint32_t rate_bits) const;
  void ServePulls();

  // The values' part of a copy's state.
  struct SavedValues {
    ConstBytes value, replica, state;
  };
  SavedValues SaveValues(proto::DenseHead* head) const;
  // Takes them from the front of `bulk`. Nothing has changed after an error.
  absl::Status LoadValues(const proto::DenseHead& head, ConstBytes* bulk);
  absl::Status Malformed(const std::string& what) const;   // a message for this copy
  // A block with these fp32 values.
  absl::StatusOr<BlockPtr> BlockOf(ConstBytes values, BlockPool* pool) const;
  // A closed round for the copies; given: to the optimizer or by the broadcast, or nothing. Sets the form.
  absl::StatusOr<ReplicaMessage> RoundMessage(const proto::RoundHead& round, std::span<const float> given) const;
  // What a round's message gives, or nothing. bulk outlives it.
  absl::StatusOr<std::optional<SentSum>> GivenBy(const proto::RoundHead& round, ConstBytes bulk) const;
  absl::StatusOr<BlockPtr> BlockOf(const SentSum& sum, BlockPool* pool) const;

  const std::unique_ptr<compression::Codec> reply_codec_;
  ValueState values_;

 private:
  struct WaitingPull {
    LinkId link = 0;
    FrameHeader request;
  };
  void SendValue(LinkId link, const FrameHeader& pull);
  bool Due(const FrameHeader& pull) const;

  std::map<uint32_t, WaitingPull> pulls_;   // by rank; a repeat takes the place of the one before
};

}  // namespace sluice::server
