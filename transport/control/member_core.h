// What a server and a worker have in common towards the scheduler: registration, heartbeats, requests that survive a
// broken stream or a restarted scheduler. No I/O, no thread, no clock of its own. Protocol: proto/control.proto.
//
// Timeline:
//   t=0  shell: OnStreamUp()         -> Send(Register)
//   t=1  shell: OnMessage(Welcome)   -> listener.OnWelcome
//   t=2  shell: OnMessage(Plan v1)   -> listener.OnPlan, Send(PlanAck)
//   …    shell: OnTick()             -> Send(Heartbeat) when due; requests are not repeated while the stream lives
//   t=9  shell: OnStreamDown(status) -> permanent codes go to listener.OnRefused; others: reopen after a back-off
//   t=10 shell: OnStreamUp()         -> Send(Register with the same incarnation)
//   t=11 shell: OnMessage(Welcome)   -> every unanswered request again
//
// Permanent codes: FAILED_PRECONDITION, ALREADY_EXISTS, INVALID_ARGUMENT, PERMISSION_DENIED, UNAUTHENTICATED. Before
// the first Welcome other codes are retried until connect_timeout, then refused as DEADLINE_EXCEEDED; after it, for
// ever. The back-off goes from 50 ms to 2 s by doubling, without jitter. A refusal answers every unanswered request
// with its status; nothing is called after that.
//
// Callbacks may call back into the core; they must not destroy it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/version.h"
#include "proto/control.pb.h"

namespace sluice::control {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr const char* kReleaseVersion = kVersion;

class MemberCore {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnWelcome(const proto::Welcome& welcome) = 0;
    virtual void OnPlan(const proto::Plan& plan) = 0;         // only newer versions than before, per job
    virtual void OnRefused(const absl::Status& status) = 0;   // permanent: the member must not go on
    virtual void OnReport(const proto::ReportState& report) = 0;
    virtual void OnShutdown(const std::string& why) = 0;
    virtual void OnProbe(const proto::Probe& probe) { (void)probe; }   // servers; what comes of it goes into a heartbeat
    // Fills round, counters, waiting_for, and partitions if a report is due: report_request is then not 0, and it is
    // for the job of the last OnReport. A listener that has not collected the states yet sets it to 0: the next
    // heartbeat asks again (RequestPlan sends one at once).
    virtual void FillHeartbeat(proto::Heartbeat* heartbeat) = 0;
  };
  // send: hands a message to the stream that is up. reconnect: asks the shell to open a stream after a delay; if one is
  // still up it is given up without an OnStreamDown.
  struct Output {
    std::function<void(const proto::MemberMessage&)> send;
    std::function<void(TimeNs delay)> reconnect;
  };

  MemberCore(proto::Register identity, std::string scheduler_address, TimeNs connect_timeout, const Clock* clock,
             Output output, Listener* listener);

  void Start();                                  // asks for the first stream
  void OnStreamUp();
  void OnStreamDown(const absl::Status& status);
  void OnMessage(const proto::SchedulerMessage& message);
  void OnTick();

  using Done = std::function<void(const proto::RequestDone&)>;
  void RegisterTensors(std::vector<proto::TensorSpec> tensors, Done done);
  void Barrier(std::string name, uint64_t sequence, Done done);
  void Leave(bool failed, std::string why, Done done);
  void RequestPlan();                            // somebody named a newer plan or term: heartbeat at once

  bool welcomed() const { return welcomed_; }
  const proto::Register& identity() const { return identity_; }
  void set_max_term(uint32_t term) { identity_.set_max_term(term); }
  // "scheduler 10.0.0.1:7700: no answer for 12 s of 60 s; is sluice-scheduler running there?" or "" if all is well.
  std::string Waiting() const;

 private:
  void OnWelcome(const proto::Welcome& welcome);
  void OnPlan(const proto::Plan& plan);
  void SendRegister();
  void SendHeartbeat();
  void Request(uint64_t id, proto::MemberMessage message, Done done);
  bool GaveUp(TimeNs now);                       // connect_timeout passed before the first Welcome: refused
  void Refuse(absl::Status status);

  proto::Register identity_;
  const std::string scheduler_address_;
  const TimeNs connect_timeout_;
  const Clock* const clock_;
  const Output output_;
  Listener* const listener_;

  bool stream_up_ = false;
  bool welcomed_ = false;
  bool ever_welcomed_ = false;
  bool refused_ = false;                         // for good: last_error_ says why
  TimeNs down_since_ = 0;                        // since when there has been no Welcome
  TimeNs last_heard_ = 0;                        // while a stream is up: when the scheduler last said something
  TimeNs silence_limit_ = 15 * kSecond;          // a stream that is silent for longer is given up
  TimeNs last_heartbeat_ = 0;
  TimeNs heartbeat_every_ = 500 * kMillisecond;
  TimeNs backoff_ = 0;
  uint64_t heartbeat_sequence_ = 0;
  uint64_t next_request_ = 1;
  std::deque<proto::ReportState> reports_;       // unanswered; the listener has the first in hand
  absl::Status last_error_;
  std::map<uint32_t, uint64_t> plan_versions_;   // job -> newest
  struct Pending {
    proto::MemberMessage message;
    Done done;
    TimeNs since = 0;
    bool sent_on_this_stream = false;
  };
  std::map<uint64_t, Pending> pending_;          // by request number
};

}  // namespace sluice::control
