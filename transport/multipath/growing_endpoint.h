// The endpoint behind multipath_endpoint.h; nobody else includes this. multipath_endpoint.cc: links as their users see them,
// and what is sent; growing_endpoint.cc: how links get their paths.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proto/rails.pb.h"
#include "transport/multipath/grown_link.h"
#include "transport/multipath/multipath_endpoint.h"

namespace sluice::transport::multipath {

inline constexpr uint32_t kVersion = 1;
enum Aux : uint32_t {
  kPaths = kFirstTransportAux, kPacket, kChunk, kChunkAck, kOffer, kProposal, kAcceptance, kReady
};
inline constexpr uint32_t kPathBit = uint32_t{1} << 31;   // of Hello::connection: a further connection; the rest is its path
inline constexpr uint32_t kConnectionGroup = uint32_t{1} << 31;   // of SlotTarget::group: further connection, by path
inline constexpr size_t kMostConnections = 16;
inline constexpr uint32_t kMostPathsMissed = 1 << 16;
inline constexpr TimeNs kTick = 50 * kMillisecond;
inline constexpr TimeNs kExchangeTimeout = 5 * kSecond;
inline constexpr TimeNs kStable = 10 * kSecond;   // a path that lived so long broke for a new reason: no long wait
// A further connection is given up if it acknowledges nothing for so long and its kernel hears nothing either; one that is
// merely slow, after ten times that. A base is given up if its kernel hears nothing while a further connection's does.
inline constexpr TimeNs kStalled = 3 * kSecond;
inline constexpr uint32_t kDeadTimeouts = 3;         // about 1.5 s
inline constexpr TimeNs kLateWord = 500 * kMillisecond;   // of a link's end, on its base
inline constexpr TimeNs kLongestConnectPause = 2 * kSecond;   // before a further connection is tried again
inline constexpr char kEndsWithItsLink[] = "the link that it belongs to has ended";
inline constexpr size_t kBaseRoom = 64;

inline ConstBytes AsBytes(const std::string& text) { return std::as_bytes(std::span(text)); }

class GrowingEndpoint final : public MultipathEndpoint, public Handler, public PathDriver::Owner {
 public:
  GrowingEndpoint(Loop* loop, const Clock* clock, MultipathOptions options)
      : loop_(loop), clock_(clock), options_(std::move(options)), driver_(std::move(options_.driver)),
        random_(std::random_device()()) {}

  ~GrowingEndpoint() override {
    if (tick_timer_ != 0) loop_->CancelTimer(tick_timer_);
    if (again_timer_ != 0) loop_->CancelTimer(again_timer_);
    if (driver_ != nullptr) {
      for (auto& [id, link] : links_) driver_->DropLink(id);
    }
  }

  absl::Status Start();

  // ---- Endpoint ----

  uint32_t port() const override { return tcp_->port(); }
  uint32_t UnansweredTimeouts(LinkId id) const override { return tcp_->UnansweredTimeouts(id); }
  void TakeBack(LinkId id, uint64_t cookie) override { tcp_->TakeBack(id, cookie); }
  void SetHandler(Handler* handler) override { handler_ = handler; }
  const EndpointLimits& limits() const override { return options_.tcp.limits; }
  bool ByReference(LinkId, ConstBytes) const override { return false; }

  LinkId Connect(const Address& address, const Hello& self) override;

  void Send(LinkId id, const FrameHeader& header, ConstBytes payload, uint64_t cookie) override;

  bool Writable(LinkId id) const override;

  void Close(LinkId id, const absl::Status& reason) override;

  SlotId OpenSlot(LinkId id, MutableBytes memory) override;

  bool CloseSlot(LinkId id, SlotId slot) override;

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes) override;

  std::shared_ptr<void> Register(MutableBytes memory) override;

  LinkStats Stats(LinkId id) const override;

  std::vector<PathReport> Paths() const override;

  std::vector<PathRow> Rows(LinkId id) const override;

