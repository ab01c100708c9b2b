// Host names, signals and the processor check.
#include <signal.h>
#include <unistd.h>

#include "base/cpu_check.h"
#include "base/host.h"
#include "base/signals.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(Host, AdvertisesWhatOthersCanReach) {
  proto::NodeConfig node;
  EXPECT_EQ(AdvertisedHost(node), "127.0.0.1");
  node.set_listen("10.1.2.3");
  EXPECT_EQ(AdvertisedHost(node), "10.1.2.3");
  node.set_listen("0.0.0.0");
  EXPECT_EQ(AdvertisedHost(node), HostName());
  node.set_advertise("gpu7.example");
  EXPECT_EQ(AdvertisedHost(node), "gpu7.example");
}

TEST(Signals, ComeOutOfTheDescriptor) {
  auto signals = Signals::Create();
  ASSERT_TRUE(signals.ok()) << signals.status();
  EXPECT_EQ((*signals)->Next(), std::nullopt);
  kill(getpid(), SIGTERM);
  EXPECT_EQ((*signals)->Wait(), SIGTERM);
  kill(getpid(), SIGUSR1);
  EXPECT_EQ((*signals)->Next(), SIGUSR1);
  EXPECT_EQ((*signals)->Next(), std::nullopt);
}

TEST(CpuCheck, NamesWhatIsMissing) {
  EXPECT_TRUE(MissingCpuFeatures({}).ok());
  EXPECT_THAT(std::string(MissingCpuFeatures({"AVX2", "F16C"}).message()), HasSubstr("lacks AVX2, F16C"));
  EXPECT_TRUE(CheckCpu().ok());  // this test itself is built for x86-64-v3
}

}  // namespace
}  // namespace sluice
