#include "third_party/cuda/probe.h"

#include "gtest/gtest.h"

namespace sluice::cuda {
namespace {

// Must hold on every machine: with a GPU, with a driver but no GPU, with nvcc only, and without any of it.
TEST(Probe, CountsDevicesOrSaysWhyThereAreNone) {
  const Probe probe = ProbeDevices();
  RecordProperty("devices", probe.devices);
  EXPECT_GE(probe.devices, 0);
  EXPECT_EQ(probe.devices == 0, !probe.why_none.empty()) << probe.why_none;
  if (!probe.built) {
    EXPECT_EQ(probe.devices, 0);
  }
}

}  // namespace
}  // namespace sluice::cuda
