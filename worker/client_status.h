// Between the library's own Status, which a trainer sees, and Abseil's, which the rest of Sluice uses: same numbers.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker/client.h"

namespace sluice {

inline Status FromAbsl(const absl::Status& status) {
  if (status.ok()) return {};
  return Status(static_cast<Code>(status.code()), std::string(status.message()));
}

}  // namespace sluice
