// Chooses the codecs of a job's tensors from measurements: job.codec = auto. docs/policy.md, "auto".
//
//   1. MEASURING  all tensors go uncompressed for a window of rounds. That gives the rate (rounds a second) and the goodput of
//                 the workers' links, which only uncompressed pushes show.
//   2. The model gives each tensor the mildest codec whose time is within 10 % of the best one's:
//                 time(c) = fp32 bytes / speed of c + payload(c) / goodput
//                 Nothing is added for decoding: servers do it while other pushes are on their way.
//   3. TRYING     if that differs from what there is, it takes effect in a round ahead of all workers. After a window the
//                 rate must have grown by 3 % (not have fallen, if nothing became stronger), else all goes back (the model sees no overlap with computing): so compression
//                 is never slower than none for longer than a window. What was refused is not tried again for a
//                 minute, and for twice as long after each further refusal.
//   4. SETTLED    A tensor whose residual exceeds auto_max_residual gradients gets the next milder codec, for good. If the loss
//                 departs from its best, all tensors get the next milder, and nothing stronger for ten minutes; if it is not
//                 finite, all go uncompressed.
//   5. PROBING    When the rate has fallen by a fifth in two windows, and every minute or as often as it costs no more than
//                 2 % of the time, the largest tensors go uncompressed for three rounds, which measures the goodput anew; then 2.
//
// A tensor gets no sparse codec that would send fewer than 1,000 of its elements: small tensors lose by it (docs/compression.md).
// A window is at least 8 rounds and 2 s. Rounds in which codecs change count in none. Rates are by the workers' own clocks, as
// heartbeats are too coarse. Pure: no clock, no I/O.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "proto/control.pb.h"

namespace sluice::scheduler {

struct CodecChooserOptions {
  std::vector<std::string> codecs;   // mildest first, the first is "none"
  double max_residual = 100;
  TimeNs heartbeat = kSecond / 2;    // how old a worker's round may be
};

class CodecChooser {
 public:
  explicit CodecChooser(CodecChooserOptions options);

  // A tensor that it chooses for; codec: what it has by the plan. Known ones are left as they are.
  void AddTensor(uint32_t tensor, const std::string& name, uint64_t elements, const std::string& codec);

  void Take(uint32_t rank, const proto::Heartbeat& heartbeat, TimeNs now);
  void Forget(uint32_t rank);   // it is lost, or has left
  void Disturb() { window_.open = false; }   // members came or went: the rounds of this window do not count

  struct Decision {
    std::map<uint32_t, std::string> codecs;   // of the tensors that change; none: a trial has been worth it
    uint64_t from_round = 0;
    std::string why;                          // for people, with the numbers
  };
  // To be asked now and then; what it decides is taken as done.
  std::optional<Decision> Decide(TimeNs now);

  enum class State { kMeasuring, kTrying, kSettled, kProbing };
  State state() const { return state_; }
  double goodput() const { return goodput_; }   // bytes a second; 0: not known

 private:
  struct Tensor {
    std::string name;        // for people
    uint64_t elements = 0;
    size_t level = 0;        // index in options_.codecs
    size_t cap = SIZE_MAX;   // no stronger one
    double residual = 0;     // largest of the workers' last ones
  };
  struct Worker {
    TimeNs at = 0;
    uint64_t round = 0;
    uint64_t plain_bytes = 0, plain_busy_us = 0;
    uint64_t round_at_us = 0;                      // by the worker's clock
    uint64_t since_bytes = 0, since_busy_us = 0;   // at the begin of the window, as the next two
    uint64_t since_round = 0, since_at_us = 0;
    std::optional<double> loss;
    std::map<std::string, double> speeds;          // bytes of fp32 a second
  };
  struct Window {
    bool open = false;
    TimeNs since = 0;
    uint64_t round = 0;
  };
  using Levels = std::map<uint32_t, size_t>;

  uint64_t SlowestRound() const;
  uint64_t FastestRound() const;
  std::optional<double> Loss() const;   // mean; NaN if any is not finite
  static void Begin(Worker* worker);
  void OpenWindow(TimeNs now);
  bool WindowIsFull(TimeNs now) const;
  double Rate() const;   // of the window; 0: the workers' clocks do not tell
  void TakeGoodput();
  double Speed(size_t level) const;
  double Payload(const Tensor& tensor, size_t level) const;
  double Cost(const Tensor& tensor, size_t level) const;   // seconds
  Levels Model(TimeNs now) const;
  Levels Current() const;
  Decision Change(const Levels& levels, std::string why);
  std::optional<Decision> Guard(TimeNs now);
  std::optional<Decision> Propose(const Levels& before, TimeNs now);
  double Wanted() const;
  std::optional<Decision> Probe(TimeNs now, const std::string& why);
  std::optional<Decision> OnWindow(double rate, std::optional<double> loss, TimeNs now);
  std::string Summary(const Levels& levels) const;

  CodecChooserOptions options_;
  std::vector<double> ratio_;          // of the codec's elements that are sent, by level; 1 = all
  std::vector<double> payload_;        // payload bytes of a million elements, by level
  std::map<uint32_t, Tensor> tensors_;
  std::map<uint32_t, Worker> workers_;
  State state_ = State::kMeasuring;
  Window window_;
  uint64_t not_before_round_ = 0;      // the last change takes effect there
  double goodput_ = 0;
  double rate_ = 0;                    // rounds a second with what there is
  Levels before_;                      // TRYING, PROBING: what there was
  double rate_before_ = 0;
  int slow_windows_ = 0;
  double best_loss_ = 0;
  bool has_best_loss_ = false;
  double loss_spread_ = 0;             // mean absolute change from window to window
  std::optional<double> last_loss_;
  int departed_windows_ = 0;
  TimeNs no_trial_before_ = 0, trial_pause_ = 0;
  TimeNs no_stronger_before_ = 0;      // after a departed loss
  size_t loss_cap_ = SIZE_MAX;
  TimeNs probe_at_ = 0, probe_every_ = 0;
  TimeNs probe_begun_ = 0;
  uint64_t probe_round_ = 0;
};

}  // namespace sluice::scheduler
