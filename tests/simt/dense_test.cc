// The kernels of codecs of a fixed size against the CPU's: bytes and residuals, bit for bit, under several schedules.
#include <bit>
#include <limits>

#include <gtest/gtest.h>

#include "compression/cuda/kernels.h"
#include "tests/simt/partitions.h"

namespace sluice::simt {
namespace {

namespace cuda = compression::cuda;
using compression::cuda::DecodeTask;
using compression::cuda::EncodeTask;
using compression::cuda::FindTask;
using compression::cuda::Format;

struct Case {
  const char* codec;
  Format format;
  uint32_t levels = 0;   // of kQsgd
};

int EncodeOnDevice(const Case& of, compression::cuda::Batch<EncodeTask> batch, void* stream) {
  return of.format == Format::kQsgd ? cuda::EncodeQsgd(of.levels, batch, stream)
                                    : cuda::Encode(of.format, batch, stream);
}

class Dense : public testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<compression::Codec> codec_ = compression::Named(GetParam().codec);
};
INSTANTIATE_TEST_SUITE_P(Codecs, Dense,
                         testing::Values(Case{"none", Format::kNone}, Case{"fp16", Format::kFp16},
                                         Case{"bf16", Format::kBf16}, Case{"int8", Format::kInt8},
                                         Case{"int4", Format::kInt4}, Case{"onebit", Format::kOneBit},
                                         Case{"mxfp8", Format::kMxfp8},
                                         Case{"int8:stochastic", Format::kInt8Stochastic},
                                         Case{"int4:stochastic", Format::kInt4Stochastic},
                                         Case{"terngrad", Format::kQsgd, 1}, Case{"qsgd:7", Format::kQsgd, 7},
                                         Case{"qsgd:127", Format::kQsgd, 127}),
                         [](const auto& info) {
                           std::string name = info.param.codec;
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

// Encodes all partitions in one launch, and compares.
void ExpectEncodesAsTheCpu(const compression::Codec& codec, const Case& of, const std::vector<Partition>& partitions,
                           uint64_t schedule) {
  std::vector<Guarded<float>> gradients, residuals, outs;
  std::vector<Guarded<uint8_t>> bytes;
  std::vector<EncodeTask> tasks;
  for (const Partition& p : partitions) {
    gradients.emplace_back(p.gradient, p.offset);
    residuals.emplace_back(p.residual, p.offset);
    outs.emplace_back(p.wants_residual ? p.gradient.size() : 0, p.offset);
    bytes.emplace_back(codec.MaxEncodedBytes(p.gradient.size()), p.offset);
    tasks.push_back({gradients.back().data(), p.residual.empty() ? nullptr : residuals.back().data(),
                     p.wants_residual ? outs.back().data() : nullptr, bytes.back().data(), p.gradient.size(), p.scale,
                     DrawKey(p.random), p.random.first_element});
  }
  Tasks<EncodeTask> on_device(tasks);
  ASSERT_EQ(RunOnDevice(schedule, [&](void* stream) { return EncodeOnDevice(of, on_device.batch(), stream); }), "");
  for (size_t i = 0; i < partitions.size(); ++i) {
    const Partition& p = partitions[i];
    const compression::Encoded expected = EncodeOnCpu(codec, p);
    ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(bytes[i].data(), bytes[i].size())), expected.bytes))
        << codec.name() << ": other bytes, " << p.what;
    if (p.wants_residual) ExpectSameBits(outs[i].values(), expected.residual, "residual, " + p.what);
    bytes[i].ExpectMarginsUntouched("the encoding, " + p.what);
    outs[i].ExpectMarginsUntouched("the residual, " + p.what);
  }
}

TEST_P(Dense, EncodesTheSameBytesAndResidualsAsTheCpu) {
  for (int shape = 0; shape < compression::kShapes; ++shape) {
    const uint64_t seed = static_cast<uint64_t>(shape) + 1;
    ExpectEncodesAsTheCpu(*codec_, GetParam(), NastyPartitions(shape, seed), seed + 10);
  }
}

TEST_P(Dense, EncodesMoreRowsThanTheBlocksOfOneWave) {
  Partition large;
  large.what = "large";
  large.gradient = compression::MakeVector(compression::kMixed, 100003, 1);
  large.residual = compression::MakeVector(compression::kGaussian, 100003, 2);
  Partition small;
  small.what = "small, beside it";
  small.gradient = {1, -2, 1e6f};
  ExpectEncodesAsTheCpu(*codec_, GetParam(), {large, small}, 5);
}

