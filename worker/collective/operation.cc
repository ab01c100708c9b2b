#include "worker/collective/operation.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::collective {

void AddValues(std::span<float> a, ConstBytes b) {
  typedef float Lanes __attribute__((vector_size(32)));
  constexpr size_t kLanes = sizeof(Lanes) / sizeof(float);
  float* to = a.data();
  const std::byte* from = b.data();
  const size_t n = a.size();
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes x, y;
    std::memcpy(&x, to + i, sizeof(Lanes));
    std::memcpy(&y, from + i * sizeof(float), sizeof(Lanes));
    x += y;
    std::memcpy(to + i, &x, sizeof(Lanes));
  }
  for (; i < n; ++i) to[i] += LoadLe<float>(from + i * sizeof(float));
}

ScheduleOperation::ScheduleOperation(OperationEnv env, Steps steps, std::span<const float> input, std::span<float> work)
    : env_(std::move(env)), steps_(std::move(steps)), input_(input), work_(work) {}

std::vector<uint32_t> ScheduleOperation::peers() const {
  std::set<uint32_t> ranks;
  for (const Step& step : steps_) ranks.insert(env_.group.rank(step.peer));
  return {ranks.begin(), ranks.end()};
}

absl::Status ScheduleOperation::Start() {
  states_.resize(steps_.size());
  const std::vector<std::vector<uint32_t>> dependencies = Dependencies(steps_);
  std::map<std::pair<uint32_t, bool>, uint32_t> numbers;
  for (uint32_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    const bool send = step.kind == Step::Kind::kSend;
    states_[i].number = numbers[{step.peer, send}]++;
    states_[i].before = static_cast<uint32_t>(dependencies[i].size());
    for (const uint32_t before : dependencies[i]) states_[before].after.push_back(i);
    if (step.kind == Step::Kind::kReduce) reduces_.push_back(i);
    if (step.kind == Step::Kind::kCopy) copies_.push_back(i);
  }
  for (uint32_t i = 0; i < steps_.size(); ++i)
    if (states_[i].before == 0 && steps_[i].kind == Step::Kind::kSend) Ready(i);
  return Issue();
}

// Expects what comes next, as far as the windows go. In order, so the first that is missing is always expected.
absl::Status ScheduleOperation::Issue() {
  for (; next_reduce_ < reduces_.size(); ++next_reduce_) {
    const uint32_t i = reduces_[next_reduce_];
    const size_t bytes = Bytes(i);
    if (reduce_bytes_ > 0 && reduce_bytes_ + bytes > kReduceWindow) break;
    SLUICE_ASSIGN_OR_RETURN(states_[i].scratch, env_.pool->Take(bytes));
    reduce_bytes_ += bytes;
    env_.courier->Expect(env_.op, i, env_.group.rank(steps_[i].peer), states_[i].number, {states_[i].scratch.get(), bytes}, true);
  }
  for (; next_copy_ < copies_.size(); ++next_copy_) {
    const uint32_t i = copies_[next_copy_];
    if (states_[i].before > 0 || (copy_bytes_ > 0 && copy_bytes_ + Bytes(i) > kCopyWindow)) break;
    copy_bytes_ += Bytes(i);
    env_.courier->Expect(env_.op, i, env_.group.rank(steps_[i].peer), states_[i].number,
                         AsWritableBytes(work_.subspan(steps_[i].offset, steps_[i].count)), true);
  }
  return absl::OkStatus();
}

// All that it waited for is done.
void ScheduleOperation::Ready(uint32_t i) {
  const Step& step = steps_[i];
  if (step.kind == Step::Kind::kSend) {
    const std::span<const float> from = step.from_input ? input_ : std::span<const float>(work_);
    env_.courier->Send(env_.op, i, env_.group.rank(step.peer), states_[i].number, AsBytes(from.subspan(step.offset, step.count)),
                       /*codec=*/0, static_cast<uint32_t>(step.count), env_.priority);
  } else if (step.kind == Step::Kind::kReduce && states_[i].arrived) {
    Add(i, {states_[i].scratch.get(), Bytes(i)});
  }
}

void ScheduleOperation::Add(uint32_t i, ConstBytes values) {
  AddValues(work_.subspan(steps_[i].offset, steps_[i].count), values);
  states_[i].scratch.reset();
  reduce_bytes_ -= Bytes(i);
  Finish(i);
}

// Steps that become ready may finish at once: one after the other, not one inside the other.
void ScheduleOperation::Finish(uint32_t step) {
  to_finish_.push_back(step);
  if (std::exchange(finishing_, true)) return;
  while (!to_finish_.empty()) {
    const uint32_t i = to_finish_.back();
    to_finish_.pop_back();
    ++finished_;
    for (const uint32_t after : states_[i].after)
      if (--states_[after].before == 0) Ready(after);
  }
  finishing_ = false;
}

absl::Status ScheduleOperation::OnArrived(uint32_t i, uint16_t codec, ConstBytes bytes) {
  const Step& step = steps_[i];
  if (codec != 0) return absl::InvalidArgumentError(absl::StrCat("values in codec ", codec, " where plain ones are expected"));
  if (step.kind == Step::Kind::kCopy) {
    const MutableBytes to = AsWritableBytes(work_.subspan(step.offset, step.count));
    if (bytes.data() != to.data()) std::memcpy(to.data(), bytes.data(), bytes.size());
    copy_bytes_ -= Bytes(i);
    Finish(i);
  } else if (states_[i].before == 0) {
    Add(i, bytes);
  } else {
    if (bytes.data() != states_[i].scratch.get()) std::memcpy(states_[i].scratch.get(), bytes.data(), bytes.size());
    states_[i].arrived = true;
  }
  return Issue();
}

absl::Status ScheduleOperation::OnAcknowledged(uint32_t i) {
  Finish(i);
  return Issue();
}

}  // namespace sluice::collective
