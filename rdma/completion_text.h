// Completions in words, with what to check: they end up in logs that people read at night.
#pragma once

#include <infiniband/verbs.h>

#include <string>

namespace sluice::rdma {

// "retries exceeded"
const char* CompletionName(unsigned status);

// What to look at when work requests end so; empty for success.
const char* CompletionMend(unsigned status);

}  // namespace sluice::rdma
