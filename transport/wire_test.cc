#include "transport/wire.h"

#include <cstring>
#include <string>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "transport/hello.h"
#include "transport/transport.h"

namespace sluice::transport {
namespace {

TEST(Placeholder, Builds) { EXPECT_EQ(kHeaderBytes, 128u); }

}  // namespace
}  // namespace sluice::transport
