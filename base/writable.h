// Asks at a program's start what would otherwise be noticed at its end: can this file be written?
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

enum class HowWritten {
  kReplaced,  // under another name in the same folder, then renamed
  kInPlace,   // opened itself; made if it is missing
};

// OK also for an empty path, which means that nothing is written. FAILED_PRECONDITION names the flag (or setting), the
// path and the reason. What is full by then, or gone, this cannot see.
absl::Status CheckWritable(absl::string_view flag, const std::string& path, HowWritten how);

}  // namespace sluice
