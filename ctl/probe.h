// sluicectl links --probe: asks for probes of links, waits for their end, and shows what came of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "ctl/admin_client.h"
#include "proto/admin.pb.h"

namespace sluice::ctl {

struct Probing {
  proto::ProbeLinksAnswer answer;
  std::string summary;                  // the scheduler's, at the end; "" if there was nothing to probe
  std::vector<std::string> failures;    // a pair of servers each: who, where, why
  proto::LinkList links;                // after the end
};

// pause: waits that long. DEADLINE_EXCEEDED: no end within the time that all pairs one after the other may take.
absl::StatusOr<Probing> ProbeAndWait(const proto::ProbeLinksRequest& request, AdminClient* client, const Clock* clock,
                                     const std::function<void(TimeNs)>& pause);

std::string RenderProbing(const Probing& probing);
// What `sluicectl links --json` shows, and "probe": {answer, summary, failures}.
std::string ProbingJson(const Probing& probing);

}  // namespace sluice::ctl
