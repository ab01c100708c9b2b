// Rows of lowrank: rank 4, partitions of 1,024 columns.
#include <cstdint>
#include <vector>

#include "tests/gpu/bench.h"

namespace sluice::gpu {

using namespace compression::cuda;  // NOLINT: what the table is about

void AddLowRankRows(Bench& bench) {
  constexpr uint32_t kRank = 4;
  constexpr uint64_t kColumns = 1024, kRows = kElements / kColumns;
  const uint64_t room = (LowRankWorkspaceBytes(kElements, kColumns, kRank) + 255) / 256 * 256;
  uint8_t* work = Allocate<uint8_t>(kPartitions * room);
  float* states = Allocate<float>(kPartitions * kRank * kColumns);
  if (!(bench.ok &= work != nullptr && states != nullptr)) return;
  for (const bool halves : {false, true}) {
    std::vector<LowRankTask> tasks;
    std::vector<DecodeTask> decodes = bench.decode;
    for (uint32_t i = 0; i < kPartitions; ++i) {
      tasks.push_back({bench.encode[i], kColumns, work + i * room, nullptr, states + i * kRank * kColumns, 7});
      decodes[i].bytes = 12 + (halves ? 2 : 4) * kRank * (kRows + kColumns);
    }
    const Batch<LowRankTask> encode = OnDevice(tasks);
    const Batch<DecodeTask> decode = OnDevice(decodes);
    if (!(bench.ok &= encode.tasks != nullptr && decode.tasks != nullptr)) return;
    const char* codec = halves ? "lowrank:4+fp16" : "lowrank:4";
    bench.Row(codec, "encode+residual", 24, [&] { return EncodeLowRank(kRank, halves, encode, bench.stream); });
    bench.Row(codec, "decode", 4, [&] { return DecodeLowRank(decode, bench.stream); });
    bench.Row(codec, "decode-add", 8, [&] { return DecodeLowRankAdd(decode, bench.stream); });
  }
}

}  // namespace sluice::gpu