  PathTotals Totals() const override;

  // ---- Handler: of the base connections and the further ones ----

  void OnUp(LinkId id, const Hello& peer) override;

  void OnDown(LinkId id, const absl::Status& reason) override;

  void OnFrame(LinkId id, const FrameHeader& header, Payload payload) override;

  void OnSent(LinkId id, uint64_t cookie) override;

  // TCP closes at once.
  void OnSlotClosed(LinkId, SlotId) override {}

  void OnWritable(LinkId id) override;

  // ---- PathDriver::Owner ----

  void PathPacket(LinkId id, PathId path, ConstBytes packet) override;
  void PathChunk(LinkId id, PathId path, uint32_t tag) override;
  void PathDone(LinkId id, PathId path, uint64_t token) override;
  void PathUp(LinkId id, const PathDriver::NewPath& path) override;
  void PathBroken(LinkId id, PathId path, const absl::Status& why) override;
  void PathDoubtful(LinkId id, PathId path, const absl::Status& why) override;
  void PathsPossible() override;
  void PathsRead() override { Flush(); }

 private:
  struct Further {
    LinkId base = 0;
    PathId path = 0;
  };

  // What a link's core asks for.
  class CoreOwner final : public MultipathLink::Owner {
   public:
    CoreOwner(GrowingEndpoint* endpoint, LinkId link) : endpoint_(endpoint), link_(link) {}
    size_t Room(PathId path) override { return endpoint_->Room(link_, path); }
    bool CanSendFrom(PathId path, ConstBytes payload) override {
      return endpoint_->ConnectionOf(link_, path) != 0 || endpoint_->driver_->CanSendFrom(link_, path, payload);
    }
    void SendPacket(PathId path, ConstBytes packet, uint64_t token) override {
      endpoint_->SendPacket(link_, path, packet, token);
    }
    void SendChunk(PathId path, const Chunk& chunk, uint64_t token) override {
      endpoint_->SendChunk(link_, path, chunk, token);
    }
    void TakeBack(PathId path, uint64_t token) override { endpoint_->TakeBack(link_, path, token); }
    uint32_t ReceivesPosted(PathId path) override { return endpoint_->driver_->ReceivesPosted(link_, path); }
    void BreakPath(PathId path, const absl::Status& why) override { endpoint_->BreakPath(link_, path, why); }
    void Deliver(const FrameHeader& header, Payload payload) override {
      endpoint_->handler_->OnFrame(link_, header, std::move(payload));
    }
    void Sent(uint64_t cookie) override { endpoint_->handler_->OnSent(link_, cookie); }
    void SlotClosed(SlotId slot) override { endpoint_->handler_->OnSlotClosed(link_, slot); }

   private:
    GrowingEndpoint* const endpoint_;
    const LinkId link_;
  };

  GrownLink* Find(LinkId id) const;
  std::shared_ptr<GrownLink> Hold(LinkId id) const;
  std::shared_ptr<GrownLink> Grown(LinkId id) const;
  void Log(const std::string& text) const;
  std::string Name(const GrownLink& link) const;

  void MarkDirty(GrownLink& link);

  // ---- what people see ----

  void LosePath(GrownLink& link, PathId path);

  void CountPathUp(GrownLink& link);

  std::string WhyTcp(const GrownLink& link) const;

  // The peer broke the rules: the link ends.
  void Check(GrownLink& link, const absl::Status& status);

  // ---- growing ----

  void Tell(LinkId link, Aux aux, ConstBytes payload);

  void TellPaths(GrownLink& link);

  void Grow(GrownLink& link);

  void AnnounceSlot(GrownLink& link, SlotId slot, MutableBytes memory);

  // No more paths, packets or frames. Lent payloads are not touched any more, their cookies come with OnDown.
  void Wither(GrownLink& link);

  // ---- TRANSPORT frames ----

  void OnTransportFrame(LinkId id, const FrameHeader& header, Payload payload);

