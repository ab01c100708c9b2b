#include "compression/cuda/choice.h"

#include <gtest/gtest.h>

#include "compression/codec.h"

namespace sluice::compression::cuda {
namespace {

TEST(Choice, CodecsByTheirOwnNames) {
  using Kind = Choice::Kind;
  const struct {
    const char* codec;
    Kind kind;
    Format format;
  } known[] = {{"none", Kind::kDense, Format::kNone},
               {"mxfp8", Kind::kDense, Format::kMxfp8},
               {"int4:stochastic", Kind::kDense, Format::kInt4Stochastic},
               {"qsgd:7", Kind::kQsgd, Format::kNone},
               {"terngrad", Kind::kQsgd, Format::kNone},
               {"topk:0.01", Kind::kTopK, Format::kFp16},
               {"topk:0.01+int8", Kind::kSparse, Format::kInt8},
               {"topk:0.01+fp16", Kind::kSparse, Format::kFp16},
               {"threshold:0.5", Kind::kSparse, Format::kFp16},
               {"threshold:auto:0.1+onebit", Kind::kSparse, Format::kOneBit},
               {"randk:0.25+int8:stochastic", Kind::kSparse, Format::kInt8Stochastic}};
  for (const auto& k : known) {
    const auto codec = MakeCodec(k.codec);
    ASSERT_TRUE(codec.ok()) << k.codec;
    const auto choice = ChooseKernels((*codec)->name());
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->kind, k.kind) << k.codec;
    EXPECT_EQ(choice->format, k.format) << k.codec;
  }
  EXPECT_EQ(ChooseKernels("qsgd:7")->levels, 7u);
  EXPECT_EQ(ChooseKernels("terngrad")->levels, 1u);
  EXPECT_EQ(ChooseKernels("threshold:0.5")->threshold, 0.5f);
  EXPECT_EQ(ChooseKernels("threshold:auto:0.1")->selection, Selection::kAdaptive);
}

TEST(Choice, EntriesAreTheCodecsOwn) {
  EXPECT_EQ(EntriesWanted(*ChooseKernels("topk:0.01"), 1001), 11u);
  EXPECT_EQ(MostEntries(*ChooseKernels("topk:0.01"), 1001), 11u);
  EXPECT_EQ(MostEntries(*ChooseKernels("threshold:auto:0.01"), 1001), 22u);
  EXPECT_EQ(MostEntries(*ChooseKernels("threshold:1"), 1001), 1001u);
}

TEST(Choice, ACodecWithoutKernelsIsNamed) {
  for (const char* codec : {"lowrank:4", "lowrank:4+fp16", "topk:0.01 with momentum 0.9", "none with momentum 0.9", "topk:",
                            "qsgd:x", "topk:0.1+qsgd:7", "", "+"}) {
    const auto choice = ChooseKernels(codec);
    EXPECT_EQ(choice.status().code(), absl::StatusCode::kUnimplemented) << codec;
    EXPECT_NE(choice.status().message().find(codec), std::string::npos) << choice.status();
  }
}

}  // namespace
}  // namespace sluice::compression::cuda
