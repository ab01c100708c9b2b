// How tensors of a worker come into being.
//
//   1. Register       asks the scheduler; its answer names the tensors' ids, or what another worker registered
//   differently.
//   2. OnPlan         when the plan has these ids, the tensors are made, with a partition for each of the plan's.
//   3. admission      each partition is pulled with ADMIT: the owner exists, and says which round is open, at which
//   rate,
//                     and (replies that are changes) what the replica is. A bounded number of bytes is asked for at a
//                     time.
//                     A tensor that workers exchange among themselves has none, and is handed on (worker/exchange).
//   4. done           a tensor's next round is the smallest of its partitions', since a former life of this worker may
//   have
//                     been cut off in the middle of a step; what the owners have already they answer again. For the
//                     same reason tensors of one call whose rounds differ by one step are put on the earlier one (BSP).
//
// A worker that comes back to a rank which was declared out (WorkerInfo.joining) names the round that it takes part from:
//   3. asking      each partition's owner says which round is open, and sends no value
//   3a. naming     each partition is told round R, two above the highest that was heard of (under SSP and ASP: the highest),
//                  and answers at once with its open round. If one has reached R meanwhile, a later R is named to all. (Those
//                  that had taken the former one wait for this worker there, so training cannot run away from it.)
//   3b. waiting    each partition is pulled with round R: from then on the others wait for this worker, as for any other, and
//                  no earlier. If they have left meanwhile, the answer is the round that is open.
//   4. done        the next round of all tensors is R.
// R is one for all tensors that there were when the worker came back, those of its later calls too: else the others would
// wait for it in one of them, and it for the others in another. So their rounds must be equal: each is pushed once a step.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/control.pb.h"
#include "transport/control/member_core.h"
#include "worker/op.h"
#include "worker/partition.h"

namespace sluice::worker {

// Refuses a plan whose tensors, partitions and shards do not fit together.
absl::Status CheckPlan(const proto::Plan& plan);

class Admission {
 public:
  using Done = std::function<void(absl::StatusOr<std::vector<uint32_t>>)>;
  struct Env {
    const Clock* clock = nullptr;
    TimeNs timeout = 60 * kSecond;
    control::MemberCore* member = nullptr;
    OpQueue* ops = nullptr;
    PartitionEnv* partitions = nullptr;
    std::function<transport::LinkId(const Partition&)> link;
    std::function<void(TensorState&)> made;                 // a tensor has been made: the core indexes its partitions
    std::function<absl::Status(const proto::TensorInfo&)> exchanged;   // takes one that is not of servers, maybe again
    std::function<std::string(const Partition&)> describe;  // owner and link of a partition, for people
  };
  explicit Admission(Env env) : env_(std::move(env)) {}

  void Register(std::vector<proto::TensorSpec> specs, Done done);
  void OnPlan(const proto::Plan& plan);
  bool OnPartitionIdle(Partition* partition);  // true: it was an admission
  void OnTick();                               // timeouts
  void Fail(const absl::Status& why);
  std::string Waiting() const;  // "" if nothing waits

  // When the oldest wait began; INT64_MAX if nothing waits.
  TimeNs oldest() const { return requests_.empty() ? INT64_MAX : requests_.front().since; }

  // What the owner said at admission: the partition's open round.
  uint64_t open_round(uint32_t partition) const;

 private:
  struct Request {
    uint64_t number = 0;
    std::vector<proto::TensorSpec> specs;
    Done done;
    TimeNs since = 0;
    bool answered = false;
    std::vector<uint32_t> ids;
    size_t unfinished = 0;  // partitions that are not admitted yet
    bool made = false;
    enum class Step { kAsking, kHeld, kNaming, kWaiting } step = Step::kAsking;
    std::vector<TensorState*> joins;     // 3a and 3b are about these
    uint64_t round = 0;                  // R
    uint64_t most = 0, least = UINT64_MAX;   // of the answers of this step
  };

  void OnAnswer(uint64_t number, const proto::RequestDone& answer);
  void TryMake(Request& request);
  absl::Status Make(const proto::TensorInfo& info, Request& request);
  void Adopt(TensorState& tensor, Request& request);
  void Pump();
  bool Joins(const Partition& partition) const;
  void Answered(std::list<Request>::iterator it);   // all partitions have, in this step
  void Ask(Request& request, Request::Step step);
  void LetHeldGo();
  void Complete(std::list<Request>::iterator it, absl::Status status);
  std::list<Request>::iterator FindRequest(uint64_t number);
  std::string Describe(const Request& request) const;

  Env env_;
  proto::Plan plan_;
  std::list<Request> requests_;
  uint64_t next_number_ = 1;
  std::deque<std::pair<Partition*, uint64_t>> queue_;  // to be asked for, and for which request
  struct Asked {
    uint64_t request = 0;
    size_t bytes = 0;                    // of its value
  };
  std::map<Partition*, Asked> asked_;
  size_t asked_bytes_ = 0;
  std::map<uint32_t, uint64_t> open_rounds_;
  std::optional<uint64_t> joined_at_;                  // R, once all have taken it
  uint64_t naming_ = 0;                                // the request that finds it out; others are held until it has
  uint64_t ahead_ = 2;                                 // of the highest open round
};

}  // namespace sluice::worker