TEST_P(Dense, DecodesAndAddsAsTheCpu) {
  for (int shape = 0; shape < compression::kShapes; ++shape) {
    for (const bool add : {false, true}) {
      const std::vector<Partition> partitions = NastyPartitions(shape, 7 + add);
      std::vector<Guarded<uint8_t>> bytes;
      std::vector<Guarded<float>> outs;
      std::vector<DecodeTask> tasks;
      std::vector<std::vector<float>> expected;
      for (const Partition& p : partitions) {
        const std::vector<std::byte> encoding = EncodeOnCpu(*codec_, p).bytes;
        std::vector<float> sum = p.gradient;
        bytes.emplace_back(encoding.size(), p.offset);
        std::copy(encoding.begin(), encoding.end(), reinterpret_cast<std::byte*>(bytes.back().data()));
        outs.emplace_back(sum, p.offset);
        tasks.push_back({bytes.back().data(), outs.back().data(), sum.size(), encoding.size()});
        ASSERT_TRUE((add ? codec_->DecodeAdd(encoding, sum) : codec_->Decode(encoding, sum)).ok());
        expected.push_back(std::move(sum));
      }
      Tasks<DecodeTask> on_device(tasks);
      const auto decode = add ? cuda::DecodeAdd : cuda::Decode;
      ASSERT_EQ(RunOnDevice(static_cast<uint64_t>(shape),
                            [&](void* stream) { return decode(GetParam().format, on_device.batch(), stream); }),
                "");
      for (size_t i = 0; i < partitions.size(); ++i) {
        ExpectSameBits(outs[i].values(), expected[i], partitions[i].what);
        outs[i].ExpectMarginsUntouched(partitions[i].what);
      }
    }
  }
}

TEST(Qsgd, WhatMakesNoSenseIsZeros) {
  const std::vector<float> before = compression::MakeVector(compression::kGaussian, 300, 1);
  for (const uint32_t levels : {0u, 1u, 2u, 127u, 128u, 255u, 1u << 24}) {
    for (const size_t size : {0, 3, 4, 60, 91, 92, 93, 320, 1000}) {
      if ((size == 92 && levels == 1) || (size == 320 && levels == 127)) continue;   // as it should be
      Guarded<uint8_t> bytes(std::vector<uint8_t>(size, 0xFF), 1);
      if (size >= 4) std::memcpy(bytes.data(), &levels, 4);
      Guarded<float> out(before, 0);
      Tasks<DecodeTask> on_device({{bytes.data(), out.data(), before.size(), size}});
      ASSERT_EQ(RunOnDevice(1, [&](void* stream) { return cuda::DecodeAdd(Format::kQsgd, on_device.batch(), stream); }),
                "");
      ExpectSameBits(out.values(), before, "levels " + std::to_string(levels) + ", bytes " + std::to_string(size));
    }
  }
  EXPECT_NE(RunOnDevice(1, [](void* stream) { return cuda::EncodeQsgd(0, {nullptr, 1, 1}, stream); }), "");
  EXPECT_NE(RunOnDevice(1, [](void* stream) { return cuda::EncodeQsgd(128, {nullptr, 1, 1}, stream); }), "");
}

TEST(FirstNonfinite, IsTheLowestIndexUnderEverySchedule) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::vector<float>> inputs;
  for (const size_t n : {0, 1, 31, 128, 129, 5000})
    for (const size_t bad : {size_t{0}, n / 2, n - 1, n}) {
      std::vector<float> values = compression::MakeVector(compression::kHuge, n, bad);
      if (bad < n) values[bad] = bad % 2 == 0 ? nan : -inf;
      for (size_t i = bad + 1; i < n; i += 3) values[i] = inf;
      inputs.push_back(std::move(values));
    }
  for (uint64_t schedule = 0; schedule < 6; ++schedule) {
    std::vector<Guarded<float>> values;
    Guarded<uint64_t> found(std::vector<uint64_t>(inputs.size(), 12345), 0);
    std::vector<FindTask> tasks;
    for (size_t i = 0; i < inputs.size(); ++i) {
      values.emplace_back(inputs[i], (i + schedule) % 4);
      tasks.push_back({values.back().data(), inputs[i].size(), found.data() + i});
    }
    Tasks<FindTask> on_device(tasks);
    ASSERT_EQ(RunOnDevice(schedule, [&](void* stream) { return cuda::FirstNonfinite(on_device.batch(), stream); }), "");
    for (size_t i = 0; i < inputs.size(); ++i)
      EXPECT_EQ(found.data()[i], compression::FirstNonfinite(inputs[i])) << i;
  }
}

TEST(Launches, AnEmptyBatchIsNoLaunchAndALargeOneIsRefused) {
  // A launch would read from null.
  const auto run = [](auto enqueue) { return RunOnDevice(1, enqueue); };
  EXPECT_EQ(run([](void* stream) { return cuda::Encode(Format::kInt8, {nullptr, 0, 0}, stream); }), "");
  EXPECT_EQ(run([](void* stream) { return cuda::Decode(Format::kFp16, {nullptr, 3, 0}, stream); }), "");
  EXPECT_NE(run([](void* stream) { return cuda::DecodeAdd(Format::kNone, {nullptr, 65536, 1}, stream); }), "");
}

}  // namespace
}  // namespace sluice::simt
