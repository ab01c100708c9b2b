// From the client library's Status to Abseil's, which the built-in trainers use: same numbers.
#pragma once

#include "absl/status/status.h"
#include "worker/client.h"

namespace sluice::worker {

inline absl::Status ToAbsl(const Status& status) {
  return status.ok() ? absl::OkStatus() : absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

}  // namespace sluice::worker
