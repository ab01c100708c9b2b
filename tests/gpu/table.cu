#include "tests/gpu/table.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

#include "compression/cuda/kernels.h"

namespace sluice::gpu {
namespace {

using namespace compression::cuda;  // NOLINT: what the table is about

constexpr uint32_t kPartitions = 64;
constexpr uint64_t kElements = 1 << 20;   // of a partition: 4 MiB, as partitions are cut by default
constexpr int kRepeats = 30;

bool Ok(int error, const char* what) {
  if (error == cudaSuccess) return true;
  std::fprintf(stderr, "gpu_check: %s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
  return false;
}

// Values that look like a gradient: three sums of uniforms, scaled.
__global__ void Fill(float* values, uint64_t n) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += gridDim.x * uint64_t{blockDim.x}) {
    uint32_t hash = static_cast<uint32_t>(i) * 2654435761u;
    float sum = -1.5f;
    for (int j = 0; j < 3; ++j) {
      hash = (hash ^ (hash >> 15)) * 0x2C1B3C6Du;
      sum += static_cast<float>(hash >> 8) * 0x1p-24f;
    }
    values[i] = 0.01f * sum;
  }
}

struct Memory {
  float *gradient = nullptr, *residual = nullptr, *out = nullptr;
  uint8_t* bytes = nullptr;
  uint64_t* sizes = nullptr;
};

// Milliseconds of one call, the mean of kRepeats after a warm-up; negative if it failed.
float Time(cudaStream_t stream, const char* what, const std::function<int()>& call) {
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

template <typename Task>
Task* OnDevice(const std::vector<Task>& tasks) {
  Task* copy = nullptr;
  const size_t bytes = tasks.size() * sizeof(Task);
  if (!Ok(cudaMalloc(&copy, bytes), "tasks") ||
      !Ok(cudaMemcpy(copy, tasks.data(), bytes, cudaMemcpyHostToDevice), "tasks"))
    return nullptr;
  return copy;
}

}  // namespace

int PrintTable() {
  cudaDeviceProp device;
  int driver = 0, runtime = 0;
  if (!Ok(cudaGetDeviceProperties(&device, 0), "device") || !Ok(cudaDriverGetVersion(&driver), "driver") ||
      !Ok(cudaRuntimeGetVersion(&runtime), "runtime"))
    return 1;
  std::printf("%s, sm_%d%d, CUDA driver %d, runtime %d; %u partitions of %llu elements a launch\n\n", device.name,
              device.major, device.minor, driver, runtime, kPartitions, static_cast<unsigned long long>(kElements));

  cudaStream_t stream;
  Memory memory;
  const uint64_t total = kPartitions * kElements, encoded = 4 * kElements + 4096;
  if (!Ok(cudaStreamCreate(&stream), "stream") || !Ok(cudaMalloc(&memory.gradient, 4 * total), "memory") ||
      !Ok(cudaMalloc(&memory.residual, 4 * total), "memory") || !Ok(cudaMalloc(&memory.out, 4 * total), "memory") ||
      !Ok(cudaMalloc(&memory.bytes, kPartitions * encoded), "memory") ||
      !Ok(cudaMalloc(&memory.sizes, 8 * kPartitions), "memory"))
    return 1;
  Fill<<<1024, 256, 0, stream>>>(memory.gradient, total);
  Fill<<<1024, 256, 0, stream>>>(memory.residual, total);

  const float copy_ms = Time(stream, "copy", [&] {
    return cudaMemcpyAsync(memory.out, memory.gradient, 4 * total, cudaMemcpyDeviceToDevice, stream);
  });
  if (copy_ms < 0) return 1;
  const double copy = 8.0 * static_cast<double>(total) / copy_ms / 1e6;
  std::printf("device-to-device copy: %.0f GB/s (read and written)\n\n", copy);
  std::printf("| kernel | bytes moved/element | ms | GB/s moved | of copy | GB/s of fp32 |\n"
              "| --- | --- | --- | --- | --- | --- |\n");
  bool ok = true;
  const auto row = [&](const char* codec, const char* what, double bytes, const std::function<int()>& call) {
    const float ms = Time(stream, what, call);
    if (!(ok &= ms > 0)) return;
    const double speed = bytes * static_cast<double>(total) / ms / 1e6;
    std::printf("| %s %s | %.2f | %.3f | %.0f | %.2f | %.0f |\n", codec, what, bytes, ms, speed, speed / copy,
                4.0 * static_cast<double>(total) / ms / 1e6);
  };

  std::vector<EncodeTask> encode, encode_plain;
  std::vector<DecodeTask> decode;
  std::vector<FindTask> find;
  for (uint32_t i = 0; i < kPartitions; ++i) {
    float *g = memory.gradient + i * kElements, *e = memory.residual + i * kElements, *o = memory.out + i * kElements;
    uint8_t* b = memory.bytes + i * encoded;
    encode.push_back({g, e, o, b, kElements, 0.5f, 1, 0});
    encode_plain.push_back({g, nullptr, nullptr, b, kElements, 1.0f, 1, 0});
    decode.push_back({b, o, kElements, 0});
    find.push_back({g, kElements, memory.sizes + i});
  }
  const Batch<EncodeTask> encode_batch = {OnDevice(encode), kPartitions, kElements};
  const Batch<EncodeTask> plain_batch = {OnDevice(encode_plain), kPartitions, kElements};
  const Batch<DecodeTask> decode_batch = {OnDevice(decode), kPartitions, kElements};
  const Batch<FindTask> find_batch = {OnDevice(find), kPartitions, kElements};
  if (!encode_batch.tasks || !plain_batch.tasks || !decode_batch.tasks || !find_batch.tasks) return 1;

  const struct {
    Format format;
    const char* name;
    double size;
  } formats[] = {{Format::kNone, "none", 4}, {Format::kFp16, "fp16", 2}, {Format::kBf16, "bf16", 2},
                 {Format::kInt8, "int8", 1 + 4.0 / 128}, {Format::kInt8Stochastic, "int8:stochastic", 1 + 4.0 / 128},
                 {Format::kInt4, "int4", 0.5 + 4.0 / 128}, {Format::kInt4Stochastic, "int4:stochastic", 0.5 + 4.0 / 128},
                 {Format::kOneBit, "onebit", 1 / 8.0 + 4.0 / 256}, {Format::kMxfp8, "mxfp8", 1 + 1.0 / 32}};
  for (const auto& f : formats) {
    row(f.name, "encode", 4 + f.size, [&] { return Encode(f.format, plain_batch, stream); });
    row(f.name, "encode+residual", 12 + f.size, [&] { return Encode(f.format, encode_batch, stream); });
    row(f.name, "decode", 4 + f.size, [&] { return Decode(f.format, decode_batch, stream); });
    row(f.name, "decode-add", 8 + f.size, [&] { return DecodeAdd(f.format, decode_batch, stream); });
  }
  for (const uint32_t levels : {1u, 7u}) {
    const double bits = levels == 1 ? 2 : 4, size = bits / 8 + 4.0 / 128;
    std::vector<DecodeTask> tasks = decode;
    for (DecodeTask& task : tasks) task.bytes = 4 + static_cast<uint64_t>(size * kElements);
    const Batch<DecodeTask> batch = {OnDevice(tasks), kPartitions, kElements};
    const char* name = levels == 1 ? "terngrad" : "qsgd:7";
    row(name, "encode", 4 + size, [&] { return EncodeQsgd(levels, plain_batch, stream); });
    row(name, "decode", 4 + size, [&] { return Decode(Format::kQsgd, batch, stream); });
    row(name, "decode-add", 8 + size, [&] { return DecodeAdd(Format::kQsgd, batch, stream); });
  }
  constexpr uint64_t kEntries = (kElements + 99) / 100;
  const uint64_t work_bytes = SparseWorkspaceBytes(kElements, 2 * kEntries) / 256 * 256 + 256;
  uint8_t* work = nullptr;
  if (!Ok(cudaMalloc(&work, kPartitions * work_bytes), "workspace")) return 1;
  std::vector<SparseTask> sparse;
  for (uint32_t i = 0; i < kPartitions; ++i)
    sparse.push_back({encode[i], kEntries, 2 * kEntries, work + i * work_bytes, memory.sizes + i, 0, nullptr, nullptr, 7});
  const Batch<SparseTask> sparse_batch = {OnDevice(sparse), kPartitions, kElements};
  if (!sparse_batch.tasks) return 1;
  // The least that selection by threshold moves is 12; topk's kernels move 28 (compression/cuda/select.cu).
  row("topk:0.01", "encode+residual", 28, [&] { return EncodeTopK(sparse_batch, stream); });
  row("topk:0.01+int8", "encode+residual", 28,
      [&] { return EncodeSparse(Selection::kTopK, Format::kInt8, sparse_batch, stream); });
  row("randk:0.01", "encode+residual", 12,
      [&] { return EncodeSparse(Selection::kRandom, Format::kFp16, sparse_batch, stream); });
  row("", "first nonfinite", 4, [&] { return FirstNonfinite(find_batch, stream); });
  return ok ? 0 : 1;   // memory goes back with the process
}

}  // namespace sluice::gpu
