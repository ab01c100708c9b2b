// One tensor's error feedback and buffers on a GPU: what Partition keeps for pushes from host memory, for all partitions
// at once, so that one launch serves them all. A push from either memory sends the same bytes.
//
//   1. Encode     enqueues the encoding of a round; done comes with the first element that is not finite, or with the
//                 tensor's size. From then on payload(i) is what partition i sends.
//   2. Settle     at each partition's verdict: as Partition::SettleResidual.
//   3. Encode     of the next round, not before done and all verdicts.
// Between 1 and 2 the residual of before is untouched: a refused or skipped step has changed nothing.
// The first Encode takes over what the partitions kept so far (a restored snapshot, or pushes from host memory).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "compression/codec_schedule.h"
#include "compression/cuda/choice.h"
#include "worker/device.h"
#include "worker/partition.h"

namespace sluice::worker {

class DeviceTensor {
 public:
  // All but the device outlive it.
  DeviceTensor(std::shared_ptr<Device> device, const std::vector<std::unique_ptr<Partition>>& partitions,
               const compression::CodecSchedule* codecs, const PartitionEnv* env);

  const std::shared_ptr<Device>& device() const { return device_; }
  bool in_use() const { return taken_over_; }   // error feedback lives here

  // On error nothing was enqueued and nothing has changed. done: in a later turn.
  using EncodedFn = std::function<void(absl::StatusOr<size_t> first_nonfinite)>;
  absl::Status Encode(uint64_t round, const DeviceBuffers& buffers, EncodedFn done);
  ConstBytes payload(size_t partition) const;
  uint16_t codec() const { return codec_id_; }
  absl::Status Settle(size_t partition, uint16_t flags);   // an error: what was sent did not go back into the residual

  // Pinned memory for answers, of the whole tensor.
  absl::StatusOr<std::span<float>> Output();
  void CopyOutput(size_t partition, std::span<float> out);

  // For snapshots: fetches residuals and codec states, and waits for that. Saved() is what Partition::Save is without.
  absl::Status Fetch();
  Partition::Saved Saved(size_t partition) const;

 private:
  struct Room {   // memory that only grows
    Device::Memory memory;
    size_t bytes = 0;
    std::byte* at(size_t offset = 0) const { return static_cast<std::byte*>(memory.get()) + offset; }
  };
  struct Part {
    size_t room = 0;              // where its encoding begins, on both sides
    size_t most = 0;              // bytes of it
    size_t bytes = 0;             // as it turned out
    bool direct = false;          // the payload is the gradient itself
    bool pending = false;         // the new residual and state belong to the push that runs
    int half = 0;                 // of the residual pair, the one that holds
    bool has_residual = false, next_has_residual = false;   // false = zeros
    bool has_state = false, next_has_state = false;
    float rate = 0, next_rate = 0;   // that the residual is kept at
  };

  const Partition::Shape& shape(size_t i) const { return partitions_[i]->shape(); }
  float* Residual(size_t i, int half) const;
  float* State(size_t i, int half) const;
  absl::Status Grow(Room* room, size_t bytes, bool host);
  absl::Status Reserve(const compression::Codec& codec);
  void TakeOver();   // from the partitions
  uint32_t PrepareTasks(uint64_t round, const compression::Codec& codec, const DeviceBuffers& buffers);
  void OnResults(const absl::Status& status, EncodedFn done);

  const std::shared_ptr<Device> device_;
  const std::vector<std::unique_ptr<Partition>>& partitions_;
  const compression::CodecSchedule* const codecs_;
  const PartitionEnv* const env_;
  size_t elements_ = 0, largest_ = 0;
  bool keep_residual_ = false;
  bool taken_over_ = false;

  compression::cuda::Choice choice_;   // of the round that runs
  uint16_t codec_id_ = 0;
  std::vector<Part> parts_;
  std::vector<size_t> workspaces_;     // where each partition's begins
  // On the device. states_: two floats a partition. tasks_: FindTask, those of the encoding, those of decode-adds.
  // results_: the first element that is not finite, then the bytes of each partition's encoding.
  Room residuals_[2], encoded_, workspace_, decode_workspace_, states_, tasks_, results_;
  // Pinned.
  Room host_encoded_, host_tasks_, host_results_, host_output_;
  std::vector<std::vector<float>> taken_;         // from the partitions, until they are on the device
  std::vector<std::vector<std::byte>> taken_states_;
  std::vector<float> fetched_, fetched_states_;   // by Fetch
};

}  // namespace sluice::worker
