// A server that is asked to end (SIGTERM) first gives what it holds to other servers. docs/admin.md, "Moving shards"
//
//   1. Begin: nothing of a running job is here, or node.drain_ms is 0, or there is no stream to the scheduler: false, the
//      server ends at once. Else the scheduler is asked to drain it (DrainCall), and it goes on serving.
//   2. It ends when the plans name it nowhere any more, and have done so for kDrainGrace: late workers ask for answers.
//   3. It ends with what it still has, and says why, when the scheduler refuses (no other server, say), when the plans have
//      no other server left, when there was no stream to the scheduler for kDrainAlone, or after node.drain_ms. What has
//      copies elsewhere goes on there, as after any loss.
//
// No thread and no clock of its own: the daemon's loop calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "proto/plan.pb.h"
#include "server/drain_call.h"

namespace sluice::server {

inline constexpr TimeNs kDrainGrace = 300 * kMillisecond;
inline constexpr TimeNs kDrainAlone = 2 * kSecond;   // nothing moves without a scheduler

class Drain {
 public:
  struct Env {
    std::string id;                    // of this server
    TimeNs limit = 0;                  // node.drain_ms
    const Clock* clock = nullptr;
    const Logger* log = nullptr;
    // Asks the scheduler; done comes on the loop's thread, unless the call was destroyed before.
    std::function<std::unique_ptr<DrainCall>(TimeNs timeout, std::function<void(absl::Status)> done)> ask;
    std::function<void(const std::string& why)> end;   // of the server
  };

  explicit Drain(Env env) : env_(std::move(env)) {}

  void OnPlan(const proto::Plan& plan, uint32_t incarnation);   // this life's
  void OnTick(bool connected);         // to the scheduler

  // False: it is to end now; *why says what is left behind, if anything is.
  bool Begin(bool connected, std::string* why);
  bool begun() const { return begun_; }

 private:
  struct Held {
    uint64_t shards = 0, copies = 0;
    bool others = false;               // some other server of the job is alive
  };
  Held All() const;                    // others: each job that has something here has one
  static std::string Text(const Held& held);

  const Env env_;
  std::map<uint32_t, Held> held_;      // by running job
  bool begun_ = false;
  std::unique_ptr<DrainCall> call_;
  TimeNs since_ = 0;
  TimeNs empty_since_ = 0, alone_since_ = 0;   // 0: not so
};

}  // namespace sluice::server
