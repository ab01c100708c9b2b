// How fast this machine encodes: what job.codec = auto reckons with.
#pragma once

#include <string>
#include <vector>

#include "proto/control.pb.h"

namespace sluice::worker {

// fp32 bytes a second of encoding with error feedback, one core, a mebibyte of noise at a time, best of a few. Takes some
// milliseconds a codec. Codecs that do not exist are left out, and so is "none", which nobody encodes.
std::vector<proto::CodecSpeed> MeasureCodecSpeeds(const std::vector<std::string>& codecs);

}  // namespace sluice::worker
