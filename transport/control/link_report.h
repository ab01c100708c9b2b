// What a member says of its links in heartbeats (LinkReport), and its bounds: whoever fills a report clips it, and the
// scheduler clips again whatever came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "proto/control.pb.h"
#include "transport/multipath/path_totals.h"

namespace sluice::control {

inline constexpr int kMaxReportedPaths = 128;
inline constexpr size_t kMaxPeerBytes = 128, kMaxKindBytes = 8, kMaxRailBytes = 64, kMaxAddressBytes = 64, kMaxNoteBytes = 300;

// Heartbeats between two reports, so that they cost little.
inline constexpr uint64_t kBeatsPerReport = 4;

// The rows of one more link to `peer`, whose id is `peer_id` (Register.id; empty = not known).
void AddLink(const std::string& peer, const std::string& peer_id, std::span<const transport::PathRow> rows, proto::LinkReport* report);

// What is within the bounds of `from`, behind what `to` has; numbers of links go on behind those that are there.
void AddReport(const proto::LinkReport& from, proto::LinkReport* to);

}  // namespace sluice::control
