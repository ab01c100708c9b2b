// How a worker begins, and how it comes back.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "worker/train/saved_settings.h"
#include "worker/train/sparse_training.h"
#include "worker/train/status.h"

namespace sluice::worker {
namespace {

// The trainer's part of a snapshot: u32 version, u32 values of a row, u64 next step, u64 gathers, u64 seed, u64 batch,
// u64 steps ahead, u64 epochs, u64 steps; then of each step ahead the bias; then of each step ahead u64 rows and the
// rows' values.
constexpr uint32_t kStateVersion = 2;

class Writer {
 public:
  template <typename T>
  void Put(T value) {
    out_.resize(out_.size() + sizeof(T));
    StoreLe(out_.data() + out_.size() - sizeof(T), value);
  }
  void PutFloats(std::span<const float> values) {
    const auto bytes = std::as_bytes(values);
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  ConstBytes bytes() const { return out_; }

 private:
  std::vector<std::byte> out_;
};

// Reads past the end give zeros and make ok() false.
class Reader {
 public:
  explicit Reader(ConstBytes in) : in_(in) {}
  template <typename T>
  T Get() {
    T value{};
    GetBytes(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  void GetFloats(std::span<float> values) { GetBytes(std::as_writable_bytes(values)); }
  bool ok() const { return ok_; }
  bool at_end() const { return in_.empty(); }

 private:
  void GetBytes(MutableBytes to) {
    ok_ = ok_ && to.size() <= in_.size();
    if (!ok_ || to.empty()) return;
    std::memcpy(to.data(), in_.data(), to.size());
    in_ = in_.subspan(to.size());
  }
  ConstBytes in_;
  bool ok_ = true;
};

}  // namespace

absl::Status SparseTraining::Begin() {
  Result<std::optional<std::vector<std::byte>>> state = client_->RestoreSnapshot();
  if (state.ok() && state->has_value()) return Restore(**state);
  why_no_snapshot_ = WhyNoSnapshot(client_->snapshot_path(), ToAbsl(state.status()));
  SLUICE_RETURN_IF_ERROR(gather_.Join());
  if (const uint64_t round = client_->NextRound(bias_tensor_); round > 0) {
    SLUICE_RETURN_IF_ERROR(Join(round));
  } else {
    std::optional<Handle> broadcast = client_->Broadcast(bias_tensor_, pushed_[0].bias);
    SLUICE_RETURN_IF_ERROR(WaitFor(&broadcast));
  }
  for (Pushed& pushed : pushed_) pushed.bias[0] = pushed_[0].bias[0];
  if (gather_.done() == 0) SLUICE_RETURN_IF_ERROR(Agree());
  PullAhead();
  return snapshots_.on ? Save() : absl::OkStatus();
}

// The former life may have died between the pushes of a step to the table and to the bias: the one that has fewer
// rounds gets empty ones, so that step and round go together again.
absl::Status SparseTraining::Join(uint64_t bias_round) {
  next_step_ = std::max(bias_round - 1, client_->NextRound(table_));
  log_.Warn("joins the job at step ", next_step_,
            " without a snapshot, so the result will not be the bits of an uninterrupted run: ", why_no_snapshot_);
  std::optional<Handle> handle;
  while (client_->NextRound(table_) < next_step_) {
    handle = client_->PushRows(table_, {}, {});
    SLUICE_RETURN_IF_ERROR(WaitFor(&handle));
  }
  while (client_->NextRound(bias_tensor_) < next_step_ + 1) {
    pushed_[0].gradient[0] = 0;
    handle = client_->PushPull(bias_tensor_, pushed_[0].gradient, pushed_[0].bias);
    SLUICE_RETURN_IF_ERROR(WaitFor(&handle));
  }
  handle = client_->Pull(bias_tensor_, pushed_[0].bias);
  return WaitFor(&handle);
}

// Workers with other files or flags would make other numbers of steps and wait for each other for good.
absl::Status SparseTraining::Agree() {
  const std::array<float, 2> labels = task_->train.label_values.value_or(std::array<float, 2>{0, 0});
  const std::pair<const char*, uint64_t> mine[] = {
      {"examples in --data", task_->train.examples_in_file},
      {"examples in --test_data", task_->test.examples_in_file},
      {"examples in a batch", sampler_->batch()},
      {"steps an epoch", sampler_->steps_per_epoch()},
      {"steps", total_steps_},
      {"as --eval_every", static_cast<uint64_t>(options_.eval_every)},
      {"as --seed", static_cast<uint64_t>(options_.seed)},
      {"as --prefetch", ahead_ - 1},
      {"as --loss (1 = logistic)", logistic_},
      {"as the bits of the file's label for 0", std::bit_cast<uint32_t>(labels[0])},
      {"as the bits of the file's label for 1", std::bit_cast<uint32_t>(labels[1])},
  };
  std::vector<uint64_t> numbers;
  for (const auto& [name, value] : mine) numbers.push_back(value);
  SLUICE_RETURN_IF_ERROR(gather_.Gather(numbers));
  for (size_t rank = 0; rank < gather_.ranks(); ++rank) {
    const std::span<const uint64_t> theirs = gather_.of(rank);
    for (size_t i = 0; i < numbers.size() && !theirs.empty(); ++i) {
      if (theirs[i] == numbers[i]) continue;
      return absl::InvalidArgumentError(absl::StrCat("worker ", client_->rank(), " has ", numbers[i], " ",
                                                     mine[i].first, ", worker ", rank, " ", theirs[i],
                                                     ": all workers take the same files and flags"));
    }
  }
  return absl::OkStatus();
}

absl::Status SparseTraining::Restore(std::span<const std::byte> state) {
  Reader in(state);
  const auto version = in.Get<uint32_t>(), dim = in.Get<uint32_t>();
  const auto step = in.Get<uint64_t>(), gathers = in.Get<uint64_t>(), seed = in.Get<uint64_t>();
  const auto batch = in.Get<uint64_t>(), ahead = in.Get<uint64_t>();
  const auto epochs = in.Get<uint64_t>(), steps = in.Get<uint64_t>();
  const std::string path = client_->snapshot_path();
  if (!in.ok() || version != kStateVersion || dim != dim_) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ".0 and .1: the snapshot is that of another model or release; start with the flags of before, "
                           "or move both files away to go on without"));
  }
  SLUICE_RETURN_IF_ERROR(CheckSavedSettings(path, {{"--seed", seed, static_cast<uint64_t>(options_.seed)},
                                                   {"--batch", batch, sampler_->batch()},
                                                   {"--prefetch", ahead - 1, ahead_ - 1},
                                                   {"--epochs", epochs, static_cast<uint64_t>(options_.epochs)},
                                                   {"--steps", steps, static_cast<uint64_t>(options_.steps)}}));
  if (step > total_steps_) {
    return absl::FailedPreconditionError(absl::StrCat(path, ".0 and .1: the snapshot is of step ", step, " of ",
                                                      total_steps_, ": it is of other training data"));
  }
  next_step_ = step;
  gather_.set_done(gathers);
  for (uint64_t k = 0; k < ahead_; ++k) PushedBefore(step + k).bias[0] = in.Get<float>();
  for (uint64_t k = 0; k <= ahead_; ++k) Gather(step + k);
  for (uint64_t k = 0; k < ahead_; ++k) {
    const auto rows = in.Get<uint64_t>();
    const uint64_t wanted = step + k < total_steps_ ? SlotOf(step + k).batch.ids.size() : 0;
    if (!in.ok() || rows != wanted) {
      return absl::FailedPreconditionError(absl::StrCat("the snapshot has ", rows, " rows for step ", step + k,
                                                        ", which needs ", wanted, ": it is of other training data"));
    }
    SlotOf(step + k).rows.resize(rows * dim_);
    in.GetFloats(SlotOf(step + k).rows);
  }
  if (!in.ok() || !in.at_end()) return absl::FailedPreconditionError("the snapshot's length is not what it says");
  log_.Info("continues from its snapshot at step ", next_step_, " of ", total_steps_);
  return absl::OkStatus();
}

absl::Status SparseTraining::Save() {
  SLUICE_RETURN_IF_ERROR(WaitForAll());
  Writer out;
  out.Put(kStateVersion);
  out.Put(static_cast<uint32_t>(dim_));
  out.Put(next_step_);
  out.Put(gather_.done());
  out.Put(static_cast<uint64_t>(options_.seed));
  out.Put(uint64_t{sampler_->batch()});
  out.Put(ahead_);
  out.Put(static_cast<uint64_t>(options_.epochs));
  out.Put(static_cast<uint64_t>(options_.steps));
  for (uint64_t k = 0; k < ahead_; ++k) out.Put(PushedBefore(next_step_ + k).bias[0]);
  for (uint64_t k = 0; k < ahead_; ++k) {
    const std::span<const float> rows =
        next_step_ + k < total_steps_ ? std::span<const float>(SlotOf(next_step_ + k).rows) : std::span<const float>();
    out.Put(static_cast<uint64_t>(rows.size() / dim_));
    out.PutFloats(rows);
  }
  return ToAbsl(client_->SaveSnapshot(out.bytes()));
}

}  // namespace sluice::worker
