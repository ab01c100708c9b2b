#include <gtest/gtest.h>

#include "rdma/verbs.h"

namespace sluice::rdma {
namespace {

// Wherever the tests run: with the library the devices can be listed (there may be none), without it the error helps.
TEST(LoadVerbs, ListsDevicesOrNamesThePackage) {
  auto verbs = LoadVerbs();
  if (!verbs.ok()) {
    EXPECT_EQ(verbs.status().code(), absl::StatusCode::kNotFound) << verbs.status();
    EXPECT_NE(verbs.status().message().find("libibverbs1"), std::string::npos) << verbs.status();
    return;
  }
  int count = -1;
  ibv_device** list = (*verbs)->GetDeviceList(&count);
  if (list == nullptr) {
    EXPECT_NE(errno, 0);  // a kernel without InfiniBand: ENOSYS
    return;
  }
  EXPECT_GE(count, 0);
  for (int i = 0; i < count; ++i) EXPECT_NE((*verbs)->GetDeviceName(list[i]), nullptr);
  (*verbs)->FreeDeviceList(list);
}

TEST(LoadVerbs, TwiceIsFine) { EXPECT_EQ(LoadVerbs().status().code(), LoadVerbs().status().code()); }

}  // namespace
}  // namespace sluice::rdma
