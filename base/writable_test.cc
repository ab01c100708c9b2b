#include "base/writable.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class WritableTest : public testing::Test {
 protected:
  WritableTest() : folder_(testing::TempDir() + "/writable_test") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ + "/file") << "x";
  }
  static std::string Refused(const std::string& path, HowWritten how = HowWritten::kReplaced) {
    const absl::Status status = CheckWritable("--result", path, how);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << path;
    return std::string(status.message());
  }
  const std::string folder_;
};

TEST_F(WritableTest, WhatCanBeWrittenPassesAndIsNotTouched) {
  for (const HowWritten how : {HowWritten::kReplaced, HowWritten::kInPlace}) {
    EXPECT_TRUE(CheckWritable("--result", "", how).ok());
    EXPECT_TRUE(CheckWritable("--result", folder_ + "/new", how).ok());
    EXPECT_TRUE(CheckWritable("--result", folder_ + "/file", how).ok());
  }
  EXPECT_TRUE(CheckWritable("--progress", "/dev/null", HowWritten::kInPlace).ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/new"));
  EXPECT_EQ(std::filesystem::file_size(folder_ + "/file"), 1u);
}

TEST_F(WritableTest, AFolderThatIsMissingIsNamedWithFlagAndReason) {
  EXPECT_THAT(Refused(folder_ + "/none/r.json"),
              AllOf(HasSubstr("--result=" + folder_ + "/none/r.json"), HasSubstr("folder " + folder_ + "/none"),
                    HasSubstr("No such file or directory")));
  EXPECT_THAT(Refused(folder_ + "/file/r.json"), HasSubstr("Not a directory"));
  EXPECT_THAT(Refused(folder_), HasSubstr("Is a directory"));
}

TEST_F(WritableTest, AFolderThatMayNotBeWrittenIsNamed) {
  chmod(folder_.c_str(), 0555);
  chmod((folder_ + "/file").c_str(), 0444);
  const uid_t before = geteuid();
  if (before == 0) {
    ASSERT_EQ(seteuid(65534), 0);  // root may write everywhere
  }
  EXPECT_THAT(Refused(folder_ + "/new"), HasSubstr("Permission denied"));
  EXPECT_THAT(Refused(folder_ + "/file", HowWritten::kInPlace), HasSubstr("Permission denied"));
  if (before == 0) {
    ASSERT_EQ(seteuid(before), 0);
  }
  chmod(folder_.c_str(), 0755);
}

}  // namespace
}  // namespace sluice
