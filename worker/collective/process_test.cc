// Collectives over TCP and shared memory, between processes of their own.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "worker/collective/testing/process_node.h"

namespace sluice::collective {
namespace {

constexpr uint32_t kWorkers = 4;

struct Fixed {   // an address, in a pipe
  char host[64] = {}, unix_socket[128] = {}, host_id[128] = {};
  uint32_t port = 0;
};

bool WriteAll(int fd, const void* data, size_t bytes) { return write(fd, data, bytes) == static_cast<ssize_t>(bytes); }
bool ReadAll(int fd, void* data, size_t bytes) {
  for (size_t at = 0; at < bytes;) {
    const ssize_t n = read(fd, static_cast<char*>(data) + at, bytes - at);
    if (n <= 0) return false;
    at += static_cast<size_t>(n);
  }
  return true;
}

// What one worker does; its exit code. Up: what it says; down: what it is told.
int Worker(uint32_t rank, transport::TransportChoice choice, bool survives, int up, int down) {
  auto node = ProcessNode::Start(rank, choice);
  if (!node.ok()) return 10;
  const transport::Address own = (*node)->address();
  Fixed fixed;
  std::snprintf(fixed.host, sizeof(fixed.host), "%s", own.host.c_str());
  std::snprintf(fixed.unix_socket, sizeof(fixed.unix_socket), "%s", own.unix_socket.c_str());
  std::snprintf(fixed.host_id, sizeof(fixed.host_id), "%s", own.host_id.c_str());
  fixed.port = own.port;
  std::vector<Fixed> all(kWorkers);
  if (!WriteAll(up, &fixed, sizeof(fixed)) || !ReadAll(down, all.data(), all.size() * sizeof(Fixed))) return 11;
  std::vector<transport::Address> addresses;
  for (const Fixed& f : all) addresses.push_back({.host = f.host, .port = f.port, .unix_socket = f.unix_socket, .host_id = f.host_id});
  proto::Plan plan = PlanOf(addresses);
  (*node)->SetPlan(plan);
  for (const size_t elements : {size_t{1}, size_t{1000}, size_t{3000000}})
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kDoubleTree}) {
      std::vector<float> in(elements, static_cast<float>(1 << rank)), out(elements);
      if (!(*node)->Call({.input = in, .output = out, .algorithm = algorithm}).get().ok()) return 12;
      for (const float value : out)
        if (value != (1 << kWorkers) - 1) return 13;
    }
  if (survives) return (*node)->Call({.kind = Kind::kBarrier}).get().ok() ? 0 : 14;
  // Rank 2 does not come to the next call: it is killed.
  if (rank == 2) {
    WriteAll(up, "k", 1);
    pause();
  }
  std::vector<float> in(3000000), out(3000000);
  std::future<absl::Status> torn = (*node)->Call({.input = in, .output = out, .algorithm = Algorithm::kRing});
  char word = 0;
  if (!ReadAll(down, &word, 1)) return 15;   // the scheduler's word of the loss
  plan.mutable_workers(2)->set_alive(false);
  plan.set_version(2);
  (*node)->SetPlan(plan);
  const absl::Status status = torn.get();
  return absl::IsUnavailable(status) && absl::StrContains(status.message(), "rank 2 (process 2) was lost") ? 0 : 16;
}

void RunWorkers(transport::TransportChoice choice, bool survive) {
  int up[kWorkers][2], down[kWorkers][2];
  pid_t children[kWorkers];
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    ASSERT_EQ(pipe(up[rank]), 0);
    ASSERT_EQ(pipe(down[rank]), 0);
    children[rank] = fork();
    ASSERT_GE(children[rank], 0);
    if (children[rank] == 0) _exit(Worker(rank, choice, survive, up[rank][1], down[rank][0]));
  }
  std::vector<Fixed> all(kWorkers);
  for (uint32_t rank = 0; rank < kWorkers; ++rank) ASSERT_TRUE(ReadAll(up[rank][0], &all[rank], sizeof(Fixed)));
  for (uint32_t rank = 0; rank < kWorkers; ++rank) ASSERT_TRUE(WriteAll(down[rank][1], all.data(), all.size() * sizeof(Fixed)));
  if (!survive) {
    char word = 0;
    ASSERT_TRUE(ReadAll(up[2][0], &word, 1));
    kill(children[2], SIGKILL);
    for (uint32_t rank = 0; rank < kWorkers; ++rank)
      ASSERT_TRUE(rank == 2 || WriteAll(down[rank][1], "l", 1));
  }
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
    if (!survive && rank == 2) continue;
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "rank " << rank;
    close(up[rank][0]), close(up[rank][1]), close(down[rank][0]), close(down[rank][1]);
  }
}

TEST(CollectiveProcesses, AllReduceOverTcp) { RunWorkers(transport::TransportChoice::kTcp, true); }
TEST(CollectiveProcesses, AllReduceOverSharedMemory) { RunWorkers(transport::TransportChoice::kAuto, true); }
TEST(CollectiveProcesses, AKilledWorkerFailsTheOthersInWords) {
  RunWorkers(transport::TransportChoice::kTcp, false);
  RunWorkers(transport::TransportChoice::kAuto, false);
}

}  // namespace
}  // namespace sluice::collective
