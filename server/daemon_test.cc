// The server's process, in this one: ports, port file, control port, an orderly end.

#include "server/daemon.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/config.h"
#include "gtest/gtest.h"

namespace sluice::server {
namespace {

proto::Config TestConfig() {
  proto::Config config = DefaultConfig();
  config.mutable_node()->set_loops(2);
  config.mutable_node()->set_scheduler("127.0.0.1:1");   // nobody there
  config.mutable_node()->set_id("s");
  return config;
}

// Sends bytes to a port and waits until the peer hangs up.
void Hurl(int port, const std::string& bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  (void)!write(fd, bytes.data(), bytes.size());
  shutdown(fd, SHUT_WR);
  char buffer[4096];
  while (read(fd, buffer, sizeof(buffer)) > 0) {
  }
  close(fd);
}

class DaemonTest : public ::testing::Test {
 protected:
  // Before the first thread: a signal that a thread does not block would end the test.
  static void SetUpTestSuite() {
    auto created = Signals::Create();
    ASSERT_TRUE(created.ok()) << created.status();
    signals_ = created->release();
  }
  static void TearDownTestSuite() { delete signals_; }
  static Signals* signals_;
};
Signals* DaemonTest::signals_ = nullptr;

TEST_F(DaemonTest, WritesItsPortsAndEndsInOrderOnASignal) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/ports");
  std::remove(path.c_str());
  proto::Config config = TestConfig();
  config.mutable_node()->set_port_file(path);
  auto daemon = Daemon::Create(config);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  std::ifstream in(path);
  int control = 0, first = 0, second = 0;
  in >> control >> first >> second;
  EXPECT_EQ(control, (*daemon)->control_port());
  EXPECT_EQ(first, static_cast<int>((*daemon)->lane(0).address().port));
  EXPECT_EQ(second, static_cast<int>((*daemon)->lane(1).address().port));
  EXPECT_EQ(kill(getpid(), SIGTERM), 0);   // waits in the descriptor until Run watches it
  EXPECT_TRUE((*daemon)->Run(signals_).ok());
}

TEST_F(DaemonTest, GarbageOnEveryPortLeavesItRunning) {
  auto daemon = Daemon::Create(TestConfig());
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  absl::Status outcome = absl::UnknownError("runs");
  std::thread thread([&] { outcome = (*daemon)->Run(signals_); });
  std::string noise(20000, '\0');
  for (size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<char>(i * 2654435761u >> 13);
  std::vector<std::string> garbage = {noise, "GET / HTTP/1.1\r\n\r\n", std::string(128, '\0'),
                                      "SLC1" + std::string(300, '\x7F'), "SLC", ""};
  for (const int port : {(*daemon)->control_port(), static_cast<int>((*daemon)->lane(0).address().port),
                         static_cast<int>((*daemon)->lane(1).address().port)}) {
    for (const std::string& bytes : garbage) Hurl(port, bytes);
  }
  // It still answers, and knows no plan.
  const auto plan =
      control::FetchPlan(absl::StrCat("127.0.0.1:", (*daemon)->control_port()), 1, 0, 10 * kSecond);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kNotFound) << plan.status();
  EXPECT_EQ(kill(getpid(), SIGTERM), 0);
  thread.join();
  EXPECT_TRUE(outcome.ok()) << outcome;
}

TEST_F(DaemonTest, PortsInUseAreNamed) {
  auto first = Daemon::Create(TestConfig());
  ASSERT_TRUE(first.ok()) << first.status();
  proto::Config config = TestConfig();
  config.mutable_node()->set_data_port((*first)->lane(0).address().port);
  auto second = Daemon::Create(config);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists) << second.status();
  EXPECT_NE(second.status().message().find("node.data_port"), std::string::npos) << second.status();
  config = TestConfig();
  config.mutable_node()->set_port(static_cast<uint32_t>((*first)->control_port()));
  second = Daemon::Create(config);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find("Address already in use"), std::string::npos) << second.status();
}

TEST_F(DaemonTest, NoSchedulerIsAnErrorThatSaysWhatToCheck) {
  proto::Config config = TestConfig();
  config.mutable_node()->set_connect_timeout_ms(1);
  auto daemon = Daemon::Create(config);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const absl::Status status = (*daemon)->Run(nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_NE(status.message().find("127.0.0.1:1"), std::string::npos) << status;
}

}  // namespace
}  // namespace sluice::server
