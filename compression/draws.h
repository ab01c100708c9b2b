// Random numbers of codecs: a function of (seed, round, tensor, element) alone, so that the CPU, a GPU and every rerun
// draw the same bits (docs/codecs.md, "Random numbers").
//
//   key    = words 0 and 1 of Philox4x32-10(counter (round low, round high, tensor, purpose), key = seed)
//   draw e = word e % 4 of Philox4x32-10(counter (e / 4 low, e / 4 high, 0, 0), key)
// e counts elements of the tensor, or whatever the codec says.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace sluice::compression {

struct RandomKey {
  uint64_t seed = 0;            // RandomSeed: differs by worker
  uint64_t round = 0;
  uint32_t tensor = 0;
  uint64_t first_element = 0;   // of the partition in its tensor
};

enum class DrawPurpose : uint32_t { kRounding = 0, kSelection = 1, kFactor = 2 };

// A worker's seed: FNV-1a (64 bits) of the job's name, its rank mixed in.
uint64_t RandomSeed(std::string_view job, uint32_t rank);

std::array<uint32_t, 2> DrawKey(const RandomKey& random, DrawPurpose purpose);

// Draws first, first + 1, ...
void FillDraws(std::array<uint32_t, 2> key, uint64_t first, std::span<uint32_t> out);

}  // namespace sluice::compression
