#include "worker/device_tensor.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compression/selection.h"
#include "worker/residual.h"

namespace sluice::worker {
namespace {

namespace cuda = compression::cuda;

constexpr size_t kAlign = 64;  // of each array in a room; kernels are fastest at multiples of 16
constexpr size_t kFindRoom = kAlign;
static_assert(sizeof(cuda::FindTask) <= kFindRoom && sizeof(cuda::EncodeTask) <= sizeof(cuda::SparseTask));

size_t Aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

DeviceTensor::DeviceTensor(std::shared_ptr<Device> device, const std::vector<std::unique_ptr<Partition>>& partitions,
                           const compression::CodecSchedule* codecs, const PartitionEnv* env)
    : device_(std::move(device)),
      partitions_(partitions),
      codecs_(codecs),
      env_(env),
      keep_residual_(!partitions.empty() && partitions.front()->keeps_residual()),
      parts_(partitions.size()),
      workspaces_(partitions.size()) {
  for (const auto& partition : partitions_) {
    elements_ += partition->shape().elements;
    largest_ = std::max(largest_, partition->shape().elements);
  }
}

float* DeviceTensor::Residual(size_t i, int half) const {
  return reinterpret_cast<float*>(residuals_[half].at(shape(i).offset * sizeof(float)));
}

float* DeviceTensor::State(size_t i, int half) const {
  return reinterpret_cast<float*>(states_.at((2 * i + static_cast<size_t>(half)) * sizeof(float)));
}

absl::Status DeviceTensor::Grow(Room* room, size_t bytes, bool host) {
  if (room->bytes >= bytes) return absl::OkStatus();
  *room = {};  // first, so that both need not fit
  absl::StatusOr<Device::Memory> memory = host ? device_->AllocateHost(bytes) : device_->Allocate(bytes);
  if (!memory.ok()) {
    return absl::Status(memory.status().code(),
                        absl::StrCat(device_->name(), ": ", bytes, host ? " bytes of pinned host memory" : " bytes",
                                     ": ", memory.status().message()));
  }
  *room = {*std::move(memory), bytes};
  return absl::OkStatus();
}

// Room for a round in this codec.
absl::Status DeviceTensor::Reserve(const compression::Codec& codec) {
  size_t encoded = 0, workspace = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const uint64_t n = shape(i).elements;
    parts_[i].room = encoded;
    parts_[i].most = codec.MaxEncodedBytes(n);
    encoded += Aligned(parts_[i].most);
    workspaces_[i] = workspace;
    if (choice_.sparse()) workspace += Aligned(device_->EncodeWorkspaceBytes(n, cuda::MostEntries(choice_, n)));
  }
  const size_t tasks = kFindRoom + parts_.size() * (sizeof(cuda::SparseTask) + sizeof(cuda::SparseDecodeTask));
  const size_t results = (1 + parts_.size()) * sizeof(uint64_t);
  SLUICE_RETURN_IF_ERROR(Grow(&encoded_, encoded, false));
  SLUICE_RETURN_IF_ERROR(Grow(&host_encoded_, encoded, true));
  SLUICE_RETURN_IF_ERROR(Grow(&workspace_, workspace, false));
  SLUICE_RETURN_IF_ERROR(Grow(&tasks_, tasks, false));
  SLUICE_RETURN_IF_ERROR(Grow(&host_tasks_, tasks, true));
  SLUICE_RETURN_IF_ERROR(Grow(&results_, results, false));
  SLUICE_RETURN_IF_ERROR(Grow(&host_results_, results, true));
  SLUICE_RETURN_IF_ERROR(Grow(&states_, 2 * parts_.size() * sizeof(float), false));
  // Sparse encoders keep p there, whether a residual is wanted or not.
  if (!keep_residual_ && !choice_.sparse()) return absl::OkStatus();
  for (Room& half : residuals_) SLUICE_RETURN_IF_ERROR(Grow(&half, elements_ * sizeof(float), false));
  return absl::OkStatus();
}

void DeviceTensor::TakeOver() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    Partition::Kept kept = partitions_[i]->TakeKept();
    Part& part = parts_[i];
    part.rate = kept.residual_rate;
    part.has_residual = keep_residual_ && !kept.residual.empty();
    part.has_state = kept.codec_state.size() == sizeof(float);  // else of a codec that has no kernels
    if (part.has_residual)
      device_->Copy(Residual(i, part.half), kept.residual.data(), kept.residual.size() * sizeof(float));
    if (part.has_state) device_->Copy(State(i, part.half), kept.codec_state.data(), sizeof(float));
    taken_.push_back(std::move(kept.residual));
    taken_states_.push_back(std::move(kept.codec_state));
  }
  taken_over_ = true;
}

