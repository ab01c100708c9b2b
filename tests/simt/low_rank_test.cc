// The kernels of lowrank against the CPU's codec: bytes, residuals and states, bit for bit, and decoders that take any
// bytes.
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "compression/cuda/kernels.h"
#include "tests/simt/partitions.h"

namespace sluice::simt {
namespace {

namespace cuda = compression::cuda;
using cuda::DecodeTask;
using cuda::LowRankTask;

struct MatrixPartition : Partition {
  uint64_t rows = 0, columns = 0;
  std::vector<float> state;   // empty = none
};

std::unique_ptr<compression::Codec> CodecFor(uint32_t rank, bool halves, uint64_t columns) {
  auto codec = compression::MakeCodec("lowrank:" + std::to_string(rank) + (halves ? "+fp16" : ""), columns);
  EXPECT_TRUE(codec.ok()) << codec.status();
  return *std::move(codec);
}

MatrixPartition MakeMatrix(int shape, uint64_t rows, uint64_t columns, uint64_t seed) {
  MatrixPartition p;
  p.rows = rows;
  p.columns = columns;
  const size_t n = rows * columns;
  p.what = std::to_string(rows) + " x " + std::to_string(columns) + ", shape " + std::to_string(shape);
  p.gradient = compression::MakeVector(shape, n, seed);
  if (seed % 3 != 0) p.residual = compression::MakeVector((shape + 1) % compression::kShapes, n, seed + 1);
  p.scale = seed % 2 == 0 ? 1.0f : 0.5f;
  p.offset = seed % 4;
  p.random.round = seed;
  return p;
}

// Sizes round the 16 sums, a warp and a block; matrices that are too small for the rank; vectors.
std::vector<MatrixPartition> NastyMatrices(int shape) {
  constexpr uint64_t kExtents[][2] = {{40, 33}, {33, 16}, {17, 70}, {300, 15}, {2, 2}, {1, 64}, {64, 1}, {9, 300}};
  std::vector<MatrixPartition> all;
  for (const auto& [rows, columns] : kExtents)
    all.push_back(MakeMatrix(shape, rows, columns, all.size() + static_cast<uint64_t>(shape)));
  all.emplace_back().what = "nothing";
  return all;
}

// Encodes all in one batch, compares, and returns the new states.
std::vector<std::vector<float>> ExpectEncodesAsTheCpu(uint32_t rank, bool halves,
                                                      const std::vector<MatrixPartition>& partitions, uint64_t schedule) {
  std::vector<Guarded<float>> gradients, residuals, outs, befores, afters;
  std::vector<Guarded<uint8_t>> bytes;
  std::vector<Guarded<uint32_t>> workspaces;
  std::vector<LowRankTask> tasks;
  std::vector<std::vector<float>> states;
  for (const MatrixPartition& p : partitions) {
    const size_t i = tasks.size(), n = p.gradient.size();
    const auto codec = CodecFor(rank, halves, p.columns);
    gradients.emplace_back(p.gradient, p.offset);
    residuals.emplace_back(p.residual, p.offset);
    outs.emplace_back(n, p.offset);
    befores.emplace_back(p.state, p.offset);
    afters.emplace_back(codec->StateBytes(n) / 4, p.offset);
    bytes.emplace_back(codec->MaxEncodedBytes(n), p.offset);
    workspaces.emplace_back(cuda::LowRankWorkspaceBytes(n, p.columns, rank) / 4, p.offset);
    LowRankTask task{};
    task.gradient = gradients[i].data();
    task.residual = p.residual.empty() ? nullptr : residuals[i].data();
    task.residual_out = outs[i].data();
    task.out = bytes[i].data();
    task.n = n;
    task.scale = p.scale;
    task.columns = p.columns;
    task.workspace = workspaces[i].data();
    task.state = p.state.empty() ? nullptr : befores[i].data();
    task.state_out = afters[i].data();
    const auto key = compression::DrawKey(p.random, compression::DrawPurpose::kFactor);
    task.factor_key = key[0] | uint64_t{key[1]} << 32;
    tasks.push_back(task);
  }
  Tasks<LowRankTask> on_device(tasks);
  EXPECT_EQ(RunOnDevice(schedule,
                        [&](void* stream) { return cuda::EncodeLowRank(rank, halves, on_device.batch(), stream); }),
            "");
  for (size_t i = 0; i < partitions.size(); ++i) {
    const MatrixPartition& p = partitions[i];
    const auto codec = CodecFor(rank, halves, p.columns);
    std::vector<float> after(afters[i].size());
    const compression::Encoded expected = EncodeOnCpu(*codec, p, std::as_bytes(std::span(p.state)),
                                                      std::as_writable_bytes(std::span(after)));
    const std::string what = codec->name() + ", " + p.what;
    EXPECT_EQ(bytes[i].size(), expected.bytes.size()) << what;
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(bytes[i].data(), bytes[i].size())), expected.bytes))
        << "other bytes, " << what;
    ExpectSameBits(outs[i].values(), expected.residual, "residual, " + what);
    ExpectSameBits(afters[i].values(), after, "state, " + what);
    bytes[i].ExpectMarginsUntouched("the encoding, " + what);
    outs[i].ExpectMarginsUntouched("the residual, " + what);
    afters[i].ExpectMarginsUntouched("the state, " + what);
    workspaces[i].ExpectMarginsUntouched("the workspace, " + what);
    states.push_back(std::move(after));
  }
  return states;
}

