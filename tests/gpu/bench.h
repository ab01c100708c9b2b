// What the parts of the table share: partitions in the GPU's memory, and a row's measurement.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

#include "compression/cuda/kernels.h"

namespace sluice::gpu {

inline constexpr uint32_t kPartitions = 64;
inline constexpr uint64_t kElements = 1 << 20;   // of a partition: 4 MiB, as partitions are cut by default
inline constexpr uint64_t kTotal = kPartitions * kElements;
inline constexpr uint64_t kEncodedRoom = 4 * kElements + 4096;
inline constexpr int kRepeats = 30;

inline bool Ok(int error, const char* what) {
  if (error == cudaSuccess) return true;
  std::fprintf(stderr, "gpu_check: %s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
  return false;
}

// Milliseconds of one call, the mean of kRepeats after a warm-up; negative if it failed.
inline float Time(cudaStream_t stream, const char* what, const std::function<int()>& call) {
  cudaEvent_t begin, end;
  float ms = -1;
  if (!Ok(cudaEventCreate(&begin), what) || !Ok(cudaEventCreate(&end), what)) return ms;
  int error = call();
  cudaEventRecord(begin, stream);
  for (int i = 0; i < kRepeats && error == 0; ++i) error = call();
  cudaEventRecord(end, stream);
  if (Ok(error, what) && Ok(cudaEventSynchronize(end), what) && Ok(cudaEventElapsedTime(&ms, begin, end), what))
    ms /= kRepeats;
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return ms;
}

// Device memory; null if there is none left. It goes back with the process.
template <typename T>
T* Allocate(uint64_t count) {
  T* memory = nullptr;
  return Ok(cudaMalloc(&memory, count * sizeof(T)), "memory") ? memory : nullptr;
}

template <typename Task>
compression::cuda::Batch<Task> OnDevice(const std::vector<Task>& tasks) {
  Task* copy = Allocate<Task>(tasks.size());
  if (copy == nullptr || !Ok(cudaMemcpy(copy, tasks.data(), tasks.size() * sizeof(Task), cudaMemcpyHostToDevice), "tasks"))
    return {nullptr, 0, 0};
  return {copy, static_cast<uint32_t>(tasks.size()), kElements};
}

struct Bench {
  // `bytes`: what the kernels move an element.
  void Row(const char* codec, const char* what, double bytes, const std::function<int()>& call) {
    const float ms = Time(stream, what, call);
    if (!(ok &= ms > 0)) return;
    const double speed = bytes * static_cast<double>(kTotal) / ms / 1e6;
    std::printf("| %s %s | %.2f | %.3f | %.0f | %.2f | %.0f |\n", codec, what, bytes, ms, speed, speed / copy,
                4.0 * static_cast<double>(kTotal) / ms / 1e6);
  }

  float *gradient = nullptr, *residual = nullptr, *out = nullptr;
  uint8_t* bytes = nullptr;   // kEncodedRoom a partition
  uint64_t* sizes = nullptr;  // one a partition
  cudaStream_t stream = nullptr;
  double copy = 0;            // GB/s of a copy
  bool ok = true;
  std::vector<compression::cuda::EncodeTask> encode;   // with residual
  std::vector<compression::cuda::DecodeTask> decode;
};

// Rows of codecs that send some of the elements, and of CUB's way to the k largest (table_sparse.cu).
void AddSparseRows(Bench& bench);
void AddLowRankRows(Bench& bench);   // table_low_rank.cu

}  // namespace sluice::gpu
