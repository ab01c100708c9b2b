#include "worker/snapshot_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

std::vector<std::byte> Bytes(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

class SnapshotFileTest : public testing::Test {
 protected:
  SnapshotFileTest()
      : directory_(testing::TempDir() + "/snapshots/" + testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(directory_);
  }
  SnapshotFile Open() {
    absl::StatusOr<SnapshotFile> file = SnapshotFile::Open(directory_, "job-rank0");
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  static std::optional<SnapshotFile::Content> Read(const SnapshotFile& file) {
    auto content = file.ReadNewest();
    EXPECT_TRUE(content.ok()) << content.status();
    return *std::move(content);
  }
  std::string directory_;
};

TEST_F(SnapshotFileTest, EmptyAtFirst) { EXPECT_FALSE(Read(Open()).has_value()); }

TEST_F(SnapshotFileTest, NewestOfManyIsFoundByTheNextLife) {
  for (int i = 1; i <= 5; ++i) {
    SnapshotFile file = Open();
    // Shorter and longer ones: what an older one leaves behind the end must not matter.
    const std::string core = "core" + std::string(static_cast<size_t>(50 / i), 'x'), user = "user" + std::to_string(i);
    ASSERT_TRUE(file.Write(Bytes(core), Bytes(user)).ok());
    const auto content = Read(Open());
    ASSERT_TRUE(content.has_value());
    EXPECT_EQ(content->core, Bytes(core));
    EXPECT_EQ(content->user, Bytes(user));
  }
}

// A kill in the middle of a write leaves any prefix of it over the older file; the newer one must be found whichever
// byte was the last.
TEST_F(SnapshotFileTest, TornWriteLeavesThePreviousOne) {
  {
    SnapshotFile file = Open();
    ASSERT_TRUE(file.Write(Bytes("first"), Bytes("one")).ok());   // file 1
    ASSERT_TRUE(file.Write(Bytes("second"), Bytes("two")).ok());  // file 0
  }
  const std::string torn = directory_ + "/job-rank0.1";
  std::filesystem::copy_file(torn, torn + ".before");
  std::string third;
  {
    SnapshotFile file = Open();
    ASSERT_TRUE(file.Write(Bytes("third!"), Bytes("three")).ok());  // over file 1
    std::ifstream in(torn, std::ios::binary);
    third.assign(std::istreambuf_iterator<char>(in), {});
  }
  ASSERT_GT(third.size(), 56u);
  for (size_t written = 1; written < third.size(); ++written) {
    std::filesystem::copy_file(torn + ".before", torn, std::filesystem::copy_options::overwrite_existing);
    {
      std::fstream out(torn, std::ios::binary | std::ios::in | std::ios::out);
      out.write(third.data(), static_cast<std::streamsize>(written));
    }
    const auto content = Read(Open());
    ASSERT_TRUE(content.has_value());
    EXPECT_EQ(content->user, Bytes("two")) << written;
    EXPECT_EQ(content->core, Bytes("second")) << written;
  }
}

TEST_F(SnapshotFileTest, TwoDamagedFilesAreAnErrorAndNotNoSnapshot) {
  {
    SnapshotFile file = Open();
    ASSERT_TRUE(file.Write(Bytes("a"), Bytes("one")).ok());
    std::filesystem::resize_file(directory_ + "/job-rank0.1", 30);
    EXPECT_FALSE(Read(Open()).has_value());   // torn in the first write of all
    ASSERT_TRUE(file.Write(Bytes("b"), Bytes("two")).ok());
    EXPECT_TRUE(Read(Open()).has_value());
  }
  std::filesystem::resize_file(directory_ + "/job-rank0.0", 30);
  const auto content = Open().ReadNewest();
  EXPECT_EQ(content.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(content.status().message().find(directory_ + "/job-rank0"), std::string_view::npos) << content.status();
}

TEST_F(SnapshotFileTest, WriteGoesOverTheTornOne) {
  {
    SnapshotFile file = Open();
    ASSERT_TRUE(file.Write(Bytes("a"), Bytes("one")).ok());
    ASSERT_TRUE(file.Write(Bytes("b"), Bytes("two")).ok());
  }
  std::filesystem::resize_file(directory_ + "/job-rank0.1", 10);
  SnapshotFile file = Open();
  ASSERT_TRUE(file.Write(Bytes("c"), Bytes("three")).ok());
  std::filesystem::resize_file(directory_ + "/job-rank0.1", 10);
  EXPECT_EQ(Read(Open())->user, Bytes("two"));
}

TEST_F(SnapshotFileTest, UnusableDirectoryIsNamed) {
  std::filesystem::create_directories(directory_);
  std::ofstream(directory_ + "/file") << "x";
  const auto file = SnapshotFile::Open(directory_ + "/file", "job");
  ASSERT_FALSE(file.ok());
  EXPECT_NE(std::string(file.status().message()).find(directory_ + "/file"), std::string::npos) << file.status();
}

}  // namespace
}  // namespace sluice::worker
