// What is particular to TCP; what every transport must do is in transport/conformance.
#include "transport/tcp/tcp_endpoint.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "transport/conformance/recorder.h"
#include "transport/tcp/payload_hash.h"
#include "transport/tcp/socket.h"

namespace sluice::transport {
namespace {

using conformance::Recorder;

class TcpEndpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loop = Loop::Create();
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
    hello_.role = PeerRole::kWorker;
    hello_.name = "tester";
  }

  std::unique_ptr<TcpEndpoint> Make(TcpOptions options, Recorder* recorder) {
    options.self.role = PeerRole::kServer;
    auto endpoint = TcpEndpoint::Create(loop_.get(), &clock_, options);
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    if (!endpoint.ok()) return nullptr;
    (*endpoint)->SetHandler(recorder);
    return *std::move(endpoint);
  }

  // Runs the loop until done() holds; gives up after a long while.
  bool RunUntil(const std::function<bool()>& done) {
    bool reached = false;
    int left = 60000;
    std::function<void()> poll = [&] {
      reached = done();
      if (reached || --left == 0) {
        loop_->Stop();
      } else {
        loop_->After(kMillisecond, poll);
      }
    };
    poll();
    loop_->Run();
    return reached;
  }

  const SteadyClock clock_;
  std::unique_ptr<Loop> loop_;
  Hello hello_;
};

TEST_F(TcpEndpointTest, APortInUseIsAnErrorThatNamesIt) {
  Recorder a;
  TcpOptions options;
  const auto first = Make(options, &a);
  options.port = first->port();
  const auto second = TcpEndpoint::Create(loop_.get(), &clock_, options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find(std::to_string(first->port())), absl::string_view::npos) << second.status();
}

