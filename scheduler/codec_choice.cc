#include "scheduler/codec_choice.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "compression/codec.h"
#include "compression/codec_schedule.h"

namespace sluice::scheduler {
namespace {

constexpr uint64_t kWindowRounds = 8;
constexpr TimeNs kWindowTime = 2 * kSecond;
constexpr uint64_t kLeastPlainBytes = 1 << 20;   // of a goodput
constexpr double kWithinBest = 1.1;              // a milder codec that costs so little more is preferred
constexpr double kWorthIt = 1.03;                // a trial's rate over that of before
constexpr double kAsGood = 0.97;
constexpr double kFallen = 0.8;                  // of the settled rate: something has changed
constexpr TimeNs kTrialPause = 60 * kSecond, kMaxPause = 30 * 60 * kSecond;
constexpr uint64_t kProbeRounds = 3;
constexpr TimeNs kProbeEvery = 60 * kSecond, kMaxProbeEvery = 60 * 60 * kSecond;
constexpr double kProbeShare = 0.02;             // of all time, at most
constexpr TimeNs kStrongerPause = 10 * 60 * kSecond;
constexpr double kLeastEntries = 1000;           // of a sparse codec
constexpr uint64_t kMillion = 1 << 20;         // elements

double Seconds(TimeNs time) { return static_cast<double>(time) / kSecond; }

}  // namespace

CodecChooser::CodecChooser(CodecChooserOptions options) : options_(std::move(options)) {
  for (const std::string& name : options_.codecs) {
    const auto codec = compression::MakeCodec(name);
    ratio_.push_back(compression::RatioOf(name).value_or(1));
    payload_.push_back(codec.ok() ? static_cast<double>((*codec)->MaxEncodedBytes(kMillion)) : 4.0 * kMillion);
  }
}

void CodecChooser::AddTensor(uint32_t tensor, const std::string& name, uint64_t elements, const std::string& codec) {
  const auto [it, is_new] = tensors_.try_emplace(tensor);
  if (!is_new) return;
  it->second.name = name;
  it->second.elements = elements;
  const auto at = std::find(options_.codecs.begin(), options_.codecs.end(), codec);
  it->second.level = at == options_.codecs.end() ? 0 : static_cast<size_t>(at - options_.codecs.begin());
  // A scheduler that starts again goes on with what the plan has.
  if (it->second.level > 0 && state_ == State::kMeasuring) state_ = State::kSettled;
}

void CodecChooser::Take(uint32_t rank, const proto::Heartbeat& heartbeat, TimeNs now) {
  Worker& worker = workers_[rank];
  const bool fresh = worker.at == 0 || heartbeat.round() < worker.round || heartbeat.plain_bytes() < worker.plain_bytes;
  worker.at = now;
  worker.round = heartbeat.round();
  worker.round_at_us = heartbeat.round_at_us();
  worker.plain_bytes = heartbeat.plain_bytes();
  worker.plain_busy_us = heartbeat.plain_busy_us();
  if (fresh) Begin(&worker);
  if (heartbeat.has_loss()) worker.loss = heartbeat.loss();
  for (const proto::CodecSpeed& speed : heartbeat.codec_speeds())   // of ours alone: a peer's names must not fill the memory
    if (speed.bytes_per_second() > 0 && std::ranges::count(options_.codecs, speed.codec()) > 0)
      worker.speeds[speed.codec()] = static_cast<double>(speed.bytes_per_second());
  for (const proto::TensorCodecState& state : heartbeat.codecs()) {
    const auto it = tensors_.find(state.tensor());
    if (it == tensors_.end() || state.codec() != options_.codecs[it->second.level]) continue;
    // Of a NaN nothing is known; the loss will tell.
    if (state.residual_ratio() > it->second.residual) it->second.residual = state.residual_ratio();
  }
}

void CodecChooser::Forget(uint32_t rank) {
  if (workers_.erase(rank) > 0) window_.open = false;   // the rate is another now
}

uint64_t CodecChooser::SlowestRound() const {
  uint64_t round = UINT64_MAX;
  for (const auto& [rank, worker] : workers_) round = std::min(round, worker.round);
  return round;
}

uint64_t CodecChooser::FastestRound() const {
  uint64_t round = 0;
  for (const auto& [rank, worker] : workers_) round = std::max(round, worker.round);
  return round;
}

std::optional<double> CodecChooser::Loss() const {
  double sum = 0;
  size_t count = 0;
  for (const auto& [rank, worker] : workers_)
    if (worker.loss.has_value()) sum += *worker.loss, ++count;
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

void CodecChooser::OpenWindow(TimeNs now) {
  window_ = {.open = true, .since = now, .round = SlowestRound()};
  for (auto& [rank, worker] : workers_) Begin(&worker);
}

void CodecChooser::Begin(Worker* worker) {
  worker->since_bytes = worker->plain_bytes, worker->since_busy_us = worker->plain_busy_us;
  worker->since_round = worker->round, worker->since_at_us = worker->round_at_us;
}

bool CodecChooser::WindowIsFull(TimeNs now) const {
  const uint64_t rounds = SlowestRound() - std::min(SlowestRound(), window_.round);
  if (state_ == State::kProbing) return rounds >= kProbeRounds;
  return rounds >= kWindowRounds && now - window_.since >= kWindowTime;
}

double CodecChooser::Rate() const {
  double slowest = 0;
  for (const auto& [rank, worker] : workers_) {
    if (worker.round <= worker.since_round || worker.round_at_us <= worker.since_at_us) continue;
    const double rate = static_cast<double>(worker.round - worker.since_round) * 1e6 /
                        static_cast<double>(worker.round_at_us - worker.since_at_us);
    if (slowest == 0 || rate < slowest) slowest = rate;
  }
  return slowest;
}

// The slowest worker's: a round waits for it.
void CodecChooser::TakeGoodput() {
  double slowest = 0;
  for (const auto& [rank, worker] : workers_) {
    const uint64_t bytes = worker.plain_bytes - worker.since_bytes;
    const uint64_t busy_us = worker.plain_busy_us - std::min(worker.plain_busy_us, worker.since_busy_us);
    if (bytes < kLeastPlainBytes || busy_us == 0) continue;
    const double goodput = static_cast<double>(bytes) / static_cast<double>(busy_us) * 1e6;
    if (slowest == 0 || goodput < slowest) slowest = goodput;
  }
  if (slowest > 0) goodput_ = slowest;
}

double CodecChooser::Speed(size_t level) const {
  double slowest = 0;
  for (const auto& [rank, worker] : workers_) {
    const auto speed = worker.speeds.find(options_.codecs[level]);
    if (speed != worker.speeds.end() && (slowest == 0 || speed->second < slowest)) slowest = speed->second;
  }
  return slowest;
}

double CodecChooser::Payload(const Tensor& tensor, size_t level) const {
  return static_cast<double>(tensor.elements) * payload_[level] / kMillion;
}

// "none" is handed over as it is. A codec whose speed nobody measured is never chosen.
double CodecChooser::Cost(const Tensor& tensor, size_t level) const {
  double seconds = Payload(tensor, level) / goodput_;
  if (level == 0) return seconds;
  if (ratio_[level] < 1 && ratio_[level] * static_cast<double>(tensor.elements) < kLeastEntries) return HUGE_VAL;
  const double speed = Speed(level);
  if (speed == 0) return HUGE_VAL;
  return seconds + 4.0 * static_cast<double>(tensor.elements) / speed;
}

CodecChooser::Levels CodecChooser::Model(TimeNs now) const {
  Levels levels;
  for (const auto& [id, tensor] : tensors_) {
    const size_t loss_cap = now < no_stronger_before_ ? loss_cap_ : SIZE_MAX;
    const size_t most = std::min({options_.codecs.size() - 1, tensor.cap, loss_cap});
    double best = HUGE_VAL;
    for (size_t level = 0; level <= most; ++level) best = std::min(best, Cost(tensor, level));
    size_t level = 0;
    while (level < most && Cost(tensor, level) > best * kWithinBest) ++level;
    levels[id] = level;
  }
  return levels;
}

CodecChooser::Levels CodecChooser::Current() const {
  Levels levels;
  for (const auto& [id, tensor] : tensors_) levels[id] = tensor.level;
  return levels;
}

std::string CodecChooser::Summary(const Levels& levels) const {
  std::map<size_t, int> count;
  for (const auto& [id, level] : levels) ++count[level];
  std::vector<std::string> parts;
  for (const auto& [level, tensors] : count) parts.push_back(absl::StrCat(tensors, " in ", options_.codecs[level]));
  return absl::StrJoin(parts, ", ");
}

CodecChooser::Decision CodecChooser::Change(const Levels& levels, std::string why) {
  Decision decision;
  for (const auto& [id, wanted] : levels) {
    Tensor& tensor = tensors_.at(id);
    const size_t level = std::min(wanted, tensor.cap);
    if (tensor.level == level) continue;
    tensor.level = level;
    tensor.residual = 0;
    decision.codecs[id] = options_.codecs[level];
  }
  // Far enough ahead that the plan is everywhere before: a worker's round may be a heartbeat old, and so may be its plan.
  const double ahead = rate_ > 0 ? rate_ * 3 * Seconds(options_.heartbeat) : 0;
  decision.from_round = FastestRound() + 4 + static_cast<uint64_t>(std::min(ahead, 1e6));
  decision.why = std::move(why);
  not_before_round_ = decision.from_round + 1;
  window_.open = false;
  return decision;
}

std::optional<CodecChooser::Decision> CodecChooser::Guard(TimeNs now) {
  const std::optional<double> loss = Loss();
  Levels levels = Current();
  if (loss.has_value() && !std::isfinite(*loss)) {
    bool any = false;
    for (auto& [id, level] : levels) any = any || level > 0, level = 0;
    if (!any) return std::nullopt;
    loss_cap_ = 0;
    no_stronger_before_ = now + kStrongerPause;
    state_ = State::kSettled;
    return Change(levels, "the loss is not finite: all tensors go uncompressed");
  }
  if (state_ == State::kProbing) return std::nullopt;
  std::vector<std::string> which;
  for (auto& [id, tensor] : tensors_) {
    if (tensor.level == 0 || !(tensor.residual > options_.max_residual)) continue;
    which.push_back(absl::StrFormat("%s: %.3g gradients", tensor.name, tensor.residual));
    tensor.cap = tensor.level - 1;
    levels[id] = tensor.cap;
  }
  if (which.empty()) return std::nullopt;
  if (state_ == State::kTrying) state_ = State::kSettled;
  rate_ = 0;
  const size_t more = which.size() > 3 ? which.size() - 3 : 0;
  which.resize(which.size() - more);
  return Change(levels,
                absl::StrFormat("residuals exceed job.auto_max_residual = %g (%s%s): the next milder codec", options_.max_residual,
                                absl::StrJoin(which, "; "), more > 0 ? absl::StrCat(" and ", more, " more") : ""));
}

// before: what there is, apart from a probe.
std::optional<CodecChooser::Decision> CodecChooser::Propose(const Levels& before, TimeNs now) {
  probe_at_ = now + std::max(probe_every_, kProbeEvery);
  const bool may = goodput_ > 0 && now >= no_trial_before_;
  const Levels levels = may ? Model(now) : before;
  if (levels == before) {
    state_ = State::kSettled;
    if (before == Current()) return std::nullopt;
    return Change(before, absl::StrFormat("goodput %.3g MB/s: as before", goodput_ / 1e6));
  }
  before_ = before;
  rate_before_ = rate_;
  state_ = State::kTrying;
  Decision decision = Change(levels,
                             absl::StrFormat("goodput %.3g MB/s: %s, instead of %s; a trial, %.3g rounds/s before", goodput_ / 1e6,
                                             Summary(levels), Summary(before), rate_));
  if (decision.codecs.empty()) return std::nullopt;   // the probe is the trial
  return decision;
}

// What a trial must reach. Milder codecs need not be faster.
double CodecChooser::Wanted() const {
  for (const auto& [id, level] : before_)
    if (tensors_.at(id).level > level) return rate_before_ * kWorthIt;
  return rate_before_ * kAsGood;
}

// The largest tensors: what half of all elements lies in.
std::optional<CodecChooser::Decision> CodecChooser::Probe(TimeNs now, const std::string& why) {
  std::vector<std::pair<uint64_t, uint32_t>> order;
  uint64_t total = 0, taken = 0;
  for (const auto& [id, tensor] : tensors_) order.emplace_back(tensor.elements, id), total += tensor.elements;
  std::ranges::sort(order, std::greater<>());
  before_ = Current();
  Levels levels = before_;
  for (const auto& [elements, id] : order) {
    if (taken * 2 >= total && taken > 0) break;
    taken += elements;
    levels[id] = 0;
  }
  rate_before_ = rate_;
  probe_begun_ = now;
  probe_round_ = SlowestRound();
  state_ = State::kProbing;
  if (levels == before_) {   // they go uncompressed anyway
    window_.open = false;
    return std::nullopt;
  }
  return Change(levels, absl::StrCat(why, ": the largest tensors go uncompressed for a few rounds, to measure the link"));
}

std::optional<CodecChooser::Decision> CodecChooser::OnWindow(double rate, std::optional<double> loss, TimeNs now) {
  TakeGoodput();
  switch (state_) {
    case State::kMeasuring:
      rate_ = rate;
      return Propose(Current(), now);
    case State::kTrying: {
      if (rate >= Wanted()) {
        state_ = State::kSettled;
        rate_ = rate;
        trial_pause_ = 0;
        slow_windows_ = 0;
        window_.open = false;
        return Decision{{}, 0, absl::StrFormat("%.3g rounds/s with %s, %.3g before: it stays", rate, Summary(Current()), rate_before_)};
      }
      trial_pause_ = std::min(kMaxPause, std::max(kTrialPause, 2 * trial_pause_));
      no_trial_before_ = now + trial_pause_;
      state_ = State::kSettled;
      const std::string tried = Summary(Current());
      rate_ = rate_before_;
      return Change(before_, absl::StrFormat("%.3g rounds/s with %s, %.3g before: not worth it, back; nothing is tried for %.0f s",
                                                  rate, tried, rate_before_, Seconds(trial_pause_)));
    }
    case State::kProbing: {
      rate_ = rate_before_;
      const double usual = rate_ > 0 ? static_cast<double>(SlowestRound() - probe_round_) / rate_ : 0;
      const double cost = std::max(0.0, Seconds(now - probe_begun_) - usual) / kProbeShare;
      probe_every_ = cost < Seconds(kMaxProbeEvery) ? static_cast<TimeNs>(cost * kSecond) : kMaxProbeEvery;
      return Propose(before_, now);
    }
    case State::kSettled: break;
  }
  if (loss.has_value()) {
    if (last_loss_.has_value()) loss_spread_ += 0.2 * (std::abs(*loss - *last_loss_) - loss_spread_);
    last_loss_ = loss;
    if (!has_best_loss_ || *loss < best_loss_) best_loss_ = *loss, has_best_loss_ = true;
    const bool departed = *loss > best_loss_ + 0.1 * std::abs(best_loss_) + 4 * loss_spread_;
    departed_windows_ = departed ? departed_windows_ + 1 : 0;
    size_t strongest = 0;
    for (const auto& [id, tensor] : tensors_) strongest = std::max(strongest, tensor.level);
    if (departed_windows_ >= 2 && strongest > 0) {
      departed_windows_ = 0;
      loss_cap_ = strongest - 1;
      no_stronger_before_ = now + kStrongerPause;
      Levels levels = Current();
      for (auto& [id, level] : levels) level = std::min(level, loss_cap_);
      const std::string why = absl::StrFormat("the loss is %.4g, its best was %.4g: nothing stronger than %s for %.0f s", *loss,
                                              best_loss_, options_.codecs[loss_cap_], Seconds(kStrongerPause));
      best_loss_ = *loss;   // from here on
      rate_ = 0;
      return Change(levels, why);
    }
  }
  if (rate_ == 0) rate_ = rate;
  slow_windows_ = rate < rate_ * kFallen ? slow_windows_ + 1 : 0;
  if (slow_windows_ >= 2) {
    slow_windows_ = 0;
    const std::string why = absl::StrFormat("%.3g rounds/s, %.3g before", rate, rate_);
    rate_ = rate;
    return Probe(now, why);
  }
  // It drifts with the training's own pace.
  rate_ += 0.1 * (rate - rate_);
  if (probe_at_ == 0) probe_at_ = now + kProbeEvery;
  if (now >= probe_at_) return Probe(now, "the last measurement is old");
  return std::nullopt;
}

std::optional<CodecChooser::Decision> CodecChooser::Decide(TimeNs now) {
  if (workers_.empty() || tensors_.empty()) return std::nullopt;
  if (auto decision = Guard(now); decision.has_value()) return decision;
  const uint64_t slowest = SlowestRound();
  if (slowest < std::max<uint64_t>(not_before_round_, 1)) return std::nullopt;
  if (!window_.open) {
    OpenWindow(now);
    return std::nullopt;
  }
  if (!WindowIsFull(now)) return std::nullopt;
  const double rate = Rate();
  if (rate == 0) {
    window_.open = false;
    return std::nullopt;
  }
  auto decision = OnWindow(rate, Loss(), now);
  if (!decision.has_value()) OpenWindow(now);
  return decision;
}

}  // namespace sluice::scheduler
