#include "base/link_rate.h"

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(LinkRate, LoopbackAndAddressesOfOthersHaveNone) {
  EXPECT_EQ(LinkRateOf("127.0.0.1"), std::nullopt);
  EXPECT_EQ(LinkRateOf("192.0.2.1"), std::nullopt) << "set aside for documentation: nobody has it";
  EXPECT_EQ(LinkRateOf(""), std::nullopt);
}

}  // namespace
}  // namespace sluice
