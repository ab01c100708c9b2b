// A tensor's partition: one vector of values that all ranks push to and get back whole.
#pragma once

#include <map>
#include <memory>

#include "server/partition.h"
#include "server/value_state.h"

namespace sluice::server {

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

  const std::unique_ptr<compression::Codec> reply_codec_;
  ValueState values_;

 private:
  struct WaitingPull {
    LinkId link = 0;
    FrameHeader request;
  };
  void SendValue(LinkId link, const FrameHeader& pull);

  std::map<uint32_t, WaitingPull> pulls_;   // by rank; a repeat takes the place of the one before
};

}  // namespace sluice::server
