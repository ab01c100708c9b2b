#include "compression/policy.h"

#include <gtest/gtest.h>

namespace sluice::compression {
namespace {

proto::TensorSpec Tensor(std::initializer_list<uint64_t> shape, proto::TensorKind kind = proto::TENSOR_WEIGHT) {
  proto::TensorSpec tensor;
  for (const uint64_t extent : shape) tensor.add_shape(extent);
  tensor.set_kind(kind);
  return tensor;
}

proto::JobConfig Job(const std::string& codec) {
  proto::JobConfig config;
  config.set_codec(codec);
  return config;
}

TEST(Policy, WeightsTakeTheCodecAndTheRestGoesUncompressed) {
  const proto::JobConfig config = Job("topk:0.01");
  EXPECT_EQ(*CodecFor(config, Tensor({784, 128})), "topk:0.01");
  EXPECT_EQ(*CodecFor(config, Tensor({1024})), "topk:0.01");
  EXPECT_EQ(*CodecFor(config, Tensor({1023})), "none");
  EXPECT_EQ(*CodecFor(config, Tensor({})), "none");   // a scalar
  EXPECT_EQ(*CodecFor(config, Tensor({784, 128}, proto::TENSOR_BIAS)), "none");
  EXPECT_EQ(*CodecFor(config, Tensor({784, 128}, proto::TENSOR_NORM)), "none");
  EXPECT_EQ(*CodecFor(Job(""), Tensor({784, 128})), "none");
}

TEST(Policy, TheBoundCountsElementsWithoutOverflow) {
  proto::JobConfig config = Job("int8");
  config.set_codec_min_elements(100);
  EXPECT_EQ(*CodecFor(config, Tensor({9, 11})), "none");
  EXPECT_EQ(*CodecFor(config, Tensor({10, 10})), "int8");
  EXPECT_EQ(*CodecFor(config, Tensor({UINT64_MAX, UINT64_MAX, 4})), "int8");
  EXPECT_EQ(*CodecFor(config, Tensor({UINT64_MAX, 0})), "none");
  config.set_codec_min_elements(UINT32_MAX);
  EXPECT_EQ(*CodecFor(config, Tensor({1u << 31, 1u << 31})), "int8");
  config.set_codec_min_elements(1);
  EXPECT_EQ(*CodecFor(config, Tensor({})), "int8");
}

TEST(Policy, ABiasedCodecWithoutErrorFeedbackMustBeAskedFor) {
  proto::JobConfig config = Job("topk:0.01");
  config.set_no_error_feedback(true);
  const absl::Status refused = CodecFor(config, Tensor({4096})).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("allow_biased"), std::string::npos) << refused;
  EXPECT_FALSE(CheckCodecConfig(config).ok());
  config.set_allow_biased(true);
  EXPECT_EQ(*CodecFor(config, Tensor({4096})), "topk:0.01");
  EXPECT_FALSE(*NeedsResidual(config, "topk:0.01"));
  for (const char* unbiased : {"terngrad", "qsgd:7", "int4", "mxfp8"}) {
    config = Job(unbiased);
    config.set_no_error_feedback(true);
    EXPECT_EQ(*CodecFor(config, Tensor({4096})), unbiased);
  }
  config = Job("onebit");
  config.set_no_error_feedback(true);
  EXPECT_FALSE(CheckCodecConfig(config).ok());
  config = Job("int8");
  config.set_no_error_feedback(true);
  EXPECT_EQ(*CodecFor(config, Tensor({4096})), "int8");
}

TEST(Policy, ResidualsAreKeptForLossyCodecs) {
  const proto::JobConfig config = Job("int8");
  for (const char* codec : {"fp16", "bf16", "int8", "topk:0.1", "int4", "int4:stochastic", "onebit", "mxfp8"})
    EXPECT_TRUE(*NeedsResidual(config, codec)) << codec;
  EXPECT_FALSE(*NeedsResidual(config, "none"));
  // Unbiased, but the error may exceed the value: no bound holds for a residual.
  EXPECT_FALSE(*NeedsResidual(config, "qsgd:7"));
  EXPECT_FALSE(*NeedsResidual(config, "terngrad"));
  EXPECT_FALSE(NeedsResidual(config, "gzip").ok());
}

TEST(Policy, RepliesAreCompressedToo) {
  proto::JobConfig config = Job("topk:0.01");
  EXPECT_EQ(*ReplyCodecFor(config, Tensor({4096})), "fp16");
  EXPECT_EQ(*ReplyCodecFor(config, Tensor({4096}, proto::TENSOR_BIAS)), "none");
  config.set_reply_codec("lowrank:2");
  EXPECT_NE(CheckCodecConfig(config).message().find("replies keep nothing"), std::string::npos);
  config.set_reply_codec("int8");
  EXPECT_EQ(*ReplyCodecFor(config, Tensor({4096})), "int8");
  for (const char* random : {"terngrad", "qsgd:7", "int8:stochastic"}) {
    config.set_reply_codec(random);
    EXPECT_NE(CheckCodecConfig(config).message().find("random"), std::string::npos) << random;
  }
}

TEST(Policy, RowsTakeCodecsThatSendEveryRow) {
  for (const char* name : {"", "none", "fp16", "bf16", "int8", "int4", "mxfp8"}) EXPECT_TRUE(MakeRowCodec(name).ok()) << name;
  for (const char* name : {"topk:0.1", "onebit", "terngrad", "qsgd:7", "int8:stochastic"})
    EXPECT_EQ(MakeRowCodec(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
}

TEST(Policy, RulesComeBeforeExemptionsAndTheJobsCodec) {
  proto::JobConfig config = Job("topk:0.01");
  config.set_codec_rules("*.bias=fp16; embed*=lossless_typo");
  EXPECT_NE(CheckCodecConfig(config).message().find("codec_rules rule 2: no codec"), std::string::npos)
      << CheckCodecConfig(config);
  config.set_codec_rules("*.bias=fp16; embed*=int8; head=auto");
  proto::TensorSpec tensor = Tensor({4096}, proto::TENSOR_BIAS);
  tensor.set_name("a.bias");
  EXPECT_EQ(PolicyFor(config, tensor)->codec, "fp16");
  EXPECT_EQ(PolicyFor(config, tensor)->why, "rule *.bias=fp16");
  tensor.set_name("other");
  EXPECT_EQ(PolicyFor(config, tensor)->codec, "none");
  EXPECT_EQ(PolicyFor(config, tensor)->why, "a bias");
  tensor = Tensor({8, 8});
  tensor.set_name("embed0");
  EXPECT_EQ(PolicyFor(config, tensor)->codec, "int8");
  tensor.set_name("head");
  EXPECT_EQ(PolicyFor(config, tensor)->codec, "auto");
  tensor.set_name("x");
  EXPECT_EQ(PolicyFor(config, tensor)->why, "64 elements, job.codec_min_elements is 1024");
  EXPECT_EQ(PolicyFor(config, Tensor({64, 64}))->codec, "topk:0.01");
  EXPECT_EQ(PolicyFor(config, Tensor({64, 64}))->why, "");
}

TEST(Policy, ARuleNeedsErrorFeedbackAsTheJobsCodecDoes) {
  proto::JobConfig config = Job("int8");
  config.set_codec_rules("a=onebit");
  config.set_no_error_feedback(true);
  EXPECT_NE(CheckCodecConfig(config).message().find("rule 1 onebit is biased"), std::string::npos) << CheckCodecConfig(config);
  EXPECT_TRUE(CodecWarnings(Job("topk:0.01")).empty());
  config.set_allow_biased(true);
  EXPECT_TRUE(CheckCodecConfig(config).ok());
  EXPECT_EQ(CodecWarnings(config).size(), 1u);
}

TEST(Policy, MomentumIsKeptOnOneSideOnly) {
  proto::JobConfig config = Job("topk:0.01");
  config.set_momentum_correction(0.9);
  EXPECT_TRUE(CheckCodecConfig(config).ok());
  for (const char* kind : {"momentum", "nesterov", "adam"}) {
    config.mutable_optimizer()->set_kind(kind);
    EXPECT_NE(CheckCodecConfig(config).message().find("count twice"), std::string::npos) << kind;
  }
  config.mutable_optimizer()->set_kind("sgd");
  EXPECT_TRUE(CheckCodecConfig(config).ok());
  config.set_momentum_correction(1);
  EXPECT_FALSE(CheckCodecConfig(config).ok());
}

TEST(Policy, WarmUpWithoutARatioIsWarnedOf) {
  proto::JobConfig config = Job("int8");
  config.set_codec_warmup_rounds(100);
  EXPECT_TRUE(CheckCodecConfig(config).ok());   // as where codecs are compared under the same settings
  ASSERT_EQ(CodecWarnings(config).size(), 1u);
  EXPECT_NE(CodecWarnings(config)[0].find("does nothing"), std::string::npos);
  config.set_codec_rules("a=randk:0.01");
  EXPECT_TRUE(CodecWarnings(config).empty());
  config = Job("topk:0.01");
  config.set_codec_warmup_rounds(100);
  EXPECT_TRUE(CodecWarnings(config).empty());
}

TEST(Policy, AutoChoosesAmongCodecsThatTakeOverAResidual) {
  proto::JobConfig config = Job("auto");
  EXPECT_TRUE(CheckCodecConfig(config).ok());
  EXPECT_EQ(AutoCodecs(config)->front(), "none");
  EXPECT_TRUE(*NeedsResidual(config, "auto"));
  config.set_auto_codecs("none, int8, terngrad");
  EXPECT_NE(CheckCodecConfig(config).message().find("keeps no residual"), std::string::npos);
  config.set_auto_codecs("int8,none");
  EXPECT_NE(CheckCodecConfig(config).message().find("the first is the mildest"), std::string::npos);
  config.set_auto_codecs("none,int8");
  EXPECT_TRUE(CheckCodecConfig(config).ok());
  config.set_no_error_feedback(true);
  EXPECT_FALSE(CheckCodecConfig(config).ok());
}

TEST(Policy, UnknownNamesSayWhichFieldAndWhatIsNear) {
  EXPECT_NE(CheckCodecConfig(Job("int9")).message().find("job.codec: no codec \"int9\"; the nearest is \"int8\""),
            std::string::npos);
  proto::JobConfig config = Job("int8");
  config.set_reply_codec("fp17");
  EXPECT_NE(CheckCodecConfig(config).message().find("job.reply_codec"), std::string::npos);
  EXPECT_TRUE(CheckCodecConfig(Job("")).ok());
}

}  // namespace
}  // namespace sluice::compression
