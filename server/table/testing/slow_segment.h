// A segment as segment.h describes it: a map and plain loops, for tests and for the oracle of the simulator.
//
// Equal calls give the same rows, state, counts and hot ids as TableSegment::Create's, bit for bit; stats().bytes is 0.
#pragma once

#include <memory>

#include "server/table/segment.h"

namespace sluice::server {

// Requires a spec and limits that TableSegment::Create takes.
std::unique_ptr<TableSegment> MakeSlowSegment(const proto::TableSpec& spec, const SegmentLimits& limits);

}  // namespace sluice::server
