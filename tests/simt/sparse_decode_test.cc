// The kernels that decode topk and the sparse format, against the CPU's: values bit for bit, and no write out of bounds
// whatever the bytes.
#include <cstring>

#include <gtest/gtest.h>

#include "compression/cuda/kernels.h"
#include "tests/simt/partitions.h"

namespace sluice::simt {
namespace {

namespace cuda = compression::cuda;
using cuda::SparseDecodeTask;

struct Payload {
  std::string what;
  std::vector<std::byte> bytes;
  std::vector<float> sum;    // what lies in the output before
  size_t offset = 0;
  uint64_t most = 0;         // 0 = as many as there are elements
};

// Decodes all in one batch; returns the outputs.
std::vector<std::vector<float>> DecodeOnDevice(bool topk, bool add, const std::vector<Payload>& payloads,
                                               uint64_t schedule) {
  std::vector<Guarded<uint8_t>> bytes;
  std::vector<Guarded<float>> outs;
  std::vector<Guarded<uint32_t>> workspaces;
  std::vector<SparseDecodeTask> tasks;
  for (const Payload& p : payloads) {
    const uint64_t n = p.sum.size(), most = p.most == 0 ? n : p.most;
    bytes.emplace_back(p.bytes.size(), p.offset);
    std::copy(p.bytes.begin(), p.bytes.end(), reinterpret_cast<std::byte*>(bytes.back().data()));
    outs.emplace_back(p.sum, p.offset);
    workspaces.emplace_back(cuda::SparseDecodeWorkspaceBytes(n, most) / 4, p.offset);
    tasks.push_back({{bytes.back().data(), outs.back().data(), n, p.bytes.size()}, most, workspaces.back().data()});
  }
  Tasks<SparseDecodeTask> on_device(tasks);
  const auto decode = topk ? (add ? cuda::DecodeTopKAdd : cuda::DecodeTopK)
                           : (add ? cuda::DecodeSparseAdd : cuda::DecodeSparse);
  EXPECT_EQ(RunOnDevice(schedule, [&](void* stream) { return decode(on_device.batch(), stream); }), "");
  std::vector<std::vector<float>> values;
  for (size_t i = 0; i < payloads.size(); ++i) {
    outs[i].ExpectMarginsUntouched(payloads[i].what);
    workspaces[i].ExpectMarginsUntouched("the workspace, " + payloads[i].what);
    values.push_back(outs[i].values());
  }
  return values;
}

bool IsTopK(const std::string& codec) { return codec.starts_with("topk") && codec.find('+') == std::string::npos; }

Payload Encoding(const std::string& codec, const Partition& p) {
  return {codec + ", " + p.what, EncodeOnCpu(*compression::Named(codec), p).bytes, p.gradient, p.offset};
}

void ExpectDecodesAsTheCpu(const std::string& name, const std::vector<Payload>& payloads, uint64_t schedule) {
  const auto codec = compression::Named(name);
  for (const bool add : {false, true}) {
    const auto got = DecodeOnDevice(IsTopK(name), add, payloads, schedule);
    for (size_t i = 0; i < payloads.size(); ++i) {
      std::vector<float> expected = payloads[i].sum;
      ASSERT_TRUE((add ? codec->DecodeAdd(payloads[i].bytes, expected) : codec->Decode(payloads[i].bytes, expected)).ok());
      ExpectSameBits(got[i], expected, (add ? "sum, " : "") + payloads[i].what);
    }
  }
}

TEST(SparseDecode, GivesTheValuesOfTheCpu) {
  const char* const codecs[] = {"topk:0.01",           "topk:0.3",        "topk:1",          "threshold:0.02",
                                "threshold:1e-45",     "randk:0.1",       "randk:1",         "topk:0.3+none",
                                "topk:0.1+bf16",       "topk:0.5+mxfp8",  "topk:0.2+int8",   "randk:0.6+int4",
                                "threshold:0.01+onebit"};
  int shape = 0;
  for (const char* codec : codecs)
    for (int i = 0; i < 3; ++i, shape = (shape + 1) % compression::kShapes) {
      std::vector<Payload> payloads;
      for (const Partition& p : NastyPartitions(shape, static_cast<uint64_t>(shape)))
        payloads.push_back(Encoding(codec, p));
      ExpectDecodesAsTheCpu(codec, payloads, static_cast<uint64_t>(shape));
    }
}

// More groups of gaps than one piece of shared memory has; more tiles of a bitmap than one block has warps.
TEST(SparseDecode, DecodesALargePartitionBesideASmallOne) {
  Partition large, small;
  large.what = "large";
  large.gradient = compression::MakeVector(compression::kGaussian, 100003, 1);
  small.what = "small";
  small.gradient = {0.5f, -4, 0.25f, 3};
  for (const char* codec : {"topk:0.05", "topk:0.4", "randk:0.01"})
    ExpectDecodesAsTheCpu(codec, {Encoding(codec, large), Encoding(codec, small)}, 4);
}

TEST(SparseDecode, MoreEntriesThanTheWorkspaceHasRoomForDecodeToNothing) {
  Partition p;
  p.gradient = compression::MakeVector(compression::kGaussian, 1000, 1);
  Payload fits = Encoding("topk:0.1", p), exceeds = fits;
  fits.most = 100;
  exceeds.most = 99;
  const auto got = DecodeOnDevice(true, false, {fits, exceeds}, 1);
  EXPECT_NE(got[0], std::vector<float>(1000));
  EXPECT_EQ(got[1], std::vector<float>(1000));
}

// Whatever the CPU takes is decoded as the CPU does; what it refuses may give any values, but stays in bounds.
TEST(SparseDecode, RubbishStaysInBounds) {
  PhiloxRandom random(5);
  for (const char* codec : {"topk:0.2", "topk:0.6", "randk:0.2", "threshold:0.01", "topk:0.2+int4", "topk:0.9+onebit"}) {
    std::vector<Payload> payloads;
    const auto cpu = compression::Named(codec);
    for (int i = 0; i < 60; ++i) {
      Partition p;
      p.gradient = compression::MakeVector(compression::kGaussian, 1 + random.Below(700), static_cast<uint64_t>(i));
      Payload payload = Encoding(codec, p);
      payload.offset = random.Below(4);
      std::vector<std::byte>& bytes = payload.bytes;
      const auto any = [&] { return static_cast<std::byte>(random.Below(256)); };
      switch (i % 6) {
        case 0: bytes[random.Below(8)] = any(); break;                                          // the header
        case 1: bytes.resize(random.Below(static_cast<uint32_t>(bytes.size()))); break;
        case 2: bytes[random.Below(static_cast<uint32_t>(bytes.size()))] = any(); break;
        case 3: bytes.back() = any(); break;                                                    // the indices
        case 4:
          for (std::byte& byte : bytes) byte = any();
          break;
        case 5:
          for (size_t at = 8; at < bytes.size(); ++at) bytes[at] = any();
          break;
      }
      payload.what = std::string(codec) + ", rubbish " + std::to_string(i);
      payloads.push_back(std::move(payload));
    }
    for (const bool add : {false, true}) {
      const auto got = DecodeOnDevice(IsTopK(codec), add, payloads, 9);
      for (size_t i = 0; i < payloads.size(); ++i) {
        if (!cpu->Validate(payloads[i].bytes, payloads[i].sum.size()).ok()) continue;
        std::vector<float> expected = payloads[i].sum;
        ASSERT_TRUE(
            (add ? cpu->DecodeAdd(payloads[i].bytes, expected) : cpu->Decode(payloads[i].bytes, expected)).ok());
        ExpectSameBits(got[i], expected, payloads[i].what);
      }
    }
  }
}

// Widths that would lead a walk out of the encoding, and gaps that overflow 32 bits.
TEST(SparseDecode, HostileWidthsDecodeToNothing) {
  std::vector<Payload> payloads;
  for (const int width : {33, 64, 255, 31}) {   // the last has too few bytes behind it
    std::vector<std::byte> bytes(8 + 2 * 65 + 1 + 200, std::byte{0xFF});
    const uint32_t count = 65, zero = 0;
    std::memcpy(bytes.data(), &count, 4);
    std::memcpy(bytes.data() + 4, &zero, 4);
    bytes[8 + 2 * 65] = static_cast<std::byte>(width);
    payloads.push_back({"width " + std::to_string(width), bytes, std::vector<float>(5000, 1.0f)});
  }
  for (const auto& sum : DecodeOnDevice(true, true, payloads, 3)) EXPECT_EQ(sum, std::vector<float>(5000, 1.0f));
  std::vector<std::byte> bytes(8 + 2 * 64 + 1 + 256, std::byte{0xFF});   // 64 gaps of 2^32 - 1
  const uint32_t count = 64, zero = 0;
  std::memcpy(bytes.data(), &count, 4);
  std::memcpy(bytes.data() + 4, &zero, 4);
  bytes[8 + 2 * 64] = std::byte{32};
  DecodeOnDevice(true, true, {{"overflow", bytes, std::vector<float>(5000, 1.0f)}}, 3);
}

}  // namespace
}  // namespace sluice::simt
