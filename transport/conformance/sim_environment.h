// The simulated network without faults: frames take their time, but keep their order.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/conformance/environment.h"

namespace sluice::transport::conformance {

std::unique_ptr<Environment> MakeSimEnvironment(uint64_t seed, bool by_reference);

}  // namespace sluice::transport::conformance
