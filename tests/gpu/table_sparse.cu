// Rows of topk, threshold, randk and chains, at a ratio of 0.01.
#include <cstdint>
#include <vector>

#include "tests/gpu/bench.h"
#include "tests/gpu/cub_topk.h"

namespace sluice::gpu {
namespace {

using namespace compression::cuda;  // NOLINT: what the table is about

constexpr uint64_t kEntries = (kElements + 99) / 100;
// What about one element of 100 reaches, of what table.cu fills in: p, and the gradient alone.
constexpr float kThreshold = 0.0178f, kGradientThreshold = 0.0119f;

uint64_t Padded(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

// Decodes what lies in bench.bytes since the last encoding.
void DecodeRows(Bench& bench, bool topk, const char* codec) {
  std::vector<uint64_t> sizes(kPartitions);
  const uint64_t room = Padded(SparseDecodeWorkspaceBytes(kElements, 2 * kEntries));
  uint8_t* work = Allocate<uint8_t>(kPartitions * room);
  bench.ok &= work != nullptr && Ok(cudaStreamSynchronize(bench.stream), codec) &&
              Ok(cudaMemcpy(sizes.data(), bench.sizes, 8 * kPartitions, cudaMemcpyDeviceToHost), "sizes");
  std::vector<SparseDecodeTask> tasks;
  for (uint32_t i = 0; i < kPartitions; ++i) {
    tasks.push_back({bench.decode[i], 2 * kEntries, work + i * room});
    tasks.back().bytes = sizes[i];
  }
  const Batch<SparseDecodeTask> batch = OnDevice(tasks);
  if (!(bench.ok &= batch.tasks != nullptr)) return;
  // Beside the zeros, an entry's code and its index, written and read; of the output, at least the sector of 32 bytes.
  const double entries = static_cast<double>(kEntries) / kElements, each = 3 + 8;
  bench.Row(codec, "decode", 4 + entries * (each + 32),
            [&] { return topk ? DecodeTopK(batch, bench.stream) : DecodeSparse(batch, bench.stream); });
  bench.Row(codec, "decode-add", entries * (each + 64),
            [&] { return topk ? DecodeTopKAdd(batch, bench.stream) : DecodeSparseAdd(batch, bench.stream); });
  cudaFree(work);
}

void CubRows(Bench& bench) {
  CubTopK cub;
  if (!(bench.ok &= cub.Allocate(kElements))) return;
  const auto for_all = [&](const auto& call) {
    int error = 0;
    for (uint32_t i = 0; i < kPartitions && error == 0; ++i) error = call(bench.gradient + i * kElements);
    return error;
  };
  // Compensating, values, indices and residuals are not in these. The bytes are what has to be read at least.
  bench.Row("CUB", "radix sort by magnitude", 4,
            [&] { return for_all([&](const float* values) { return cub.Sort(values, bench.stream); }); });
  bench.Row("CUB", "select by a known threshold", 4,
            [&] { return for_all([&](const float* values) { return cub.Select(values, kGradientThreshold, bench.stream); }); });
}

}  // namespace

void AddSparseRows(Bench& bench) {
  const uint64_t room = Padded(SparseWorkspaceBytes(kElements, kElements));   // a threshold may send all
  uint8_t* work = Allocate<uint8_t>(kPartitions * room);
  float* states = Allocate<float>(2 * kPartitions);
  if (!(bench.ok &= work != nullptr && states != nullptr)) return;
  const auto batch_of = [&](uint64_t most, bool known) {
    std::vector<SparseTask> tasks;
    for (uint32_t i = 0; i < kPartitions; ++i)
      tasks.push_back({bench.encode[i], kEntries, most, work + i * room, bench.sizes + i, kThreshold,
                       known ? states + i : nullptr, known ? states + kPartitions + i : states + i, 7});
    return OnDevice(tasks);
  };
  const Batch<SparseTask> topk = batch_of(kEntries, false), threshold = batch_of(kElements, false);
  const Batch<SparseTask> first = batch_of(2 * kEntries, false), known = batch_of(2 * kEntries, true);
  if (!(bench.ok &= topk.tasks && threshold.tasks && first.tasks && known.tasks)) return;
  const auto row = [&](const char* codec, double bytes, Selection selection, Format values, const Batch<SparseTask>& batch) {
    bench.Row(codec, "encode+residual", bytes, [&] { return EncodeSparse(selection, values, batch, bench.stream); });
  };
  // The least that selection by threshold moves is 12; topk's kernels move 28 (compression/cuda/select.cu).
  bench.Row("topk:0.01", "encode+residual", 28, [&] { return EncodeTopK(topk, bench.stream); });
  DecodeRows(bench, true, "topk:0.01");
  row("topk:0.01+int8", 28, Selection::kTopK, Format::kInt8, topk);
  DecodeRows(bench, false, "topk:0.01+int8");
  row("threshold", 16, Selection::kThreshold, Format::kFp16, threshold);
  row("threshold:auto:0.01, first round", 32, Selection::kAdaptive, Format::kFp16, first);
  row("threshold:auto:0.01", 16, Selection::kAdaptive, Format::kFp16, known);
  row("randk:0.01", 12, Selection::kRandom, Format::kFp16, topk);
  DecodeRows(bench, false, "randk:0.01");
  CubRows(bench);
}

}  // namespace sluice::gpu
