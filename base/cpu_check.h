// Sluice's code is built for x86-64-v3. On an older processor the first vector instruction would end the process by
// SIGILL without a word; this check says what is missing instead.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sluice {

// To be called first thing in main() and in Client::Connect.
absl::Status CheckCpu();

// The error for these missing features; OK for none.
absl::Status MissingCpuFeatures(const std::vector<std::string>& missing);

}  // namespace sluice
