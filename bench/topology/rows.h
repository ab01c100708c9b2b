// The parts of bench/topology:placement. Each prints tables to stderr and returns JSON.
#pragma once

#include <chrono>
#include <cstdint>

#include "nlohmann/json.hpp"

namespace sluice::bench {

inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

nlohmann::json Gap(uint32_t instances, uint32_t first);              // against the optimum, 16 nodes
nlohmann::json Scale(uint32_t zones);                // a three-tier fabric: 14,336 GPUs a zone
nlohmann::json Versus(uint64_t evaluations);         // against best fit, round-robin, random

}  // namespace sluice::bench
