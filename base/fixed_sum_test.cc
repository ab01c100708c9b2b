#include "base/fixed_sum.h"

#include <cmath>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

// The documented tree, spelled out: strided lanes, then three folds, then blocks in order.
double Obvious(const std::vector<float>& values) {
  double total = 0;
  for (size_t block = 0; block * 4096 < values.size(); ++block) {
    std::vector<double> lane(16, 0.0);
    for (size_t j = 0; j < 4096 && block * 4096 + j < values.size(); ++j) {
      const double v = values[block * 4096 + j];
      lane[j % 16] += v * v;
    }
    std::vector<double> eight(8), four(4), two(2);
    for (int l = 0; l < 8; ++l) eight[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; ++l) four[l] = eight[l] + eight[l + 4];
    for (int l = 0; l < 2; ++l) two[l] = four[l] + four[l + 2];
    total += two[0] + two[1];
  }
  return total;
}

TEST(FixedSum, HasTheBitsOfTheDocumentedTreeAtEveryLength) {
  PhiloxRandom random(7);
  for (size_t n : {0, 1, 15, 16, 17, 31, 100, 4095, 4096, 4097, 4113, 8192, 10000}) {
    std::vector<float> values(n);
    for (float& v : values) v = (random.Uniform() - 0.5f) * std::ldexp(1.0f, static_cast<int>(random.Below(60)) - 30);
    EXPECT_EQ(SumOfSquares(values), Obvious(values)) << n;
  }
}

}  // namespace
}  // namespace sluice
