// What kernels are written with: the project's own block primitives and one launch function. Under nvcc they are CUDA's
// (device_nvcc.h); under any other compiler they are the CPU emulator's (tests/simt/device.h). So one .cu file is
// compiled by both, and is tested where there is no GPU.
//
// How a kernel is written
//   1. SLUICE_KERNEL(threads a block) Name(arguments by value) { … }, threads a multiple of 32. All that it calls is
//      SLUICE_DEVICE. No type in it has a destructor that does anything.
//   2. Position: ThreadIndex(), Lane(), WarpIndex(), BlockX(), BlockY(), GridX(). BlockY() is the partition: one
//      launch serves an array of descriptors in device memory. BlockX() strides over the partition's tiles, so any grid
//      is right.
//   3. SLUICE_SHARED(type, count, name) declares shared memory: name.Load(i), .Store(i, v), .AtomicAdd(i, v). It holds
//      garbage at first. The emulator reports accesses that no barrier orders.
//   4. Barrier() and warp operations are reached by all threads (all lanes): loop bounds around them are uniform.
//      A warp operation orders no memory; WarpSync() does.
//   5. fp32 arithmetic that makes bytes is Add, Sub, Mul, Div, Sqrt: one rounding each, which nvcc does not contract. Sums
//      over several elements are of integers only, so that no order of reduction shows in the bytes.
//   6. Launch(stream, {name, grid_x, grid_y, threads}, Kernel, arguments…) enqueues and returns an Error, 0 if all is
//      well. Kernels allocate nothing and wait for nobody: no look-back at other blocks, no spinning.
// Not used: <<<>>>, CUB and cooperative groups (the emulator cannot run them), float atomics.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::device {

// One thread's share of a row of 128 elements: four for each lane.
struct alignas(16) Quad {
  float v[4];
};

// Of a launch. No launch has an empty grid: callers return early.
struct Launching {
  const char* kernel;   // for the emulator's reports
  uint32_t grid_x, grid_y, threads;
};

inline constexpr uint32_t kWarpLanes = 32;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFF;

}  // namespace sluice::device

#ifdef __CUDACC__
#include "compression/cuda/device_nvcc.h"
#else
#include "tests/simt/device.h"
#endif

// What both have in common, from their primitives.
namespace sluice::device {

SLUICE_DEVICE uint32_t Lane() { return ThreadIndex() % kWarpLanes; }
SLUICE_DEVICE uint32_t WarpIndex() { return ThreadIndex() / kWarpLanes; }

// Loads and stores of 2, 4, 8 or 16 bytes. `aligned` is the same for all threads of a launch's partition, so the branch
// costs nothing.
template <typename T>
SLUICE_DEVICE T LoadBytes(const void* from, bool aligned) {
  if (aligned) return LoadAligned<T>(from);
  T value;
  for (uint32_t i = 0; i < sizeof(T); ++i)
    reinterpret_cast<unsigned char*>(&value)[i] = static_cast<const unsigned char*>(from)[i];
  return value;
}

template <typename T>
SLUICE_DEVICE void StoreBytes(void* to, T value, bool aligned) {
  if (aligned) return StoreAligned<T>(to, value);
  for (uint32_t i = 0; i < sizeof(T); ++i)
    static_cast<unsigned char*>(to)[i] = reinterpret_cast<const unsigned char*>(&value)[i];
}

template <typename T>
SLUICE_DEVICE bool IsAligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % sizeof(T) == 0;
}

// `count` (at most 4) elements; zeros behind them.
SLUICE_DEVICE Quad LoadQuad(const float* from, uint32_t count, bool aligned) {
  if (count == 4 && aligned) return LoadAligned<Quad>(from);
  Quad quad = {{0.0f, 0.0f, 0.0f, 0.0f}};
  for (uint32_t j = 0; j < 4; ++j)
    if (j < count) quad.v[j] = from[j];
  return quad;
}

SLUICE_DEVICE void StoreQuad(float* to, const Quad& quad, uint32_t count, bool aligned) {
  if (count == 4 && aligned) return StoreAligned<Quad>(to, quad);
  for (uint32_t j = 0; j < 4; ++j)
    if (j < count) to[j] = quad.v[j];
}

SLUICE_DEVICE uint32_t Magnitude(float value) { return BitsOf(value) & 0x7FFFFFFF; }

// `value` within [-limit, limit], as in compression/half.h.
SLUICE_DEVICE float Saturate(float value, float limit) {
  value = value > limit ? limit : value;
  return value < -limit ? -limit : value;
}

// The sum of the values of the lanes up to and with this one.
SLUICE_DEVICE uint32_t WarpInclusiveSum(uint32_t value) {
  for (uint32_t distance = 1; distance < kWarpLanes; distance *= 2) {
    const uint32_t below = ShuffleUp(value, distance);
    if (Lane() >= distance) value += below;
  }
  return value;
}

// The sum of the values of the threads before this one; *total is that of all. Barriers inside. kThreads is the
// block's size, at most 1024; one call site is one array, so calls in a loop need no barrier of their own.
template <uint32_t kThreads>
SLUICE_DEVICE uint32_t BlockExclusiveSum(uint32_t value, uint32_t* total) {
  SLUICE_SHARED(uint32_t, kWarpLanes, sums);
  const uint32_t inclusive = WarpInclusiveSum(value);
  Barrier();   // whoever reads the last call's sums is done
  if (Lane() == kWarpLanes - 1) sums.Store(WarpIndex(), inclusive);
  Barrier();
  uint32_t before = 0, all = 0;
  for (uint32_t warp = 0; warp < kThreads / kWarpLanes; ++warp) {
    const uint32_t sum = sums.Load(warp);
    before += warp < WarpIndex() ? sum : 0;
    all += sum;
  }
  *total = all;
  return before + inclusive - value;
}

}  // namespace sluice::device
