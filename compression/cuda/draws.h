// Random numbers on the device: the draws of compression/draws.h, from the same Philox (base/philox.h).
#pragma once

#include <cstdint>

#include "compression/cuda/device.h"

namespace sluice::compression::cuda {

struct Draws {
  uint32_t v[4];
};

// Philox4x32-10 of counter (block low, block high, 0, 0).
SLUICE_DEVICE Draws DrawBlock(uint64_t key, uint64_t block) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32), c2 = 0, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

// Draws first to first + 3. Two blocks where these straddle them: first % 4 is the same for all lanes.
SLUICE_DEVICE Draws FourDraws(uint64_t key, uint64_t first) {
  Draws draws = DrawBlock(key, first / 4);
  const uint32_t behind = static_cast<uint32_t>(first % 4);
  if (behind == 0) return draws;
  Draws next = DrawBlock(key, first / 4 + 1);
  for (uint32_t i = 0; i < behind; ++i) {   // a shift through registers, none of which is indexed by a variable
    for (uint32_t j = 0; j < 3; ++j) draws.v[j] = draws.v[j + 1];
    draws.v[3] = next.v[0];
    for (uint32_t j = 0; j < 3; ++j) next.v[j] = next.v[j + 1];
  }
  return draws;
}

}  // namespace sluice::compression::cuda