  absl::Status OnPaths(GrownLink& link, ConstBytes bytes);

  // ---- further TCP connections ----

  // Where the connection to this peer goes first, and the others of its addresses.
  void NextWay(const GrownLink& link);
  void LearnWays(GrownLink& link, const proto::PathsPossible& possible);
  // The base's network is gone, and another one is there.
  bool BaseIsGone(const GrownLink& link) const;
  void Unstall(GrownLink& link, TimeNs now);

  void ConnectFurther(GrownLink& link, const std::string& host);

  void OnFurtherAccepted(LinkId id, const Hello& peer);

  void ConnectionUp(GrownLink& link, PathId path);

  void ConnectionDown(GrownLink& link, PathId path, const absl::Status& reason);

  absl::Status AcknowledgeChunk(LinkId connection, const FrameHeader& chunk);
  void SendAck(LinkId connection, uint64_t tag);
  void SendHeldAcks(LinkId connection);
  void OnFurtherFrame(LinkId id, Further further, const FrameHeader& header, bool landed);

  LinkId ConnectionOf(LinkId id, PathId path) const;

  // ---- the exchange for RDMA ----

  void OfferSoon(GrownLink& link);

  // Also of a path that was never up here: the peer may think that it is, and waits for our word.
  void PathGone(GrownLink& link, PathId path);

  void WaitForNextOffer(GrownLink& link);

  void Offer(GrownLink& link);

  absl::Status OnOffer(GrownLink& link, ConstBytes offer);

  absl::Status OnProposal(GrownLink& link, ConstBytes proposal);

  absl::Status OnAcceptance(GrownLink& link, ConstBytes acceptance);

  absl::Status OnReady(GrownLink& link, ConstBytes ready);

  void PathsUp(GrownLink& link, const std::vector<PathDriver::NewPath>& paths);

  // ---- sending ----

  size_t Room(LinkId id, PathId path) const;

  void SendPacket(LinkId id, PathId path, ConstBytes packet, uint64_t token);

  void SendChunk(LinkId id, PathId path, const Chunk& chunk, uint64_t token);

  void TakeBack(LinkId id, PathId path, uint64_t token);

  void BreakPath(LinkId id, PathId path, const absl::Status& why);

  // Everything that was queued in this turn. Handlers refill in OnSent, so a few passes.
  void Flush();

  // Paths that stall are judged by the passing of time, and offers wait for theirs.
  void ArmTick();

  Loop* const loop_;
  const Clock* const clock_;
  MultipathOptions options_;
  const std::unique_ptr<PathDriver> driver_;
  const std::shared_ptr<GrowingEndpoint*> alive_ = std::make_shared<GrowingEndpoint*>(this);
  std::mt19937_64 random_;
  Handler* handler_ = nullptr;
  std::unordered_map<LinkId, std::shared_ptr<GrownLink>> links_;
  // By address as the user of this endpoint names it: all hosts of that peer that are known, and which one a link to it is
  // made to. The next one after a connection has failed, or when the network of the link's base is gone.
  struct Ways {
    std::vector<std::string> hosts;
    size_t current = 0;
  };
  std::unordered_map<std::string, Ways> ways_;
  std::unordered_map<LinkId, Further> further_;   // connections by their own id
  std::unordered_map<SlotId, std::vector<std::pair<LinkId, SlotId>>> further_slots_;   // a slot's namesakes on them
  PathTotals gone_;   // of links and paths that are gone, and all reconnects
  std::unordered_map<LinkId, std::vector<uint64_t>> held_acks_;   // tags, by TCP connection
  std::vector<LinkId> dirty_;
  bool flushing_ = false;
  bool told_no_rdma_ = false;
  uint64_t tick_timer_ = 0, again_timer_ = 0;
  std::unique_ptr<TcpEndpoint> tcp_;   // last: it goes first, and calls nobody back
};

}  // namespace sluice::transport::multipath
