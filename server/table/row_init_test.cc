#include "server/table/row_init.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "base/philox.h"

namespace sluice::server {
namespace {

proto::TableSpec Spec(const std::string& kind, double scale, uint64_t seed = 7) {
  proto::TableSpec spec;
  spec.set_initializer(kind);
  spec.set_init_scale(scale);
  spec.set_seed(seed);
  return spec;
}

std::vector<float> Fill(const proto::TableSpec& spec, uint64_t id, size_t dim) {
  const auto init = RowInit::Create(spec);
  EXPECT_TRUE(init.ok()) << init.status();
  std::vector<float> values(dim, 99.0f);
  init->Fill(id, values);
  return values;
}

// Word w of a row, from the description alone.
uint32_t Word(uint64_t seed, uint64_t id, uint64_t w) {
  const PhiloxBlock block = Philox4x32({static_cast<uint32_t>(w / 4), 0x726F7773,
                                        static_cast<uint32_t>(id & 0xFFFFFFFF), static_cast<uint32_t>(id >> 32)},
                                       {static_cast<uint32_t>(seed & 0xFFFFFFFF), static_cast<uint32_t>(seed >> 32)});
  return block[w % 4];
}

TEST(RowInit, UniformIsTheDocumentedFunction) {
  const uint64_t seed = 0x123456789ABCDEF0;
  for (const uint64_t id : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40, ~uint64_t{0}}) {
    const std::vector<float> values = Fill(Spec("uniform", 0.05, seed), id, 19);
    for (size_t p = 0; p < values.size(); ++p) {
      const double unit = (Word(seed, id, p) / 256) / 8388608.0 - 1.0;
      EXPECT_EQ(values[p], static_cast<float>(unit * static_cast<double>(0.05f))) << id << " " << p;
      EXPECT_GE(values[p], -0.05f);
      EXPECT_LT(values[p], 0.05f);
    }
  }
}

TEST(RowInit, NormalIsTheDocumentedFunction) {
  for (const uint64_t id : {uint64_t{3}, ~uint64_t{0} - 5}) {
    const std::vector<float> values = Fill(Spec("normal", 0.3, 11), id, 9);
    for (size_t p = 0; p < values.size(); ++p) {
      double sum = 0;
      for (uint64_t w = 6 * p; w < 6 * p + 6; ++w) sum += Word(11, id, w) % 65536 + Word(11, id, w) / 65536;
      EXPECT_EQ(values[p], static_cast<float>((sum - 12 * 32767.5) / 65536 * static_cast<double>(0.3f)));
    }
  }
}

TEST(RowInit, MomentsAreThoseOfTheDistributions) {
  for (const std::string kind : {"uniform", "normal"}) {
    double sum = 0, squares = 0, fourth = 0;
    size_t n = 0;
    for (uint64_t id = 0; id < 4000; ++id)
      for (const float value : Fill(Spec(kind, 2.0), id, 16)) {
        const double v = value / 2.0;
        sum += v;
        squares += v * v;
        fourth += v * v * v * v;
        ++n;
      }
    const double variance = kind == "uniform" ? 1.0 / 3 : 1.0, kurtosis = kind == "uniform" ? 1.8 : 2.9;
    EXPECT_NEAR(sum / n, 0, 5 * std::sqrt(variance / n)) << kind;
    EXPECT_NEAR(squares / n, variance, variance * 0.03) << kind;
    EXPECT_NEAR(fourth / n / (squares / n) / (squares / n), kurtosis, 0.1) << kind;
  }
}

TEST(RowInit, SeedIdAndPositionAllMatterAndADimensionDoesNot) {
  const std::vector<float> row = Fill(Spec("normal", 1), 5, 8);
  EXPECT_NE(row, Fill(Spec("normal", 1), 6, 8));
  EXPECT_NE(row, Fill(Spec("normal", 1), 5 + (uint64_t{1} << 32), 8));
  EXPECT_NE(row, Fill(Spec("normal", 1, 8), 5, 8));
  EXPECT_NE(row[0], row[4]);
  const std::vector<float> longer = Fill(Spec("normal", 1), 5, 13);
  EXPECT_EQ(row, std::vector<float>(longer.begin(), longer.begin() + 8));
}

TEST(RowInit, DefaultsAndErrors) {
  for (const float v : Fill({}, 1, 5)) EXPECT_EQ(std::bit_cast<uint32_t>(v), 0u);
  EXPECT_EQ(Fill(Spec("uniform", 0), 1, 5), Fill(Spec("uniform", 0.01), 1, 5));
  const std::string kind(RowInit::Create(Spec("gaussian", 0)).status().message());
  EXPECT_NE(kind.find("table.initializer: no initializer \"gaussian\" (zero, uniform, normal)"), std::string::npos)
      << kind;
  for (const double bad : {-1.0, 1e-31, 1e30, std::nan("")}) {
    const auto init = RowInit::Create(Spec("normal", bad));
    EXPECT_EQ(init.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(init.status().message().find("table.init_scale"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::server
