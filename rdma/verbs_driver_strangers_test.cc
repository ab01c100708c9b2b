// What peers may say in the exchange that makes queue pairs (proto/rails.proto): nothing of it harms this process.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "proto/rails.pb.h"
#include "rdma/fake/fabric.h"
#include "rdma/testing/talk.h"
#include "transport/loop.h"
#include "transport/tcp/tcp_endpoint.h"

namespace sluice::rdma {
namespace {

using transport::FrameHeader;
using transport::FrameType;
using transport::Hello;
using transport::LinkId;
using transport::Payload;
using transport::PeerRole;

// The messages of the exchange, as the endpoint numbers them (docs/wire.md).
enum Message : uint32_t { kPaths = transport::kFirstTransportAux, kPacket, kChunk, kChunkAck, kOffer, kProposal, kAcceptance, kReady };

ConstBytes AsBytes(const std::string& text) { return std::as_bytes(std::span(text)); }

class Listener : public transport::Handler {
 public:
  void OnUp(LinkId id, const Hello&) override { link = id; }
  void OnDown(LinkId, const absl::Status& reason) override { down = reason; }
  void OnFrame(LinkId, const FrameHeader&, Payload) override {}
  void OnSent(LinkId, uint64_t) override {}
  void OnSlotClosed(LinkId, transport::SlotId) override {}
  void OnWritable(LinkId) override {}
  LinkId link = 0;
  std::optional<absl::Status> down;
};

// A process with a device, and a stranger that speaks what it likes over TCP.
class Strangers : public ::testing::Test {
 protected:
  Strangers() {
    char folder[] = "/tmp/sluice-rdma-XXXXXX";
    folder_ = mkdtemp(folder);
    std::filesystem::create_directories(folder_ + "/dev/infiniband");
    std::filesystem::create_directories(folder_ + "/sys");
    host_.AddDevice({.name = "fake0", .address = "10.0.0.1"});
    host_.WriteSysfs(folder_ + "/sys");
    loop_ = *transport::Loop::Create();
  }
  ~Strangers() override { std::filesystem::remove_all(folder_); }

  // connects: the process connects to the stranger, and so makes offers; else it is connected to.
  void Meet(bool connects) {
    DriverOptions options = testing::SmallTimes();
    options.queue_pair.sends = options.queue_pair.receives = 8;
    options.gather.sysfs = folder_ + "/sys";
    options.gather.dev = folder_ + "/dev";
    options.gather.addresses = host_.Addresses();
    auto driver = VerbsDriver::Create(loop_.get(), &clock_, std::shared_ptr<Verbs>(std::shared_ptr<void>(), &host_), options);
    ASSERT_TRUE(driver.ok()) << driver.status();
    transport::MultipathOptions endpoint;
    endpoint.tcp.self = {.role = PeerRole::kServer, .job = 1, .incarnation = 1, .name = "it"};
    endpoint.driver = *std::move(driver);
    endpoint.reconnect = kMillisecond;
    auto made = transport::MultipathEndpoint::Create(loop_.get(), &clock_, std::move(endpoint));
    ASSERT_TRUE(made.ok()) << made.status();
    it_ = *std::move(made);
    it_->SetHandler(&its_);
    transport::TcpOptions tcp;
    tcp.self = {.role = PeerRole::kServer, .job = 1, .incarnation = 1, .name = "stranger"};
    tcp.transport_frame = [this](LinkId, const FrameHeader& header, Payload payload) {
      said_[header.aux].emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
    };
    auto stranger = transport::TcpEndpoint::Create(loop_.get(), &clock_, std::move(tcp));
    ASSERT_TRUE(stranger.ok()) << stranger.status();
    stranger_ = *std::move(stranger);
    stranger_->SetHandler(&strangers_);
    its_ = {};
    strangers_ = {};
    said_.clear();
    const Hello hello{.role = PeerRole::kWorker, .job = 1, .incarnation = 1, .name = "who connects"};
    if (connects) {
      it_->Connect({.host = "127.0.0.1", .port = stranger_->port(), .unix_socket = {}, .host_id = {}}, hello);
    } else {
      stranger_->Connect({.host = "127.0.0.1", .port = it_->port(), .unix_socket = {}, .host_id = {}}, hello);
    }
    Until([&] { return its_.link != 0 && strangers_.link != 0; });
    if (!connects) return;
    proto::PathsPossible paths;
    paths.set_version(1);
    paths.set_rdma(true);
    Say(kPaths, paths.SerializeAsString());
    Until([&] { return !said_[kOffer].empty(); });
  }
  void Part() {
    it_.reset();
    stranger_.reset();
    EXPECT_EQ(fabric_.live(), fake::Live{});
    for (const std::string& misuse : fabric_.misuses()) ADD_FAILURE() << misuse;
  }
  void Until(const std::function<bool()>& done) {
    const TimeNs begin = clock_.Now();
    std::function<void()> poll = [&] {
      if (done() || clock_.Now() - begin > 30 * kSecond) return loop_->Stop();
      loop_->After(50 * kMicrosecond, poll);
    };
    loop_->After(0, poll);
    loop_->Run();
    EXPECT_TRUE(done());
  }
  void Say(uint32_t aux, const std::string& text) {
    FrameHeader header;
    header.type = FrameType::kTransport;
    header.aux = aux;
    header.payload_bytes = static_cast<uint32_t>(text.size());
    header.total_bytes = text.size();
    stranger_->Send(strangers_.link, header, AsBytes(text), 0);
  }
  // What was said before has been read, and answered.
  void Heard() {
    if (its_.down.has_value()) return;
    proto::RdmaOffer offer;   // is answered by who was connected to, whatever it says
    const size_t answers = said_[kProposal].size();
    if (said_[kOffer].empty()) {
      Say(kOffer, offer.SerializeAsString());
      Until([&] { return its_.down.has_value() || strangers_.down.has_value() || said_[kProposal].size() > answers; });
    } else {
      int turns = 0;
      Until([&] { return its_.down.has_value() || strangers_.down.has_value() || ++turns > 20; });
    }
  }

