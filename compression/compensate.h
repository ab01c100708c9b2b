// p = g + scale * e, what every encoder begins with.
#pragma once

#include <cstddef>

namespace sluice::compression {

// p[i] = g[i] + scale * e[i], two roundings, held to the finite range of fp32. Finite arguments give a finite p, hence a
// finite residual, for ever. e may be null: zeros, to the bit; -0 becomes +0 either way. What lies 4 KiB further on is asked
// for, so that memory does not rest while a block is encoded.
void Compensate(const float* g, const float* e, float scale, size_t n, float* p);

// The same, and writes p to `out` as well, past the cache. StreamFence() (base/stream_copy.h) once after the last call.
void CompensateAndStream(const float* g, const float* e, float scale, size_t n, float* p, float* out);

}  // namespace sluice::compression
