// CUDA's side of compression/cuda/device.h; include that.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#define SLUICE_KERNEL(threads) __global__ void __launch_bounds__(threads)
#define SLUICE_DEVICE __device__ __forceinline__
#define SLUICE_SHARED(type, count, name) __shared__ ::sluice::device::SharedArray<type, count> name

namespace sluice::device {

template <typename T, uint32_t N>
struct SharedArray {
  __device__ __forceinline__ T Load(uint32_t i) const { return values[i]; }
  __device__ __forceinline__ void Store(uint32_t i, T value) { values[i] = value; }
  __device__ __forceinline__ T AtomicAdd(uint32_t i, T value) { return atomicAdd(&values[i], value); }
  T values[N];
};

SLUICE_DEVICE uint32_t ThreadIndex() { return threadIdx.x; }
SLUICE_DEVICE uint32_t BlockX() { return blockIdx.x; }
SLUICE_DEVICE uint32_t BlockY() { return blockIdx.y; }
SLUICE_DEVICE uint32_t GridX() { return gridDim.x; }

SLUICE_DEVICE void Barrier() { __syncthreads(); }
SLUICE_DEVICE void WarpSync(uint32_t lanes = kAllLanes) { __syncwarp(lanes); }
template <typename T>
SLUICE_DEVICE T Shuffle(T value, uint32_t lane, uint32_t lanes = kAllLanes) {
  return __shfl_sync(lanes, value, static_cast<int>(lane));
}
template <typename T>
SLUICE_DEVICE T ShuffleXor(T value, uint32_t with, uint32_t lanes = kAllLanes) {
  return __shfl_xor_sync(lanes, value, static_cast<int>(with));
}
template <typename T>
SLUICE_DEVICE T ShuffleDown(T value, uint32_t by, uint32_t lanes = kAllLanes) {
  return __shfl_down_sync(lanes, value, by);
}
template <typename T>
SLUICE_DEVICE T ShuffleUp(T value, uint32_t by, uint32_t lanes = kAllLanes) {
  return __shfl_up_sync(lanes, value, by);
}
SLUICE_DEVICE uint32_t Ballot(bool vote, uint32_t lanes = kAllLanes) { return __ballot_sync(lanes, vote); }
SLUICE_DEVICE bool Any(bool vote, uint32_t lanes = kAllLanes) { return __any_sync(lanes, vote) != 0; }
SLUICE_DEVICE bool All(bool vote, uint32_t lanes = kAllLanes) { return __all_sync(lanes, vote) != 0; }
SLUICE_DEVICE uint32_t WarpMax(uint32_t value, uint32_t lanes = kAllLanes) { return __reduce_max_sync(lanes, value); }
SLUICE_DEVICE uint32_t WarpAdd(uint32_t value, uint32_t lanes = kAllLanes) { return __reduce_add_sync(lanes, value); }

SLUICE_DEVICE uint32_t AtomicAdd(uint32_t* at, uint32_t value) { return atomicAdd(at, value); }
SLUICE_DEVICE uint32_t AtomicMax(uint32_t* at, uint32_t value) { return atomicMax(at, value); }
SLUICE_DEVICE uint64_t AtomicMin(uint64_t* at, uint64_t value) {
  return atomicMin(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
}

SLUICE_DEVICE float Add(float a, float b) { return __fadd_rn(a, b); }
SLUICE_DEVICE float Sub(float a, float b) { return __fsub_rn(a, b); }
SLUICE_DEVICE float Mul(float a, float b) { return __fmul_rn(a, b); }
SLUICE_DEVICE float Div(float a, float b) { return __fdiv_rn(a, b); }
SLUICE_DEVICE float Sqrt(float a) { return __fsqrt_rn(a); }
SLUICE_DEVICE uint32_t BitsOf(float value) { return __float_as_uint(value); }
SLUICE_DEVICE float FloatOf(uint32_t bits) { return __uint_as_float(bits); }
SLUICE_DEVICE uint32_t CountBits(uint32_t bits) { return static_cast<uint32_t>(__popc(bits)); }
SLUICE_DEVICE uint32_t BitWidth(uint32_t value) { return 32u - static_cast<uint32_t>(__clz(static_cast<int>(value))); }

// fp16, to nearest even; the value lies within its finite range. The hardware's conversion is compression/half.h's, bit
// for bit.
SLUICE_DEVICE uint16_t HalfOf(float value) { return __half_as_ushort(__float2half_rn(value)); }
SLUICE_DEVICE float FloatOfHalf(uint16_t half) { return __half2float(__ushort_as_half(half)); }

template <typename T>
SLUICE_DEVICE T LoadAligned(const void* from) {
  return *static_cast<const T*>(from);
}
template <typename T>
SLUICE_DEVICE void StoreAligned(void* to, T value) {
  *static_cast<T*>(to) = value;
}

// `stream` is a cudaStream_t; the result a cudaError_t.
template <typename... P>
int Launch(void* stream, const Launching& launching, void (*kernel)(P...), std::type_identity_t<P>... arguments) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(launching.grid_x, launching.grid_y),
                          dim3(launching.threads), pointers, 0, static_cast<cudaStream_t>(stream));
}

}  // namespace sluice::device