  uint64_t Any(uint64_t n) { return random_() % n; }
  uint32_t Odd(std::initializer_list<uint32_t> values) {
    return Any(4) == 0 ? static_cast<uint32_t>(random_()) : *(values.begin() + Any(values.size()));
  }
  std::string Bytes(size_t most) {
    std::string bytes(Any(most + 1), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }
  std::string Text(size_t most) {
    std::string text = Bytes(most);
    for (char& c : text) c = static_cast<char>(c & 0x7f);
    return text;
  }
  std::string GidBytes() {
    const Gid gid = host_.RailOf("fake0").gid;
    return Any(2) == 0 ? Bytes(20) : std::string(gid.begin(), gid.end());
  }
  proto::RdmaQueuePair AnyQueuePair(const proto::RdmaQueuePair* real = nullptr) {
    proto::RdmaQueuePair qp = real != nullptr ? *real : proto::RdmaQueuePair();
    const auto maybe = [this, real] { return real == nullptr || Any(6) == 0; };
    if (maybe()) qp.set_path(Odd({0, 1, 2, 3, 5}));
    if (maybe()) qp.set_connector_rail(Odd({0, 1, UINT32_MAX}));
    if (maybe()) qp.set_acceptor_rail(Odd({0, 1, 7}));
    if (maybe()) qp.set_group(Odd({0, 1, 1u << 31}));
    if (maybe()) qp.set_number(Odd({0, 1, 17, 0x1000000}));
    if (maybe()) qp.set_packet_sequence(Odd({0, 0xffffff}));
    if (maybe()) qp.set_gid(GidBytes());
    if (maybe()) qp.set_lid(Odd({0, 70000}));
    if (maybe()) qp.set_mtu(Odd({0, 1, 3, 5, 6, 300}));
    if (maybe()) qp.set_read_atomic(Odd({0, 1, 255}));
    if (maybe()) qp.set_link_layer(Odd({0, 1, 2, 258}));
    if (maybe()) qp.set_gid_type(Odd({0, 1, 2, 255, 258}));
    if (maybe()) qp.set_receives(Odd({0, 3, 8, 65536, 65540}));
    if (maybe()) qp.set_packet_bytes(Odd({0, 8192, 1u << 31}));
    if (Any(8) == 0) qp.set_refused(Text(2000));
    return qp;
  }
  proto::RdmaOffer AnyOffer() {
    proto::RdmaOffer offer;
    offer.set_version(Any(8) == 0 ? Odd({0, 2}) : 1);
    offer.set_queue_pairs(Odd({0, 1, 2, 100000}));
    offer.set_attempt(Odd({0, 1, UINT32_MAX}));
    for (uint64_t n = Any(Any(8) == 0 ? 300 : 4); n > 0; --n) {
      proto::RdmaRail* rail = offer.add_rails();
      rail->set_name(Text(100));
      rail->set_link_layer(Odd({1, 2}));
      rail->set_gid_type(Odd({1, 2}));
      rail->set_gid(GidBytes());
      if (Any(30) > 0) offer.add_have(Odd({0, 1, 2, UINT32_MAX}));
    }
    return offer;
  }
  template <typename Message>
  std::string Some(const std::string& real) {
    Message message, known;
    known.ParseFromString(real);
    for (const auto& qp : known.queue_pairs()) {
      if (Any(8) > 0) *message.add_queue_pairs() = AnyQueuePair(&qp);
    }
    for (uint64_t n = Any(3); n > 0; --n) *message.add_queue_pairs() = AnyQueuePair();
    return Torn(message.SerializeAsString());
  }
  std::string Torn(std::string text) {
    if (Any(10) == 0) return Bytes(200);
    if (Any(10) == 0 && !text.empty()) text.resize(Any(text.size()));
    if (Any(10) == 0 && !text.empty()) text[Any(text.size())] = static_cast<char>(random_());
    return text;
  }

  std::mt19937_64 random_{7};
  const SteadyClock clock_;
  fake::Fabric fabric_;
  fake::Host& host_ = fabric_.AddHost("it");
  std::string folder_;
  std::unique_ptr<transport::Loop> loop_;
  Listener its_, strangers_;
  std::unique_ptr<transport::MultipathEndpoint> it_;
  std::unique_ptr<transport::TcpEndpoint> stranger_;
  std::map<uint32_t, std::vector<std::string>> said_;
};

TEST_F(Strangers, ConnectAndSayWhatTheyLike) {
  for (int life = 0; life < 60; ++life) {
    Meet(/*connects=*/false);
    for (int i = 0; i < 30 && !its_.down.has_value() && !HasFailure(); ++i) {
      switch (Any(6)) {
        case 0: Say(kProposal, Some<proto::RdmaProposal>("")); break;
        case 1: Say(kReady, Some<proto::RdmaReady>("")); break;
        case 2: case 3: Say(kOffer, Torn(AnyOffer().SerializeAsString())); break;
        default: Say(kAcceptance, Some<proto::RdmaAcceptance>(said_[kProposal].empty() ? "" : said_[kProposal].back()));
      }
      Heard();
      EXPECT_LE(fabric_.live().queue_pairs, 128u);
    }
    Part();
    if (HasFailure()) return;
  }
}

TEST_F(Strangers, AreConnectedToAndSayWhatTheyLike) {
  size_t made = 0;
  for (int life = 0; life < 60; ++life) {
    Meet(/*connects=*/true);
    for (int i = 0; i < 30 && !its_.down.has_value() && !HasFailure(); ++i) {
      switch (Any(6)) {
        case 0: Say(kOffer, AnyOffer().SerializeAsString()); break;
        case 1: Say(kAcceptance, Some<proto::RdmaAcceptance>("")); break;
        case 2: Say(kReady, Some<proto::RdmaReady>(said_[kAcceptance].empty() ? "" : said_[kAcceptance].back())); break;
        default: {
          proto::RdmaProposal proposal;   // of queue pairs that fit, most of them
          for (uint32_t n = 0; n < 3; ++n) {
            proto::RdmaQueuePair* qp = proposal.add_queue_pairs();
            qp->set_path(2 * static_cast<uint32_t>(Any(50)) + 1);
            qp->set_number(17);
            qp->set_gid(GidBytes());
            qp->set_mtu(5);
            qp->set_link_layer(2);
            qp->set_gid_type(2);
            qp->set_receives(8);
            qp->set_packet_bytes(8192);
          }
          Say(kProposal, Some<proto::RdmaProposal>(proposal.SerializeAsString()));
        }
      }
      Heard();
      made = std::max(made, fabric_.live().queue_pairs);
      EXPECT_LE(fabric_.live().queue_pairs, 128u);
    }
    Part();
    if (HasFailure()) return;
  }
  EXPECT_GT(made, 0u);
}

}  // namespace
}  // namespace sluice::rdma
