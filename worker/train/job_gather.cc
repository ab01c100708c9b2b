#include "worker/train/job_gather.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/train/status.h"

namespace sluice::worker {
namespace {

constexpr int kBits = 22, kPieces = 3;
constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;

}  // namespace

void PackNumbers(std::span<const uint64_t> numbers, std::span<float> out) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    for (int p = 0; p < kPieces; ++p) out[i * kPieces + p] = static_cast<float>((numbers[i] >> (p * kBits)) & kMask);
  }
}

void UnpackNumbers(std::span<const float> packed, std::span<uint64_t> numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = 0;
    for (int p = 0; p < kPieces; ++p) {
      // What comes from elsewhere may be no whole number, or none at all.
      const float piece = packed[i * kPieces + p];
      const auto whole = piece >= 0 && piece <= static_cast<float>(kMask) ? static_cast<uint64_t>(piece) : 0;
      numbers[i] |= whole << (p * kBits);
    }
  }
}

absl::Status JobGather::Register(size_t numbers) {
  numbers_ = numbers;
  const auto ranks = static_cast<size_t>(client_->world_size());
  std::vector<TensorSpec> specs;
  for (size_t rank = 0; rank < ranks; ++rank) {
    // As a bias, so that nobody compresses it.
    specs.push_back({.name = absl::StrCat("gather/", rank),
                     .shape = {(1 + numbers) * kPieces},
                     .kind = TensorKind::kBias,
                     .every_step = false});
  }
  Result<std::vector<Tensor>> tensors = client_->RegisterTensors(specs);
  if (!tensors.ok()) return ToAbsl(tensors.status());
  tensors_ = std::move(*tensors);
  buffers_.assign(ranks, std::vector<float>((1 + numbers) * kPieces));
  parts_.resize(ranks);
  handles_.resize(ranks);
  return absl::OkStatus();
}

absl::Status JobGather::Join() {
  done_ = UINT64_MAX;
  for (const Tensor& tensor : tensors_) done_ = std::min(done_, client_->NextRound(tensor));
  if (done_ == 0) return absl::OkStatus();
  for (size_t rank = 0; rank < tensors_.size(); ++rank) {
    handles_[rank] = client_->Pull(tensors_[rank], buffers_[rank]);
  }
  return Finish();
}

absl::Status JobGather::Gather(std::span<const uint64_t> mine) {
  if (mine.size() > numbers_) {
    return absl::InternalError(absl::StrCat("a gather of ", mine.size(), " numbers, and room for ", numbers_));
  }
  std::vector<uint64_t> message(1 + numbers_);
  message[0] = done_ + 1;
  std::copy(mine.begin(), mine.end(), message.begin() + 1);
  PackNumbers(message, buffers_[static_cast<size_t>(client_->rank())]);
  for (size_t rank = 0; rank < tensors_.size(); ++rank) {
    handles_[rank] = client_->NextRound(tensors_[rank]) > done_
                         ? client_->Pull(tensors_[rank], buffers_[rank])
                         : client_->Broadcast(tensors_[rank], buffers_[rank], static_cast<int>(rank));
  }
  ++done_;
  return Finish();
}

absl::Status JobGather::Finish() {
  absl::Status status;
  std::vector<uint64_t> message(1 + numbers_);
  for (size_t rank = 0; rank < tensors_.size(); ++rank) {
    const Result<OpInfo> info = handles_[rank].Wait();
    if (!info.ok() && info.status().code() == Code::kAborted) {   // it was lost before: it has no part in this one
      parts_[rank].clear();
      continue;
    }
    if (!info.ok()) {
      if (status.ok()) status = ToAbsl(info.status());
      continue;
    }
    UnpackNumbers(buffers_[rank], message);
    parts_[rank].clear();
    if (message[0] == done_) parts_[rank].assign(message.begin() + 1, message.end());
  }
  return status;
}

}  // namespace sluice::worker
