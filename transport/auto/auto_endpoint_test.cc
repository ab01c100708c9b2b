#include "transport/auto/auto_endpoint.h"

#include "transport/auto/host_id.h"
#include "transport/shm/testing.h"

namespace sluice::transport {
namespace {

using testing::Pattern;
using testing::PushHeader;
using testing::Recorder;
using testing::RunUntil;

const Hello kServer{.role = PeerRole::kServer, .index = 1, .name = "server"};
const Hello kWorker{.role = PeerRole::kWorker, .index = 2, .name = "worker"};

class AutoEndpointTest : public ::testing::Test {
 protected:
  std::unique_ptr<AutoEndpoint> Make(Recorder* handler, TransportChoice choice = TransportChoice::kAuto,
                                     absl::StatusCode shm_refuses = absl::StatusCode::kOk) {
    AutoOptions options = MakeAutoOptions(kServer, {});
    options.choice = choice;
    options.log = [this](const std::string& text) { log_.push_back(text); };
    if (shm_refuses != absl::StatusCode::kOk) {
      options.shm.admit = [shm_refuses](const Hello&) { return absl::Status(shm_refuses, "not over shared memory"); };
    }
    auto endpoint = AutoEndpoint::Create(loop_.get(), &clock_, std::move(options));
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    (*endpoint)->SetHandler(handler);
    return *std::move(endpoint);
  }
  bool Run(std::function<bool()> done) { return RunUntil(*loop_, std::move(done)); }

  std::unique_ptr<Loop> loop_ = *Loop::Create();
  SteadyClock clock_;
  Recorder handler_a_, handler_b_;
  std::vector<std::string> log_;
};

TEST(HostIdTest, IsStableAndNamesTheNetworkNamespaceAndUser) {
  const std::string id = HostId();
  EXPECT_EQ(id, HostId());
  EXPECT_NE(id.find("/net:"), std::string::npos) << id;
  EXPECT_NE(id.find("/uid:"), std::string::npos) << id;
}

TEST_F(AutoEndpointTest, SharedMemoryIsTakenOnOneHost) {
  auto b = Make(&handler_b_), a = Make(&handler_a_);
  const Address address = b->local_address();
  EXPECT_FALSE(address.unix_socket.empty());
  EXPECT_NE(address.port, 0);
  const LinkId link = a->Connect(address, kWorker);
  a->Send(link, PushHeader(10, 1), Pattern(10, 1), 0);  // before it is up
  ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == 1 && handler_a_.up.size() == 1; }));
  EXPECT_EQ(handler_b_.frames[0].bytes, Pattern(10, 1));
  EXPECT_EQ(a->Stats(link).kind, "shm");
  ASSERT_EQ(a->Rows(link).size(), 1u);
  EXPECT_EQ(a->Rows(link)[0].kind, "shm");
  EXPECT_EQ(a->Totals().rails.count({"tcp", "base"}), 0u);
  auto memory = *a->Allocate(8192);
  EXPECT_TRUE(a->ByReference(link, {memory.get(), 8192}));
  a->Send(link, PushHeader(8192, 2), {memory.get(), 8192}, 4);
  ASSERT_TRUE(Run([&] { return handler_a_.sent == std::vector<uint64_t>{4}; }));
  EXPECT_TRUE(log_.empty());
}

TEST_F(AutoEndpointTest, AnotherHostIsReachedOverTcp) {
  auto b = Make(&handler_b_), a = Make(&handler_a_);
  Address address = b->local_address();
  address.host_id = "another host";
  const LinkId link = a->Connect(address, kWorker);
  ASSERT_TRUE(Run([&] { return handler_a_.up.size() == 1 && handler_b_.up.size() == 1; }));
  EXPECT_EQ(a->Stats(link).kind, "tcp");
  ASSERT_EQ(a->Rows(link).size(), 1u);
  EXPECT_EQ(a->Rows(link)[0].kind, "tcp");
  EXPECT_EQ(a->Rows(link)[0].note, "no device is looked for");
  EXPECT_EQ(a->Totals().rails.at({"tcp", "base"}).up, 1u);
  EXPECT_TRUE(log_.empty());
}

TEST_F(AutoEndpointTest, ForcedTransports) {
  auto b = Make(&handler_b_);
  auto tcp = Make(&handler_a_, TransportChoice::kTcp);
  EXPECT_TRUE(tcp->local_address().unix_socket.empty());
  const LinkId over_tcp = tcp->Connect(b->local_address(), kWorker);
  ASSERT_TRUE(Run([&] { return handler_a_.up.size() == 1; }));
  EXPECT_EQ(tcp->Stats(over_tcp).kind, "tcp");

  Recorder handler;
  auto shm = Make(&handler, TransportChoice::kShm);
  EXPECT_EQ(shm->local_address().port, 0);
  const LinkId over_shm = shm->Connect(b->local_address(), kWorker);
  ASSERT_TRUE(Run([&] { return handler.up.size() == 1; }));
  EXPECT_EQ(shm->Stats(over_shm).kind, "shm");
  const LinkId nowhere = shm->Connect({.host = "127.0.0.1", .port = b->local_address().port}, kWorker);
  ASSERT_TRUE(Run([&] { return handler.down.contains(nowhere); }));
  EXPECT_EQ(handler.down[nowhere].code(), absl::StatusCode::kInvalidArgument);
}

