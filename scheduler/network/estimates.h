// Live estimates of links, out of what members measure between hosts while they train. Pure: times are handed in.
//
// A member says of each path how fast large payloads go to which peer. That is a share of the path's narrowest link, and
// does not say of which. So:
//   1. What crosses an arc at a time adds up: its flow is the sum of the goodputs of all pairs of hosts whose way has it.
//      (Workers push at the same time, so these go side by side; where they do not, the sum is too large, which errs on the
//      side of the graph's number.)
//   2. Links are shared about evenly (max-min fairness), so an arc can hold a pair up only if no other pair is more than
//      twice as fast there.
//   3. An arc whose flow is near its nominal bandwidth is full, and explains the pairs that it can hold up.
//   4. A pair that no full arc explains is held up by something that the graph does not know: of the arcs that can hold it
//      up the one whose flow is nearest to its nominal bandwidth gets that flow as its estimate, since that asks for the least
//      error of the graph. An arc that is faster than its nominal bandwidth gets what was measured, too, if that bandwidth is
//      only assumed: what a file says is the most that a link can do, and more is an error of measurement (bursts).
//   5. A measurement counts fully for kFresh, and less from then on; after kForgotten it counts no more, and the graph's
//      number is back.
//
// A probe (docs/topology.md, "Probes") is alone on its way, or as alone as training leaves it, so it says more, and is put in
// the place of the graph's numbers before training is looked at:
//   6. Every link of its way carries as much at the least. Where several ways share the traffic, a connection takes one of
//      them, and nothing is said of these links.
//   7. Of those that no other probe of the time proves to be faster the narrowest by the graph's number gets what was measured.
//      Equally narrow ones all get it: which of them it is the probe cannot tell.
//   8. What training had measured of such a link before counts no more for it: the link may have changed since.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "scheduler/fabric/routes.h"

namespace sluice::network {

inline constexpr TimeNs kFresh = 10 * kSecond;
inline constexpr TimeNs kForgotten = 300 * kSecond;
inline constexpr double kFull = 0.75;            // of the nominal bandwidth: an arc with so much on it is full
inline constexpr double kAsFast = 0.5;           // of the fastest pair of an arc: it may be what holds this one up
inline constexpr double kProbesDiffer = 1.1;     // a link that carried so many times as much to another probe held this one not up
inline constexpr size_t kMaxPairs = 1 << 16;     // the oldest goes

struct PairMeasure {
  double goodput = 0;            // bytes a second, the sum over the paths of a report
  double rtt_s = 0;              // 0 = not known
  uint64_t retransmits = 0;      // since the connections began
  TimeNs at = 0;
};

struct ArcEstimate {
  double bytes_per_second = 0;
  double confidence = 0;         // 1 while fresh, 0 when forgotten
  TimeNs at = 0;                 // of the newest measurement that counts
  double rtt_s = 0;              // the shortest of the pairs that cross it
  uint64_t retransmits = 0;      // of all of these
};

class LinkEstimates {
 public:
  // Host vertices of the topology. `who`: of several members of a host each one's measurement counts; an older one of the
  // same member is replaced.
  void Take(uint32_t from, uint32_t to, uint64_t who, const PairMeasure& measure);
  // Of a probe, in the place of an older one of the same pair.
  void TakeProbe(uint32_t from, uint32_t to, const PairMeasure& measure);
  void Forget(TimeNs now);       // what is older than kForgotten

  // Of each arc bytes a second, and whether that is only assumed.
  struct Nominal {
    double bytes_per_second = 0;
    bool assumed = false;
  };
  // Arcs that no measurement concerns are left out.
  std::map<uint32_t, ArcEstimate> Arcs(const fabric::Routes& routes, const std::vector<Nominal>& nominal, TimeNs now) const;

  using Key = std::tuple<uint32_t, uint32_t, uint64_t>;   // from, to, who
  const std::map<Key, PairMeasure>& pairs() const { return pairs_; }
  using ProbeKey = std::pair<uint32_t, uint32_t>;         // from, to
  const std::map<ProbeKey, PairMeasure>& probes() const { return probes_; }

 private:
  // What probes say of arcs: bytes_per_second is what to count on, or 0 where all that is known is the graph's number.
  std::map<uint32_t, ArcEstimate> Probed(const fabric::Routes& routes, const std::vector<Nominal>& nominal, TimeNs now) const;

  std::map<Key, PairMeasure> pairs_;
  std::map<ProbeKey, PairMeasure> probes_;
};

double Confidence(TimeNs age);

}  // namespace sluice::network