TEST_F(TcpEndpointTest, AnAddressOfAnotherMachineCannotBeListenedOn) {
  TcpOptions options;
  options.bind_host = "192.0.2.1";  // TEST-NET-1: nobody's
  EXPECT_EQ(TcpEndpoint::Create(loop_.get(), &clock_, options).status().code(), absl::StatusCode::kInvalidArgument);
  options.bind_host = "127.0.0.1";
  options.port = 70000;
  EXPECT_EQ(TcpEndpoint::Create(loop_.get(), &clock_, options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TcpEndpointTest, TheSamePortIsFreeAgainAtOnce) {
  Recorder a, b;
  TcpOptions options;
  auto server = Make(options, &a);
  options.port = server->port();
  TcpOptions client_options;
  client_options.listen = false;
  auto client = Make(client_options, &b);
  EXPECT_EQ(client->port(), 0u);
  const LinkId link = client->Connect({.host = "127.0.0.1", .port = options.port}, hello_);
  ASSERT_TRUE(RunUntil([&] { return b.up.contains(link); }));
  server.reset();  // its side of the connection stays in TIME_WAIT or FIN_WAIT
  server = Make(options, &a);
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(server->port(), options.port);
}

TEST_F(TcpEndpointTest, APeerIsRefusedByItsHelloAndToldWhy) {
  Recorder a, b;
  std::string refused;
  TcpOptions options;
  options.admit = [](const Hello& peer) {
    return peer.job == 1 ? absl::OkStatus() : absl::PermissionDeniedError("this server is of job 1");
  };
  options.refused = [&](const absl::Status& status) { refused = std::string(status.message()); };
  const auto server = Make(options, &a);
  const auto client = Make({}, &b);
  hello_.job = 2;
  const LinkId link = client->Connect({.host = "127.0.0.1", .port = server->port()}, hello_);
  ASSERT_TRUE(RunUntil([&] { return b.down.contains(link); }));
  EXPECT_EQ(b.down.at(link).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(b.down.at(link).message().find("this server is of job 1"), absl::string_view::npos);
  EXPECT_TRUE(a.up.empty());
  EXPECT_NE(refused.find("connection from 127.0.0.1:"), std::string::npos) << refused;
}

TEST_F(TcpEndpointTest, NamesAreResolvedAndBadOnesExplained) {
  Recorder a, b;
  const auto server = Make({}, &a);
  const auto client = Make({}, &b);
  const LinkId good = client->Connect({.host = "localhost", .port = server->port()}, hello_);
  const LinkId bad = client->Connect({.host = "no-such-host.invalid", .port = 1}, hello_);
  const LinkId none = client->Connect({}, hello_);
  ASSERT_TRUE(RunUntil([&] { return b.up.contains(good) && b.down.contains(bad) && b.down.contains(none); }));
  EXPECT_NE(b.down.at(bad).message().find("no-such-host.invalid"), absl::string_view::npos) << b.down.at(bad);
  EXPECT_EQ(b.down.at(none).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TcpEndpointTest, DestroyedWhileResolvingAndConnecting) {
  Recorder a;
  {
    const auto client = Make({}, &a);
    client->Connect({.host = "localhost", .port = 1}, hello_);
    client->Connect({.host = "127.0.0.1", .port = 1}, hello_);
  }
  int turns = 0;
  RunUntil([&] { return ++turns > 20; });
  EXPECT_TRUE(a.down.empty());
  EXPECT_TRUE(a.up.empty());
}

TEST_F(TcpEndpointTest, APayloadThatWasTakenBackIsSentAsItWasAndNotReadAgain) {
  Recorder a, b;
  const auto server = Make({}, &a);
  const auto client = Make({}, &b);
  const LinkId link = client->Connect({.host = "127.0.0.1", .port = server->port()}, hello_);
  ASSERT_TRUE(RunUntil([&] { return b.up.contains(link) && !a.up.empty(); }));
  const LinkId peer = a.up.begin()->first;
  // More than is written in a few turns: the first is cut, the second has not begun.
  std::vector<std::byte> target(64 << 20), payload(32 << 20, std::byte{7});
  FrameHeader header;
  header.type = FrameType::kPush;
  header.slot = server->OpenSlot(peer, target);
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.total_bytes = target.size();
  client->Send(link, header, payload, 1);
  header.stripe_offset = payload.size();
  client->Send(link, header, payload, 2);
  int turns = 0;
  RunUntil([&] { return ++turns > 2; });
  client->TakeBack(link, 1);
  client->TakeBack(link, 2);
  client->TakeBack(link, 3);   // unknown
  std::fill(payload.begin(), payload.end(), std::byte{9});
  ASSERT_TRUE(RunUntil([&] { return a.frames.size() == 2; }));
  EXPECT_TRUE(std::all_of(target.begin(), target.end(), [](std::byte byte) { return byte == std::byte{7}; }));
  EXPECT_TRUE(b.sent.empty());
}

TEST_F(TcpEndpointTest, AConnectThatNobodyAcceptsEndsInTimeAndSaysSo) {
  Recorder a;
  // A listener of ours that never says WELCOME.
  auto mute = ListenOn(LookUp("127.0.0.1", 0, /*numeric_only=*/true)->front(), true);
  ASSERT_TRUE(mute.ok());
  const uint32_t port = PortOf(LocalAddress(mute->get()));
  TcpOptions options;
  options.connect_timeout = 50 * kMillisecond;
  const auto client = Make(options, &a);
  const LinkId link = client->Connect({.host = "127.0.0.1", .port = port}, hello_);
  ASSERT_TRUE(RunUntil([&] { return a.down.contains(link); }));
  EXPECT_EQ(a.down.at(link).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(a.down.at(link).message().find("no WELCOME within 50ms"), absl::string_view::npos) << a.down.at(link);
}

TEST_F(TcpEndpointTest, FramesSentBeforeTheLinkIsUpArriveBehindTheHello) {
  Recorder a, b;
  const auto server = Make({}, &a);
  const auto client = Make({}, &b);
  const LinkId link = client->Connect({.host = "127.0.0.1", .port = server->port()}, hello_);
  FrameHeader header;
  header.type = FrameType::kPull;
  header.round = 3;
  client->Send(link, header, {}, 0);
  ASSERT_TRUE(RunUntil([&] { return !a.frames.empty(); }));
  EXPECT_EQ(a.frames[0].header.round, 3u);
}

TEST_F(TcpEndpointTest, IdleLinksLiveOnByPings) {
  Recorder a, b;
  TcpOptions options;
  options.ping_every = 10 * kMillisecond;
  options.ping_timeout = 20 * kSecond;
  const auto server = Make(options, &a);
  const auto client = Make(options, &b);
  const LinkId link = client->Connect({.host = "127.0.0.1", .port = server->port()}, hello_);
  ASSERT_TRUE(RunUntil([&] { return b.up.contains(link); }));
  EXPECT_GT(client->Stats(link).rtt_s, 0);   // the kernel's: HELLO and WELCOME went over it
  EXPECT_LT(client->Stats(link).rtt_s, 10);
  EXPECT_GT(client->Stats(link).delivery_rate, 0);
  const uint64_t before = client->Stats(link).frames_in;
  ASSERT_TRUE(RunUntil([&] { return client->Stats(link).frames_in >= before + 3; }));
  EXPECT_TRUE(b.frames.empty());
  EXPECT_TRUE(b.down.empty());
}

TEST(PayloadHashTest, IsTheHashOfTheWireFormatWhateverThePieces) {
  std::vector<std::byte> bytes(300001);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i >> 3);
  for (const size_t size : {0, 1, 16, 17, 128, 129, 240, 241, 1024, 300001}) {
    const ConstBytes all = ConstBytes(bytes).first(size);
    EXPECT_EQ(HashPayload(all), HashBytes(all)) << size;
    PayloadHasher hasher;
    hasher.Update(all.first(size / 3));
    hasher.Update(all.subspan(size / 3));
    EXPECT_EQ(hasher.Digest(), HashBytes(all)) << size;
  }
}

}  // namespace
}  // namespace sluice::transport
