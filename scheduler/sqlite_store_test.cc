#include "scheduler/sqlite_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::scheduler {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class SqliteStoreTest : public testing::Test {
 protected:
  SqliteStoreTest() {
    std::string name = testing::TempDir() + "/sluice-state-XXXXXX";
    directory_ = mkdtemp(name.data());
    path_ = directory_ + "/state.db";
  }
  ~SqliteStoreTest() override {
    for (const char* suffix : {"", "-wal", "-shm"}) std::remove((path_ + suffix).c_str());
    rmdir(directory_.c_str());
  }
  std::string directory_, path_;
};

TEST_F(SqliteStoreTest, KeepsWhatWasWritten) {
  {
    auto store = SqliteStore::Open(path_);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE((*store)->Write({{"a", "1"}, {"b", std::string("\0x", 2)}, {"c", "3"}}).ok());
    EXPECT_TRUE((*store)->Write({{"a", "2"}, {"c", ""}, {"never", ""}}).ok());
  }
  auto store = SqliteStore::Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_THAT(*(*store)->ReadAll(), UnorderedElementsAre(Pair("a", "2"), Pair("b", std::string("\0x", 2))));
}

TEST_F(SqliteStoreTest, AWriteIsThereWithoutAnOrderlyEnd) {
  const pid_t child = fork();
  if (child == 0) {
    auto store = SqliteStore::Open(path_);
    _exit(store.ok() && (*store)->Write({{"k", "v"}}).ok() ? 0 : 1);  // no destructor
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  auto store = SqliteStore::Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_THAT(*(*store)->ReadAll(), UnorderedElementsAre(Pair("k", "v")));
}

TEST_F(SqliteStoreTest, RefusesWhatIsNotAStateFile) {
  std::ofstream(path_) << std::string(5000, 'x');
  auto store = SqliteStore::Open(path_);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(store.status().ToString(), HasSubstr(path_));
}

TEST_F(SqliteStoreTest, RefusesADamagedFile) {
  {
    auto store = SqliteStore::Open(path_);
    ASSERT_TRUE(store.ok());
    for (int i = 0; i < 200; ++i) ASSERT_TRUE((*store)->Write({{std::to_string(i), std::string(1000, 'v')}}).ok());
  }
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  for (long at = 4096; at < info.st_size; at += 512) file.seekp(at).write("damage", 6);
  file.close();
  auto store = SqliteStore::Open(path_);
  const absl::Status status = store.ok() ? (*store)->ReadAll().status() : store.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(status.ToString(), HasSubstr(path_));
}

TEST_F(SqliteStoreTest, NamesAMissingDirectory) {
  auto store = SqliteStore::Open(directory_ + "/no/state.db");
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(store.status().ToString(), HasSubstr("directory"));
}

TEST_F(SqliteStoreTest, AFolderThatMayNotBeWrittenIsTheReasonThatIsGiven) {
  std::filesystem::create_directories(directory_);
  std::filesystem::permissions(directory_, std::filesystem::perms(0555));
  const uid_t before = geteuid();
  if (before == 0) {
    ASSERT_EQ(seteuid(65534), 0);  // root may write everywhere
  }
  const absl::Status status = SqliteStore::Open(directory_ + "/fresh.db").status();
  if (before == 0) {
    ASSERT_EQ(seteuid(before), 0);
  }
  std::filesystem::permissions(directory_, std::filesystem::perms(0755));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), HasSubstr("Permission denied"));
  EXPECT_THAT(status.ToString(), HasSubstr(directory_));
}

TEST_F(SqliteStoreTest, AFullDiskWritesNothingAndIsNotForEver) {
  auto store = SqliteStore::Open(path_);
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE((*store)->Write({{"a", "1"}}).ok());
  // A limit on the file's size stands for the full disk (EFBIG for ENOSPC).
  signal(SIGXFSZ, SIG_IGN);
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 64 << 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = (*store)->Write({{"a", "2"}, {"b", std::string(1 << 20, 'b')}});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.ToString(), HasSubstr(path_));
  EXPECT_THAT(*(*store)->ReadAll(), UnorderedElementsAre(Pair("a", "1")));
  EXPECT_TRUE((*store)->Write({{"a", "3"}}).ok());
  EXPECT_THAT(*(*store)->ReadAll(), UnorderedElementsAre(Pair("a", "3")));
}

}  // namespace
}  // namespace sluice::scheduler
