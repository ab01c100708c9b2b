// The emulator's side of compression/cuda/device.h; include that. A stream is a simt::Machine*, on which a launch has
// ended when it returns; an Error is 1 where the machine has a report.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "compression/half.h"
#include "tests/simt/machine.h"
#include "tests/simt/shared_array.h"

#define SLUICE_KERNEL(threads) void
#define SLUICE_DEVICE inline
#define SLUICE_SHARED(type, count, name) auto& name = ::sluice::simt::Shared<type, count>({__FILE__, __LINE__})
// Where a kernel calls a primitive, for reports.
#define SLUICE_SIMT_PLACE int line = __builtin_LINE(), const char* file = __builtin_FILE()

namespace sluice::device {

using simt::Machine;
using simt::WarpOp;

inline uint32_t ThreadIndex() { return Machine::Current().index; }
inline uint32_t BlockX() { return Machine::Current().block->x; }
inline uint32_t BlockY() { return Machine::Current().block->y; }
inline uint32_t GridX() { return Machine::Current().machine->shape().grid_x; }

inline uint64_t Meet(WarpOp op, uint32_t lanes, uint64_t value, uint32_t source, int line, const char* file) {
  return Machine::Current().machine->Warp(op, lanes, value, source, {file, line});
}

template <typename T>
T ShuffleFrom(T value, uint32_t source, uint32_t lanes, int line, const char* file) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = Meet(WarpOp::kShuffle, lanes, bits, source, line, file);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

inline void Barrier(SLUICE_SIMT_PLACE) { Machine::Current().machine->Barrier({file, line}); }
inline void WarpSync(uint32_t lanes = kAllLanes, SLUICE_SIMT_PLACE) { Meet(WarpOp::kSync, lanes, 0, 0, line, file); }
template <typename T>
T Shuffle(T value, uint32_t lane, uint32_t lanes = kAllLanes, SLUICE_SIMT_PLACE) {
  return ShuffleFrom(value, lane % kWarpLanes, lanes, line, file);
}
template <typename T>
T ShuffleXor(T value, uint32_t with, uint32_t lanes = kAllLanes, SLUICE_SIMT_PLACE) {
  return ShuffleFrom(value, (ThreadIndex() % kWarpLanes) ^ with, lanes, line, file);
}
template <typename T>
T ShuffleDown(T value, uint32_t by, uint32_t lanes = kAllLanes, SLUICE_SIMT_PLACE) {
  const uint32_t self = ThreadIndex() % kWarpLanes;
  return ShuffleFrom(value, self + by < kWarpLanes ? self + by : self, lanes, line, file);
}
template <typename T>
T ShuffleUp(T value, uint32_t by, uint32_t lanes = kAllLanes, SLUICE_SIMT_PLACE) {
  const uint32_t self = ThreadIndex() % kWarpLanes;
  return ShuffleFrom(value, self >= by ? self - by : self, lanes, line, file);
}
inline uint32_t Ballot(bool vote, uint32_t lanes = kAllLanes, SLUICE_SIMT_PLACE) {
  return static_cast<uint32_t>(Meet(WarpOp::kBallot, lanes, vote, 0, line, file));
}
inline bool Any(bool vote, uint32_t lanes = kAllLanes, SLUICE_SIMT_PLACE) {
  return Meet(WarpOp::kBallot, lanes, vote, 0, line, file) != 0;
}
inline bool All(bool vote, uint32_t lanes = kAllLanes, SLUICE_SIMT_PLACE) {
  return Meet(WarpOp::kBallot, lanes, vote, 0, line, file) == lanes;
}
inline uint32_t WarpMax(uint32_t value, uint32_t lanes = kAllLanes, SLUICE_SIMT_PLACE) {
  return static_cast<uint32_t>(Meet(WarpOp::kMax, lanes, value, 0, line, file));
}
inline uint32_t WarpAdd(uint32_t value, uint32_t lanes = kAllLanes, SLUICE_SIMT_PLACE) {
  return static_cast<uint32_t>(Meet(WarpOp::kAdd, lanes, value, 0, line, file));
}

inline uint32_t AtomicAdd(uint32_t* at, uint32_t value) {
  Machine::Current().machine->MaybeYield();
  const uint32_t before = *at;
  *at = before + value;
  return before;
}
inline uint32_t AtomicMax(uint32_t* at, uint32_t value) {
  Machine::Current().machine->MaybeYield();
  const uint32_t before = *at;
  *at = std::max(before, value);
  return before;
}
inline uint64_t AtomicMin(uint64_t* at, uint64_t value) {
  Machine::Current().machine->MaybeYield();
  const uint64_t before = *at;
  *at = std::min(before, value);
  return before;
}

// -ffp-contract=off (.bazelrc) keeps these apart.
inline float Add(float a, float b) { return a + b; }
inline float Sub(float a, float b) { return a - b; }
inline float Mul(float a, float b) { return a * b; }
inline float Div(float a, float b) { return a / b; }
inline float Sqrt(float a) { return std::sqrt(a); }
inline uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }
inline float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t CountBits(uint32_t bits) { return static_cast<uint32_t>(std::popcount(bits)); }
inline uint32_t BitWidth(uint32_t value) { return static_cast<uint32_t>(std::bit_width(value)); }

inline uint16_t HalfOf(float value) { return compression::Fp16FromFloat(value); }
inline float FloatOfHalf(uint16_t half) { return compression::FloatFromFp16(half); }

template <typename T>
T LoadAligned(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <typename T>
void StoreAligned(void* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

template <typename... P>
int Launch(void* stream, const Launching& launching, void (*kernel)(P...), std::type_identity_t<P>... arguments) {
  const simt::Shape shape = {launching.kernel, launching.grid_x, launching.grid_y, launching.threads};
  return static_cast<Machine*>(stream)->Launch(shape, [&] { kernel(arguments...); }) ? 0 : 1;
}

}  // namespace sluice::device
