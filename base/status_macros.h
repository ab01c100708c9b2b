// Early return on errors, in the manner of Abseil users: no exceptions cross a Sluice API.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define SLUICE_RETURN_IF_ERROR(expression)                    \
  do {                                                        \
    if (absl::Status sluice_status_ = (expression); !sluice_status_.ok()) \
      return sluice_status_;                                  \
  } while (false)

#define SLUICE_CONCAT_INNER_(a, b) a##b
#define SLUICE_CONCAT_(a, b) SLUICE_CONCAT_INNER_(a, b)

// SLUICE_ASSIGN_OR_RETURN(auto x, F()): x is F's value, or the enclosing function returns F's status.
#define SLUICE_ASSIGN_OR_RETURN(lhs, expression) \
  SLUICE_ASSIGN_OR_RETURN_IMPL_(SLUICE_CONCAT_(sluice_statusor_, __LINE__), lhs, expression)
#define SLUICE_ASSIGN_OR_RETURN_IMPL_(result, lhs, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return std::move(result).status();         \
  lhs = std::move(result).value()
