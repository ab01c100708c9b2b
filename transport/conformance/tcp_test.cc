#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "transport/conformance/loop_environment.h"
#include "transport/conformance/suite.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_endpoint.h"

namespace sluice::transport::conformance {
namespace {

absl::StatusOr<Node> MakeNode(Loop* loop, const Clock* clock, const Hello& self, EndpointLimits limits, bool hash,
                              TimeNs impatience) {
  TcpOptions options;
  options.self = self;
  options.limits = limits;
  options.hash = hash;
  if (impatience > 0) {
    options.handshake_timeout = impatience;
    options.ping_every = impatience / 2;
    options.ping_timeout = 2 * impatience;
  }
  auto endpoint = TcpEndpoint::Create(loop, clock, options);
  if (!endpoint.ok()) return endpoint.status();
  Node node;
  node.address.host = "127.0.0.1";
  node.address.port = (*endpoint)->port();
  node.other = node.address;
  node.other.host = "localhost";  // by way of the resolver
  node.endpoint = *std::move(endpoint);
  return node;
}

class RawSocket final : public RawPeer {
 public:
  explicit RawSocket(const Address& to) {
    auto fd = ConnectTo(LookUp(to.host, to.port, /*numeric_only=*/true)->front());
    EXPECT_TRUE(fd.ok()) << fd.status();
    if (fd.ok()) fd_ = *std::move(fd);
    pollfd waiting{fd_.get(), POLLOUT, 0};
    poll(&waiting, 1, -1);
  }

  void Write(ConstBytes bytes) override {
    // What does not fit is what the node has stopped to read.
    const ssize_t put = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    EXPECT_TRUE(put >= 0 || errno == EPIPE || errno == ECONNRESET) << errno;
  }
  std::vector<std::byte> Read() override {
    std::vector<std::byte> all(1 << 16);
    const ssize_t got = recv(fd_.get(), all.data(), all.size(), MSG_DONTWAIT);
    closed_ |= got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
    all.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return all;
  }
  bool Closed() override { return closed_; }

 private:
  UniqueFd fd_;
  bool closed_ = false;
};

Transport Make(const std::string& name, bool hash, TimeNs impatience = 0) {
  return {name, [=] {
            return MakeLoopEnvironment(
                [=](Loop* loop, const Clock* clock, const Hello& self, EndpointLimits limits) {
                  return MakeNode(loop, clock, self, limits, hash, impatience);
                },
                [](const Address& to) { return std::make_unique<RawSocket>(to); });
          }};
}

INSTANTIATE_TEST_SUITE_P(Tcp, ConformanceTest, ::testing::Values(Make("Hashed", true), Make("Unhashed", false)),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Tcp, ByteStreamTest, ::testing::Values(Make("Hashed", true)),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Tcp, ImpatientByteStreamTest, ::testing::Values(Make("Hashed", true, 100 * kMillisecond)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sluice::transport::conformance