absl::Status DeviceTensor::Encode(uint64_t round, const DeviceBuffers& buffers, EncodedFn done) {
  const compression::Codec& codec = codecs_->At(round);
  SLUICE_ASSIGN_OR_RETURN(choice_, cuda::ChooseKernels(codec.name()));
  SLUICE_RETURN_IF_ERROR(Reserve(codec));
  codec_id_ = static_cast<uint16_t>(codec.id());
  if (!taken_over_) TakeOver();

  const uint32_t count = PrepareTasks(round, codec, buffers);
  const size_t task_bytes =
      kFindRoom + count * (choice_.sparse() ? sizeof(cuda::SparseTask) : sizeof(cuda::EncodeTask));
  if (buffers.ready != nullptr) device_->Await(buffers.ready);
  device_->Copy(tasks_.at(), host_tasks_.at(), task_bytes);
  device_->FindNonfinite(reinterpret_cast<const cuda::FindTask*>(tasks_.at()), elements_);
  if (count > 0) device_->Encode(choice_, tasks_.at(kFindRoom), count, largest_);
  device_->Copy(host_results_.at(), results_.at(), (1 + parts_.size()) * sizeof(uint64_t));
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    if (part.direct) {
      device_->Copy(host_encoded_.at(part.room), buffers.gradient.data() + shape(i).offset, part.bytes);
    } else if (!choice_.sparse()) {
      device_->Copy(host_encoded_.at(part.room), encoded_.at(part.room), part.bytes);
    }
  }
  device_->Then(
      [this, done = std::move(done)](const absl::Status& status) mutable { OnResults(status, std::move(done)); });
  return absl::OkStatus();
}

// In pinned memory; returns how many partitions are to be encoded. As Partition::Encode does it on the host.
uint32_t DeviceTensor::PrepareTasks(uint64_t round, const compression::Codec& codec, const DeviceBuffers& buffers) {
  uint64_t* const results = reinterpret_cast<uint64_t*>(results_.at());
  const cuda::FindTask find = {buffers.gradient.data(), elements_, results};
  std::memcpy(host_tasks_.at(), &find, sizeof(find));
  const size_t stride = choice_.sparse() ? sizeof(cuda::SparseTask) : sizeof(cuda::EncodeTask);
  uint32_t count = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    const size_t n = shape(i).elements;
    const int next = 1 - part.half;
    part.bytes = part.most;
    part.pending = false;
    part.direct = codec.lossless() && !part.has_residual;
    if (part.direct) continue;
    const compression::RandomKey random = {env_->random_seed, round, shape(i).tensor, shape(i).offset};
    const auto draw_key = compression::DrawKey(random, compression::DrawPurpose::kRounding);
    const float rate = partitions_[i]->next_rate();
    cuda::SparseTask task{};
    task.gradient = buffers.gradient.data() + shape(i).offset;
    task.residual = part.has_residual ? Residual(i, part.half) : nullptr;
    task.residual_out = choice_.sparse() || (keep_residual_ && !codec.lossless()) ? Residual(i, next) : nullptr;
    task.out = reinterpret_cast<uint8_t*>(encoded_.at(part.room));
    task.n = n;
    task.scale = env_->optimizer && part.has_residual ? ResidualScale(part.rate, rate) : 1.0f;
    task.draw_key = draw_key[0] | uint64_t{draw_key[1]} << 32;
    task.first_element = random.first_element;
    const bool has_state = choice_.has_state();
    if (choice_.sparse()) {
      task.k = cuda::EntriesWanted(choice_, n);
      task.most = cuda::MostEntries(choice_, n);
      task.workspace = workspace_.at(workspaces_[i]);
      task.encoded_bytes = results + 1 + i;
      task.threshold = choice_.threshold;
      task.state = has_state && part.has_state ? State(i, part.half) : nullptr;
      task.state_out = has_state ? State(i, next) : nullptr;
      task.selection_key = compression::SelectionKey(random);
    }
    std::memcpy(host_tasks_.at(kFindRoom + count * stride), &task, stride);
    ++count;
    part.next_has_residual = keep_residual_ && !codec.lossless();
    part.next_has_state = has_state;
    part.next_rate = ResidualRate(part.rate, rate);
    part.pending = keep_residual_ || part.has_state || has_state;
  }
  return count;
}

