#include "ctl/probe.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "ctl/render.h"
#include "nlohmann/json.hpp"

namespace sluice::ctl {
namespace {

constexpr TimeNs kLookEvery = 100 * kMillisecond;
constexpr TimeNs kPairLimit = 20 * kSecond;      // and a second for each 10^6 bytes: more than the scheduler allows
constexpr int kNamed = 20;                       // of the links out of reach

}  // namespace

absl::StatusOr<Probing> ProbeAndWait(const proto::ProbeLinksRequest& request, AdminClient* client, const Clock* clock,
                                     const std::function<void(TimeNs)>& pause) {
  // Events that are there already are none of this request.
  SLUICE_ASSIGN_OR_RETURN(const proto::EventList before, client->ListEvents(0, UINT32_MAX));
  uint64_t seen = before.events().empty() ? 0 : before.events(before.events_size() - 1).number();
  Probing probing;
  SLUICE_ASSIGN_OR_RETURN(probing.answer, client->ProbeLinks(request));
  const proto::ProbeLinksAnswer& answer = probing.answer;
  const std::string prefix = absl::StrCat("request ", answer.request(), ": ");
  const TimeNs limit = answer.pairs() * kPairLimit + static_cast<TimeNs>(answer.bytes()) * 1000;
  for (const TimeNs began = clock->Now(); answer.pairs() > 0 && probing.summary.empty();) {
    if (clock->Now() - began >= limit) {
      return absl::DeadlineExceededError(
          absl::StrFormat("request %d: no end of the probes within %.0f s; `sluicectl events` shows what the scheduler knows of it (was it "
                          "started again?), `sluicectl links` what has been measured",
                          answer.request(), static_cast<double>(limit) / kSecond));
    }
    SLUICE_ASSIGN_OR_RETURN(const proto::EventList events, client->ListEvents(seen, 0));
    for (const proto::Event& event : events.events()) {
      seen = std::max(seen, event.number());
      if (!absl::StartsWith(event.text(), prefix)) continue;
      const std::string text = event.text().substr(prefix.size());
      if (event.kind() == "probe_failed") probing.failures.push_back(text);
      if (event.kind() == "probe_done") probing.summary = text;
    }
    if (probing.summary.empty()) pause(kLookEvery);
  }
  SLUICE_ASSIGN_OR_RETURN(probing.links, client->ListLinks());
  return probing;
}

std::string RenderProbing(const Probing& probing) {
  std::string text = probing.summary.empty()
                         ? "nothing to probe: what servers can reach has fresh measurements (--all probes it all the same)\n"
                         : absl::StrCat(probing.summary, "\n");
  for (const std::string& failure : probing.failures) absl::StrAppend(&text, "failed: ", failure, "\n");
  const auto& far = probing.answer.unreachable();
  if (!far.empty()) {
    absl::StrAppend(&text, "not measured, since no two servers have them on their way: ",
                    absl::StrJoin(far.begin(), far.begin() + std::min(far.size(), kNamed), ", "),
                    far.size() > kNamed ? absl::StrCat(", … (", far.size(), ")") : "", "\n");
  }
  return absl::StrCat(text, "\n", Render(probing.links));
}

std::string ProbingJson(const Probing& probing) {
  nlohmann::json out = nlohmann::json::parse(Json(probing.links));
  out["probe"] = {{"answer", nlohmann::json::parse(Json(probing.answer))}, {"summary", probing.summary}, {"failures", probing.failures}};
  return out.dump(2) + "\n";
}

}  // namespace sluice::ctl