TEST(LowRank, EncodesAsTheCpuFromDrawsAndFromTheLastRound) {
  for (int shape = 0; shape < compression::kShapes; ++shape) {
    const uint32_t rank = shape % 3 == 0 ? 1 : shape % 3 == 1 ? 4 : 11;
    const bool halves = shape % 2 != 0;
    std::vector<MatrixPartition> partitions = NastyMatrices(shape);
    const auto states = ExpectEncodesAsTheCpu(rank, halves, partitions, static_cast<uint64_t>(shape));
    for (size_t i = 0; i < partitions.size(); ++i) partitions[i].state = states[i];
    ExpectEncodesAsTheCpu(rank, halves, partitions, static_cast<uint64_t>(shape) + 20);
  }
}

TEST(LowRank, AStateThatMakesNoSenseIsNone) {
  MatrixPartition p = MakeMatrix(compression::kGaussian, 40, 33, 1);
  p.state.assign(4 * 33, 0.0f);   // of four components: zeros, not finite, too large, and one that serves
  p.state[33 + 5] = std::numeric_limits<float>::quiet_NaN();
  p.state[66 + 5] = 0x1p121f;
  p.state[99 + 5] = 0x1p120f;
  ExpectEncodesAsTheCpu(4, false, {p}, 1);
}

// Components that are a mixture of those before them become zeros.
TEST(LowRank, AMatrixOfLowerRankThanAskedFor) {
  MatrixPartition p = MakeMatrix(compression::kZeros, 60, 50, 3);
  for (size_t i = 0; i < 60; ++i)
    for (size_t j = 0; j < 50; ++j) p.gradient[50 * i + j] = static_cast<float>(i % 7 * (j + 1)) - static_cast<float>(i % 3);
  p.residual.clear();
  ExpectEncodesAsTheCpu(8, true, {p}, 2);
}

void ExpectDecodesAsTheCpu(const std::vector<std::pair<std::vector<std::byte>, std::vector<float>>>& payloads,
                           bool rubbish) {
  const auto codec = CodecFor(1, false, 0);
  for (const bool add : {false, true}) {
    std::vector<Guarded<uint8_t>> bytes;
    std::vector<Guarded<float>> outs;
    std::vector<DecodeTask> tasks;
    for (const auto& [payload, sum] : payloads) {
      const size_t offset = tasks.size() % 4;
      bytes.emplace_back(payload.size(), offset);
      std::copy(payload.begin(), payload.end(), reinterpret_cast<std::byte*>(bytes.back().data()));
      outs.emplace_back(sum, offset);
      tasks.push_back({bytes.back().data(), outs.back().data(), sum.size(), payload.size()});
    }
    Tasks<DecodeTask> on_device(tasks);
    const auto decode = add ? cuda::DecodeLowRankAdd : cuda::DecodeLowRank;
    ASSERT_EQ(RunOnDevice(1, [&](void* stream) { return decode(on_device.batch(), stream); }), "");
    for (size_t i = 0; i < payloads.size(); ++i) {
      const auto& [payload, sum] = payloads[i];
      outs[i].ExpectMarginsUntouched(std::to_string(i));
      std::vector<float> expected = sum;
      const bool ok = (add ? codec->DecodeAdd(payload, expected) : codec->Decode(payload, expected)).ok();
      ASSERT_TRUE(ok || rubbish) << i;
      if (!ok) expected = add ? sum : std::vector<float>(sum.size());   // a header that makes no sense
      if (!ok || codec->Validate(payload, sum.size()).ok()) ExpectSameBits(outs[i].values(), expected, std::to_string(i));
    }
  }
}

TEST(LowRank, DecodesAndAddsAsTheCpu) {
  std::vector<std::pair<std::vector<std::byte>, std::vector<float>>> payloads;
  for (int shape = 0; shape < compression::kShapes; shape += 3)
    for (const bool halves : {false, true})
      for (const MatrixPartition& p : NastyMatrices(shape))
        payloads.emplace_back(EncodeOnCpu(*CodecFor(5, halves, p.columns), p).bytes, p.gradient);
  ExpectDecodesAsTheCpu(payloads, false);
}

TEST(LowRank, RubbishDecodesToZerosOrStaysInBounds) {
  PhiloxRandom random(3);
  std::vector<std::pair<std::vector<std::byte>, std::vector<float>>> payloads;
  for (int i = 0; i < 200; ++i) {
    const MatrixPartition p = MakeMatrix(compression::kGaussian, 1 + random.Below(30), 1 + random.Below(30),
                                         static_cast<uint64_t>(i));
    std::vector<std::byte> bytes = EncodeOnCpu(*CodecFor(2, i % 2 != 0, p.columns), p).bytes;
    if (i % 5 == 0)
      bytes.resize(random.Below(static_cast<uint32_t>(bytes.size())));
    else
      bytes[random.Below(i % 5 < 4 ? 12 : static_cast<uint32_t>(bytes.size()))] = static_cast<std::byte>(random.Below(256));
    payloads.emplace_back(std::move(bytes), p.gradient);
  }
  ExpectDecodesAsTheCpu(payloads, true);
}

TEST(LowRank, AnEmptyBatchIsNoLaunchAndARankThatCannotBeIsRefused) {
  const auto run = [](uint32_t rank, cuda::Batch<LowRankTask> batch) {
    return RunOnDevice(1, [&](void* stream) { return cuda::EncodeLowRank(rank, false, batch, stream); });
  };
  EXPECT_EQ(run(4, {nullptr, 0, 0}), "");
  EXPECT_NE(run(0, {nullptr, 1, 1}), "");
  EXPECT_NE(run(65, {nullptr, 1, 1}), "");
  EXPECT_NE(run(4, {nullptr, 65536, 1}), "");
}

}  // namespace
}  // namespace sluice::simt
