// The owner's half of a step-wide decision: collects the records of this lane's partitions, sends them to the
// coordinator, asks again until the verdict comes. Protocol: docs/wire.md, "A step's verdict".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "server/step_messages.h"

namespace sluice::server {

class VerdictClient {
 public:
  // Brings records to the coordinator, if it can be reached now.
  using Send = std::function<void(uint64_t step, uint32_t phase, const std::vector<StepRecord>& records)>;

  VerdictClient(const Clock* clock, TimeNs resend, Send send)
      : clock_(clock), resend_(resend), send_(std::move(send)) {}

  // One partition's record (its last word, if it said something before); Flush sends it.
  void Add(uint64_t step, uint32_t phase, const StepRecord& record);
  void Flush();                  // at the end of each event: what was added since
  // True if this verdict was waited for: apply it to the partitions. Earlier steps are over.
  bool OnVerdict(uint64_t step, uint32_t phase);
  void OnTick();                 // asks again after `resend`
  void OnCoordinatorUp();        // asks again at once

  std::string WaitingFor() const;   // for people, or ""

 private:
  struct Gather {
    std::map<uint32_t, StepRecord> records;   // by partition
    std::vector<uint32_t> added;              // partitions that were not sent yet
    TimeNs sent = 0;                          // 0: nothing yet
    TimeNs since = 0;
  };
  void SendAll(const std::pair<uint64_t, uint32_t>& key, Gather& gather);

  const Clock* const clock_;
  const TimeNs resend_;
  const Send send_;
  std::map<std::pair<uint64_t, uint32_t>, Gather> open_;   // by step and phase
};

}  // namespace sluice::server