// The link keeps its id, its frames and its callbacks when shared memory fails before it is up.
TEST_F(AutoEndpointTest, FallsBackToTcpWithTheReasonAndLosesNothing) {
  for (const bool refused_by_hello : {true, false}) {
    handler_a_ = Recorder();
    handler_b_ = Recorder();
    log_.clear();
    auto b = Make(&handler_b_, TransportChoice::kAuto,
                  refused_by_hello ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kOk);
    auto a = Make(&handler_a_);
    Address address = b->local_address();
    if (!refused_by_hello) address.unix_socket = "sluice-nobody-listens-here";
    const LinkId link = a->Connect(address, kWorker);
    std::vector<std::vector<std::byte>> payloads;
    for (uint64_t i = 0; i < 10; ++i) {
      payloads.push_back(Pattern(i * 100, i));
      a->Send(link, PushHeader(i * 100, i), payloads.back(), i % 2 == 0 ? 0 : i);
    }
    ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == 10 && handler_a_.sent.size() == 5; }));
    for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(handler_b_.frames[i].bytes, payloads[i]);
    ASSERT_EQ(handler_a_.up.size(), 1);
    EXPECT_EQ(handler_a_.up[0].first, link);
    EXPECT_EQ(a->Stats(link).kind, "tcp");
    ASSERT_EQ(log_.size(), 1);
    EXPECT_NE(log_[0].find(refused_by_hello ? "not over shared memory" : "nobody listens"), std::string::npos)
        << log_[0];
    // Slots, frames back, and the end carry the same id.
    std::vector<std::byte> memory(5000);
    const SlotId slot = a->OpenSlot(link, memory);
    const LinkId back = handler_b_.up[0].first;
    b->Send(back, PushHeader(5000, 1, slot), Pattern(5000, 9), 0);
    ASSERT_TRUE(Run([&] { return handler_a_.frames.size() == 1; }));
    EXPECT_EQ(handler_a_.frames[0].link, link);
    EXPECT_EQ(memory, Pattern(5000, 9));
    EXPECT_TRUE(a->CloseSlot(link, slot));
    b.reset();
    ASSERT_TRUE(Run([&] { return handler_a_.down.contains(link); }));
    EXPECT_EQ(handler_a_.down.size(), 1);
    a->Send(link, PushHeader(0), {}, 0);
  }
}

TEST_F(AutoEndpointTest, WithoutAnAddressForTcpTheFailureIsReported) {
  auto a = Make(&handler_a_);
  const LinkId link =
      a->Connect({.unix_socket = "sluice-nobody-listens-here", .host_id = HostId()}, kWorker);
  const auto payload = Pattern(10, 1);
  a->Send(link, PushHeader(10), payload, 3);
  ASSERT_TRUE(Run([&] { return handler_a_.down.contains(link); }));
  EXPECT_EQ(handler_a_.down[link].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(handler_a_.sent, std::vector<uint64_t>{3});
}

TEST_F(AutoEndpointTest, CloseBeforeItIsUpDoesNotFallBack) {
  auto b = Make(&handler_b_), a = Make(&handler_a_);
  const LinkId link = a->Connect(b->local_address(), kWorker);
  const auto payload = Pattern(10, 1);
  a->Send(link, PushHeader(10), payload, 3);
  a->Close(link, absl::CancelledError("changed my mind"));
  ASSERT_TRUE(Run([&] { return handler_a_.down.contains(link); }));
  EXPECT_EQ(handler_a_.down[link].message(), "changed my mind");
  EXPECT_EQ(handler_a_.sent, std::vector<uint64_t>{3});
  EXPECT_TRUE(handler_a_.up.empty());
  EXPECT_TRUE(log_.empty());
}

TEST_F(AutoEndpointTest, BackPressureWhileConnectingEndsWhenItIsUp) {
  auto b = Make(&handler_b_), a = Make(&handler_a_);
  Address address = b->local_address();
  const LinkId link = a->Connect(address, kWorker);
  const auto payload = Pattern(100000, 1);
  size_t sent = 0;
  while (a->Writable(link)) {
    a->Send(link, PushHeader(payload.size(), sent++), payload, 0);
    ASSERT_LT(sent, 1000);
  }
  ASSERT_TRUE(Run([&] { return handler_a_.writable == 1 && handler_b_.frames.size() == sent; }));
}

}  // namespace
}  // namespace sluice::transport
