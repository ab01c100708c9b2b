#include "tests/gpu/table.h"

#include <cstdint>
#include <cstdio>
#include <vector>

#include "tests/gpu/bench.h"

namespace sluice::gpu {
namespace {

using namespace compression::cuda;  // NOLINT: what the table is about

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

}  // namespace

int PrintTable() {
  cudaDeviceProp device;
  int driver = 0, runtime = 0;
  if (!Ok(cudaGetDeviceProperties(&device, 0), "device") || !Ok(cudaDriverGetVersion(&driver), "driver") ||
      !Ok(cudaRuntimeGetVersion(&runtime), "runtime"))
    return 1;
  std::printf("%s, sm_%d%d, CUDA driver %d, runtime %d; %u partitions of %llu elements a launch\n\n", device.name,
              device.major, device.minor, driver, runtime, kPartitions, static_cast<unsigned long long>(kElements));

  Bench bench;
  bench.gradient = Allocate<float>(kTotal);
  bench.residual = Allocate<float>(kTotal);
  bench.out = Allocate<float>(kTotal);
  bench.bytes = Allocate<uint8_t>(kPartitions * kEncodedRoom);
  bench.sizes = Allocate<uint64_t>(kPartitions);
  if (!bench.gradient || !bench.residual || !bench.out || !bench.bytes || !bench.sizes ||
      !Ok(cudaStreamCreate(&bench.stream), "stream"))
    return 1;
  cudaStream_t stream = bench.stream;
  Fill<<<1024, 256, 0, stream>>>(bench.gradient, kTotal);
  Fill<<<1024, 256, 0, stream>>>(bench.residual, kTotal);

  const float copy_ms = Time(stream, "copy", [&] {
    return cudaMemcpyAsync(bench.out, bench.gradient, 4 * kTotal, cudaMemcpyDeviceToDevice, stream);
  });
  if (copy_ms < 0) return 1;
  bench.copy = 8.0 * static_cast<double>(kTotal) / copy_ms / 1e6;
  std::printf("device-to-device copy: %.0f GB/s (read and written)\n\n", bench.copy);
  std::printf("| kernel | bytes moved/element | ms | GB/s moved | of copy | GB/s of fp32 |\n"
              "| --- | --- | --- | --- | --- | --- |\n");

  std::vector<EncodeTask> plain;
  std::vector<FindTask> find;
  for (uint32_t i = 0; i < kPartitions; ++i) {
    float *g = bench.gradient + i * kElements, *e = bench.residual + i * kElements, *o = bench.out + i * kElements;
    uint8_t* b = bench.bytes + i * kEncodedRoom;
    bench.encode.push_back({g, e, o, b, kElements, 0.5f, 1, 0});
    plain.push_back({g, nullptr, nullptr, b, kElements, 1.0f, 1, 0});
    bench.decode.push_back({b, o, kElements, 0});
    find.push_back({g, kElements, bench.sizes + i});
  }
  const auto encode_batch = OnDevice(bench.encode), plain_batch = OnDevice(plain);
  const auto decode_batch = OnDevice(bench.decode);
  const auto find_batch = OnDevice(find);
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
    bench.Row(f.name, "encode", 4 + f.size, [&] { return Encode(f.format, plain_batch, stream); });
    bench.Row(f.name, "encode+residual", 12 + f.size, [&] { return Encode(f.format, encode_batch, stream); });
    bench.Row(f.name, "decode", 4 + f.size, [&] { return Decode(f.format, decode_batch, stream); });
    bench.Row(f.name, "decode-add", 8 + f.size, [&] { return DecodeAdd(f.format, decode_batch, stream); });
  }
  for (const uint32_t levels : {1u, 7u}) {
    const double bits = levels == 1 ? 2 : 4, size = bits / 8 + 4.0 / 128;
    std::vector<DecodeTask> tasks = bench.decode;
    for (DecodeTask& task : tasks) task.bytes = 4 + static_cast<uint64_t>(size * kElements);
    const Batch<DecodeTask> batch = OnDevice(tasks);
    if (!batch.tasks) return 1;
    const char* name = levels == 1 ? "terngrad" : "qsgd:7";
    bench.Row(name, "encode", 4 + size, [&] { return EncodeQsgd(levels, plain_batch, stream); });
    bench.Row(name, "decode", 4 + size, [&] { return Decode(Format::kQsgd, batch, stream); });
    bench.Row(name, "decode-add", 8 + size, [&] { return DecodeAdd(Format::kQsgd, batch, stream); });
  }
  AddSparseRows(bench);
  AddLowRankRows(bench);
  bench.Row("", "first nonfinite", 4, [&] { return FirstNonfinite(find_batch, stream); });
  return bench.ok ? 0 : 1;   // memory goes back with the process
}

}  // namespace sluice::gpu
