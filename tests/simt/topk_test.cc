// The kernels of topk against the CPU's codec: bytes, sizes and residuals, bit for bit, under several schedules.
#include <gtest/gtest.h>

#include "compression/cuda/kernels.h"
#include "compression/selection.h"
#include "tests/simt/partitions.h"

namespace sluice::simt {
namespace {

namespace cuda = compression::cuda;
using cuda::TopKTask;

// Encodes all partitions in one batch, each with the ratio of its codec, and compares.
void ExpectEncodesAsTheCpu(double ratio, const std::vector<Partition>& partitions, uint64_t schedule) {
  const auto codec = compression::Named("topk:" + std::to_string(ratio));
  std::vector<Guarded<float>> gradients, residuals, outs;
  std::vector<Guarded<uint8_t>> bytes;
  std::vector<Guarded<uint32_t>> workspaces;
  Guarded<uint64_t> sizes(std::vector<uint64_t>(partitions.size(), 12345), 0);
  std::vector<TopKTask> tasks;
  for (const Partition& p : partitions) {
    const uint64_t n = p.gradient.size(), k = compression::EntriesFor(ratio, n);
    gradients.emplace_back(p.gradient, p.offset);
    residuals.emplace_back(p.residual, p.offset);
    outs.emplace_back(n, p.offset);
    bytes.emplace_back(codec->MaxEncodedBytes(n), p.offset);
    workspaces.emplace_back(cuda::TopKWorkspaceBytes(n, k) / 4, p.offset);
    TopKTask task{};
    task.gradient = gradients.back().data();
    task.residual = p.residual.empty() ? nullptr : residuals.back().data();
    task.residual_out = outs.back().data();
    task.out = bytes.back().data();
    task.n = n;
    task.scale = p.scale;
    task.k = k;
    task.workspace = workspaces.back().data();
    task.encoded_bytes = sizes.data() + tasks.size();
    tasks.push_back(task);
  }
  Tasks<TopKTask> on_device(tasks);
  ASSERT_EQ(RunOnDevice(schedule, [&](void* stream) { return cuda::EncodeTopK(on_device.batch(), stream); }), "");
  for (size_t i = 0; i < partitions.size(); ++i) {
    const Partition& p = partitions[i];
    const std::string what = codec->name() + ", " + p.what;
    const compression::Encoded expected = compression::Encode(*codec, p.gradient, p.residual, p.scale);
    ASSERT_EQ(sizes.data()[i], expected.bytes.size()) << what;
    ASSERT_TRUE(
        std::ranges::equal(std::as_bytes(std::span(bytes[i].data(), expected.bytes.size())), expected.bytes))
        << "other bytes, " << what;
    ExpectSameBits(outs[i].values(), expected.residual, "residual, " + what);
    bytes[i].ExpectMarginsUntouched("the encoding, " + what);
    outs[i].ExpectMarginsUntouched("the residual, " + what);
    workspaces[i].ExpectMarginsUntouched("the workspace, " + what);
  }
}

TEST(TopK, EncodesTheSameBytesAndResidualsAsTheCpu) {
  uint64_t schedule = 0;
  for (int shape = 0; shape < compression::kShapes; ++shape)
    for (const double ratio : {0.01, 0.3, 1.0}) {
      ++schedule;
      ExpectEncodesAsTheCpu(ratio, NastyPartitions(shape, schedule % 5), schedule);
    }
}

TEST(TopK, EveryScheduleGivesTheSameBytes) {
  for (uint64_t schedule = 0; schedule < 6; ++schedule)
    ExpectEncodesAsTheCpu(0.1, NastyPartitions(compression::kTies, 3), schedule);
}

// Several blocks count one partition; groups and tiles are more than one block's threads.
TEST(TopK, EncodesALargePartitionBesideASmallOne) {
  Partition large, small;
  large.what = "large";
  large.gradient = compression::MakeVector(compression::kGaussian, 100003, 1);
  large.residual = compression::MakeVector(compression::kTies, 100003, 2);
  small.what = "small";
  small.gradient = {0.5f, -4, 0.25f, 3};
  for (const double ratio : {0.001, 0.08}) ExpectEncodesAsTheCpu(ratio, {large, small}, 4);
}

TEST(TopK, BothFormsOfIndicesAreMet) {
  Partition even, crowded;
  even.what = "every second element";
  crowded.what = "a dense half";
  for (int i = 0; i < 3000; ++i) {
    even.gradient.push_back(i % 2 == 0 ? 1.0f : 0.001f);
    crowded.gradient.push_back(i < 1500 ? 1.0f + static_cast<float>(i % 7) : 0.001f);
  }
  ExpectEncodesAsTheCpu(0.5, {even, crowded}, 1);
}

TEST(TopK, AnEmptyBatchIsNoLaunchAndALargeOneIsRefused) {
  const auto run = [](auto enqueue) { return RunOnDevice(1, enqueue); };
  EXPECT_EQ(run([](void* stream) { return cuda::EncodeTopK({nullptr, 0, 0}, stream); }), "");
  EXPECT_NE(run([](void* stream) { return cuda::EncodeTopK({nullptr, 65536, 1}, stream); }), "");
  EXPECT_NE(run([](void* stream) { return cuda::EncodeTopK({nullptr, 1, uint64_t{1} << 31}, stream); }), "");
}

}  // namespace
}  // namespace sluice::simt