void DeviceTensor::OnResults(const absl::Status& status, EncodedFn done) {
  taken_.clear();
  taken_states_.clear();
  const uint64_t* const results = reinterpret_cast<const uint64_t*>(host_results_.at());
  const bool good = status.ok() && results[0] == elements_;
  if (!good) {
    for (Part& part : parts_) part.pending = false;
  }
  if (!status.ok()) return done(status);
  if (!good || !choice_.sparse()) return done(results[0]);
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    part.bytes = results[1 + i];
    if (part.bytes > part.most) {
      for (Part& each : parts_) each.pending = false;
      return done(absl::InternalError(absl::StrCat("partition ", shape(i).index, ": an encoding of ", part.bytes,
                                                   " bytes, where at most ", part.most, " are possible")));
    }
    device_->Copy(host_encoded_.at(part.room), encoded_.at(part.room), part.bytes);
  }
  device_->Then([this, done = std::move(done)](const absl::Status& copied) {
    if (copied.ok()) return done(elements_);
    for (Part& part : parts_) part.pending = false;
    done(copied);
  });
}

ConstBytes DeviceTensor::payload(size_t partition) const {
  return {host_encoded_.at(parts_[partition].room), parts_[partition].bytes};
}

absl::Status DeviceTensor::Settle(size_t partition, uint16_t flags) {
  Part& part = parts_[partition];
  if (!std::exchange(part.pending, false)) return absl::OkStatus();
  if ((flags & transport::kFlagSkipped) != 0) return absl::OkStatus();
  part.half = 1 - part.half;
  part.has_state = part.next_has_state;
  if (!keep_residual_) return absl::OkStatus();
  part.has_residual = part.next_has_residual;
  part.rate = part.next_rate;
  if ((flags & transport::kFlagRejected) == 0) return absl::OkStatus();

  const size_t n = shape(partition).elements;
  float* const residual = Residual(partition, part.half);
  if (!std::exchange(part.has_residual, true)) device_->Zero(residual, n * sizeof(float));
  cuda::SparseDecodeTask task{};
  task.in = reinterpret_cast<const uint8_t*>(encoded_.at(part.room));
  task.out = residual;
  task.n = n;
  task.bytes = part.bytes;
  if (choice_.sparse()) {
    task.most = cuda::MostEntries(choice_, n);
    // One for all partitions: the stream runs their decoders one after the other.
    SLUICE_RETURN_IF_ERROR(
        Grow(&decode_workspace_, device_->DecodeWorkspaceBytes(largest_, cuda::MostEntries(choice_, largest_)), false));
    task.workspace = decode_workspace_.at();
  }
  // Each partition has its place, so none is written while an earlier one is still copied.
  const size_t place = kFindRoom + parts_.size() * sizeof(cuda::SparseTask) + partition * sizeof(task);
  std::memcpy(host_tasks_.at(place), &task, sizeof(task));
  device_->Copy(tasks_.at(place), host_tasks_.at(place), sizeof(task));
  device_->DecodeAdd(choice_, tasks_.at(place), 1, n);
  return absl::OkStatus();
}

absl::StatusOr<std::span<float>> DeviceTensor::Output() {
  SLUICE_RETURN_IF_ERROR(Grow(&host_output_, elements_ * sizeof(float), true));
  return std::span<float>(reinterpret_cast<float*>(host_output_.at()), elements_);
}

void DeviceTensor::CopyOutput(size_t partition, std::span<float> out) {
  const size_t offset = shape(partition).offset;
  device_->Copy(out.data() + offset, host_output_.at(offset * sizeof(float)),
                shape(partition).elements * sizeof(float));
}

absl::Status DeviceTensor::Fetch() {
  if (!taken_over_) return absl::OkStatus();
  fetched_.resize(keep_residual_ ? elements_ : 0);
  fetched_states_.resize(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (part.has_residual)
      device_->Copy(fetched_.data() + shape(i).offset, Residual(i, part.half), shape(i).elements * sizeof(float));
    if (part.has_state) device_->Copy(&fetched_states_[i], State(i, part.half), sizeof(float));
  }
  return device_->Finish();
}

Partition::Saved DeviceTensor::Saved(size_t partition) const {
  Partition::Saved saved = partitions_[partition]->Save();
  if (!taken_over_) return saved;
  const Part& part = parts_[partition];
  saved.residual_rate_bits = std::bit_cast<uint32_t>(part.rate);
  if (part.has_residual)
    saved.residual = std::span(fetched_).subspan(shape(partition).offset, shape(partition).elements);
  if (part.has_state) saved.codec_state = AsBytes(std::span(fetched_states_).subspan(partition, 1));
  return saved;
}

}  // namespace sluice::worker
