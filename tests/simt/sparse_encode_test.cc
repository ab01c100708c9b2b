// The kernels of codecs that send some of the elements, against the CPU's: bytes, sizes, residuals and states, bit for
// bit, under several schedules.
#include <bit>
#include <limits>

#include <gtest/gtest.h>

#include "compression/cuda/kernels.h"
#include "compression/selection.h"
#include "tests/simt/partitions.h"

namespace sluice::simt {
namespace {

namespace cuda = compression::cuda;
using cuda::Format;
using cuda::Selection;
using cuda::SparseTask;

// "<selection>:<parameter>" and, in a chain, its values.
struct Case {
  std::string codec;
  Selection selection;
  double parameter;          // ratio or threshold
  Format values = Format::kFp16;
  bool topk() const { return selection == Selection::kTopK && codec.find('+') == std::string::npos; }
};

uint64_t MostOf(const Case& of, uint64_t n, uint64_t k) {
  if (of.selection == Selection::kThreshold) return n;
  return of.selection == Selection::kAdaptive ? std::min(n, 2 * k) : k;
}

// Encodes all partitions in one batch, and compares. states[i] is partition i's state; an empty one is none.
void ExpectEncodesAsTheCpu(const Case& of, const std::vector<Partition>& partitions, uint64_t schedule,
                           std::vector<std::vector<float>> states = {}) {
  const auto codec = compression::Named(of.codec);
  states.resize(partitions.size());
  std::vector<Guarded<float>> gradients, residuals, outs, befores, afters;
  std::vector<Guarded<uint8_t>> bytes;
  std::vector<Guarded<uint32_t>> workspaces;
  Guarded<uint64_t> sizes(std::vector<uint64_t>(partitions.size(), 12345), 0);
  std::vector<SparseTask> tasks;
  for (const Partition& p : partitions) {
    const size_t i = tasks.size();
    const uint64_t n = p.gradient.size();
    SparseTask task{};
    task.k = of.selection == Selection::kThreshold ? 0 : compression::EntriesFor(of.parameter, n);
    task.most = MostOf(of, n, task.k);
    gradients.emplace_back(p.gradient, p.offset);
    residuals.emplace_back(p.residual, p.offset);
    outs.emplace_back(n, p.offset);
    befores.emplace_back(states[i], p.offset);
    afters.emplace_back(size_t{1}, p.offset);
    bytes.emplace_back(codec->MaxEncodedBytes(n), p.offset);
    workspaces.emplace_back(cuda::SparseWorkspaceBytes(n, task.most) / 4, p.offset);
    task.gradient = gradients[i].data();
    task.residual = p.residual.empty() ? nullptr : residuals[i].data();
    task.residual_out = outs[i].data();
    task.out = bytes[i].data();
    task.n = n;
    task.scale = p.scale;
    task.draw_key = DrawKey(p.random);
    task.first_element = p.random.first_element;
    task.workspace = workspaces[i].data();
    task.encoded_bytes = sizes.data() + i;
    task.threshold = static_cast<float>(of.parameter);
    task.state = states[i].empty() ? nullptr : befores[i].data();
    task.state_out = afters[i].data();
    task.selection_key = compression::SelectionKey(p.random);
    tasks.push_back(task);
  }
  Tasks<SparseTask> on_device(tasks);
  ASSERT_EQ(RunOnDevice(schedule,
                        [&](void* stream) {
                          return of.topk() ? cuda::EncodeTopK(on_device.batch(), stream)
                                           : cuda::EncodeSparse(of.selection, of.values, on_device.batch(), stream);
                        }),
            "");
  for (size_t i = 0; i < partitions.size(); ++i) {
    const Partition& p = partitions[i];
    const std::string what = codec->name() + ", " + p.what;
    std::vector<float> after(codec->StateBytes(p.gradient.size()) / 4);
    const compression::Encoded expected =
        EncodeOnCpu(*codec, p, std::as_bytes(std::span(states[i])), std::as_writable_bytes(std::span(after)));
    ASSERT_EQ(sizes.data()[i], expected.bytes.size()) << what;
    ASSERT_TRUE(
        std::ranges::equal(std::as_bytes(std::span(bytes[i].data(), expected.bytes.size())), expected.bytes))
        << "other bytes, " << what;
    ExpectSameBits(outs[i].values(), expected.residual, "residual, " + what);
    // That of topk is a hint for the CPU's one pass, which kernels have no use for.
    if (of.selection == Selection::kAdaptive) ExpectSameBits(afters[i].values(), after, "state, " + what);
    bytes[i].ExpectMarginsUntouched("the encoding, " + what);
    outs[i].ExpectMarginsUntouched("the residual, " + what);
    workspaces[i].ExpectMarginsUntouched("the workspace, " + what);
  }
}

Case TopK(double ratio) { return {"topk:" + std::to_string(ratio), Selection::kTopK, ratio}; }

std::vector<Partition> LargeAndSmall() {
  Partition large, small;
  large.what = "large";
  large.gradient = compression::MakeVector(compression::kGaussian, 100003, 1);
  large.residual = compression::MakeVector(compression::kTies, 100003, 2);
  for (float& e : large.residual) e *= 1e-3f;
  small.what = "small";
  small.gradient = {0.5f, -4, 0.25f, 3};
  return {large, small};
}

TEST(TopK, EncodesTheSameBytesAndResidualsAsTheCpu) {
  uint64_t schedule = 0;
  for (int shape = 0; shape < compression::kShapes; ++shape)
    for (const double ratio : {0.01, 0.3, 1.0}) {
      ++schedule;
      ExpectEncodesAsTheCpu(TopK(ratio), NastyPartitions(shape, schedule % 5), schedule);
    }
}

TEST(TopK, EveryScheduleGivesTheSameBytes) {
  for (uint64_t schedule = 0; schedule < 6; ++schedule)
    ExpectEncodesAsTheCpu(TopK(0.1), NastyPartitions(compression::kTies, 3), schedule);
}

// Several blocks count one partition; groups and tiles are more than one block's threads.
TEST(TopK, EncodesALargePartitionBesideASmallOne) {
  for (const double ratio : {0.001, 0.08}) ExpectEncodesAsTheCpu(TopK(ratio), LargeAndSmall(), 4);
}

TEST(TopK, BothFormsOfIndicesAreMet) {
  Partition even, crowded;
  even.what = "every second element";
  crowded.what = "a dense half";
  for (int i = 0; i < 3000; ++i) {
    even.gradient.push_back(i % 2 == 0 ? 1.0f : 0.001f);
    crowded.gradient.push_back(i < 1500 ? 1.0f + static_cast<float>(i % 7) : 0.001f);
  }
  ExpectEncodesAsTheCpu(TopK(0.5), {even, crowded}, 1);
}

TEST(Threshold, EncodesAsTheCpu) {
  uint64_t schedule = 20;
  for (int shape = 0; shape < compression::kShapes; ++shape)
    for (const char* value : {"0.02", "1e-45"}) {   // the least denormal: all but zeros
      ++schedule;
      ExpectEncodesAsTheCpu({"threshold:" + std::string(value), Selection::kThreshold, std::strtof(value, nullptr)},
                            NastyPartitions(shape, schedule % 7), schedule);
    }
  ExpectEncodesAsTheCpu({"threshold:0.02", Selection::kThreshold, 0.02f}, LargeAndSmall(), 1);
}

TEST(RandK, EncodesAsTheCpu) {
  uint64_t schedule = 40;
  for (int shape = 0; shape < compression::kShapes; ++shape) {
    const double ratio = shape % 3 == 0 ? 0.01 : shape % 3 == 1 ? 0.25 : 1;
    ++schedule;
    ExpectEncodesAsTheCpu({"randk:" + std::to_string(ratio), Selection::kRandom, ratio},
                          NastyPartitions(shape, schedule % 5), schedule);
  }
  ExpectEncodesAsTheCpu({"randk:0.05", Selection::kRandom, 0.05}, LargeAndSmall(), 2);
}

// From no state, from states that make no sense, from those that serve and from those that select too much or too little.
TEST(AdaptiveThreshold, EncodesAsTheCpuFromAnyState) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Case of = {"threshold:auto:0.1", Selection::kAdaptive, 0.1};
  const auto codec = compression::Named(of.codec);
  uint64_t schedule = 60;
  for (int shape = 0; shape < compression::kShapes; ++shape) {
    ++schedule;
    const std::vector<Partition> partitions = NastyPartitions(shape, schedule % 6);
    std::vector<std::vector<float>> states;
    for (const Partition& p : partitions) {
      std::vector<float> served(1);
      EncodeOnCpu(*codec, p, {}, std::as_writable_bytes(std::span(served)));
      const std::vector<std::vector<float>> all = {{},    {served[0] * 0.9f}, {nan},  {served[0] * 1.1f}, {-1.0f}, served,
                                                   {inf}, {0.0f},             {1e-45f}, {1e30f}};
      states.push_back(all[(states.size() + static_cast<size_t>(shape)) % all.size()]);
    }
    ExpectEncodesAsTheCpu(of, partitions, schedule, states);
  }
  for (const float state : {0.012f, 1.0f}) ExpectEncodesAsTheCpu(of, LargeAndSmall(), 3, {{state}, {2.0f}});
}

TEST(Chains, EncodeTheirValuesAsTheCpu) {
  const struct {
    const char* name;
    Format format;
  } values[] = {{"none", Format::kNone},     {"fp16", Format::kFp16},
                {"bf16", Format::kBf16},     {"mxfp8", Format::kMxfp8},
                {"int8", Format::kInt8},     {"int8:stochastic", Format::kInt8Stochastic},
                {"int4", Format::kInt4},     {"int4:stochastic", Format::kInt4Stochastic},
                {"onebit", Format::kOneBit}};
  int shape = 0;
  for (const auto& v : values) {
    const std::string suffix = "+" + std::string(v.name);
    for (const Case& of : {Case{"topk:0.3" + suffix, Selection::kTopK, 0.3, v.format},
                           Case{"randk:0.5" + suffix, Selection::kRandom, 0.5, v.format}}) {
      shape = (shape + 1) % compression::kShapes;
      ExpectEncodesAsTheCpu(of, NastyPartitions(shape, static_cast<uint64_t>(shape)), 80 + static_cast<uint64_t>(shape));
    }
    ExpectEncodesAsTheCpu({"randk:0.5" + suffix, Selection::kRandom, 0.5, v.format},
                          NastyPartitions(compression::kZeros, 2), 7);   // a zero that is sent keeps its sign
  }
}

TEST(Sparse, AnEmptyBatchIsNoLaunchAndWhatCannotBeIsRefused) {
  const auto run = [](auto enqueue) { return RunOnDevice(1, enqueue); };
  EXPECT_EQ(run([](void* stream) { return cuda::EncodeTopK({nullptr, 0, 0}, stream); }), "");
  EXPECT_NE(run([](void* stream) { return cuda::EncodeTopK({nullptr, 65536, 1}, stream); }), "");
  EXPECT_NE(run([](void* stream) { return cuda::EncodeTopK({nullptr, 1, uint64_t{1} << 31}, stream); }), "");
  EXPECT_NE(run([](void* stream) {
              return cuda::EncodeSparse(Selection::kTopK, Format::kQsgd, {nullptr, 1, 1}, stream);
            }),
            "");
}

}  // namespace
}  // namespace sluice::simt
