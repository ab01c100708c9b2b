#include "transport/tcp/tcp_endpoint.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/tcp/acceptor.h"
#include "transport/tcp/connector.h"
#include "transport/tcp/linger.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_info.h"
#include "transport/tcp/tcp_link.h"

namespace sluice::transport {
namespace {

constexpr size_t kStagingBytes = 64 << 10;
// One link's turn: then the others get theirs.
constexpr size_t kReadBudget = 1 << 20;
constexpr size_t kWriteBudget = 1 << 20;

class EpollTcpEndpoint final : public TcpEndpoint, public TcpLink::Owner {
 public:
  EpollTcpEndpoint(Loop* loop, const Clock* clock, TcpOptions options)
      : loop_(loop), clock_(clock), options_(std::move(options)), lingerer_(loop), connector_(loop),
        staging_(kStagingBytes) {
    // The loop keeps its hooks for good, so the hook must outlive the endpoint.
    loop_->AtTurnEnd([alive = std::weak_ptr<EpollTcpEndpoint*>(alive_)] {
      if (const auto self = alive.lock()) (*self)->FlushDirty();
    }, /*stage=*/1);
  }

  ~EpollTcpEndpoint() override {
    if (tick_timer_ != 0) loop_->CancelTimer(tick_timer_);
    if (deliver_timer_ != 0) loop_->CancelTimer(deliver_timer_);
    for (auto& [id, link] : links_)
      if (link->fd() >= 0) loop_->Unwatch(link->fd());
  }

  absl::Status Listen() {
    if (!options_.listen) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(acceptor_, Acceptor::Create(loop_, options_.bind_host, options_.port, options_.reuse_address,
                                                        [this](UniqueFd fd) { OnAccepted(std::move(fd)); }));
    return absl::OkStatus();
  }

  uint32_t port() const override { return acceptor_ == nullptr ? 0 : acceptor_->port(); }
  void SetHandler(Handler* handler) override { handler_ = handler; }

  LinkId Connect(const Address& address, const Hello& self) override {
    const auto link = NewLink(/*acceptor=*/false);
    link->SetSelf(self);
    link->set_peer_address(address.ToString());
    const LinkId id = link->id();
    connector_.Start(id, address, [this, id](auto result) { OnConnected(id, std::move(result)); });
    return id;
  }

  void Send(LinkId id, const FrameHeader& header, ConstBytes payload, uint64_t cookie) override {
    TcpLink* link = Find(id);
    if (link == nullptr || link->state() == TcpLink::State::kDown) {
      if (cookie != 0) Queue({Event::kSent, id, cookie, {}});
      return;
    }
    link->Send(header, payload, cookie);
  }

  bool Writable(LinkId id) const override {
    const auto it = links_.find(id);
    return it == links_.end() || it->second->writer().queued_bytes() <= options_.limits.max_queued_bytes;
  }

  void Close(LinkId id, const absl::Status& reason) override {
    TcpLink* link = Find(id);
    if (link != nullptr) Down(*link, reason, /*tell=*/true);
  }

  SlotId OpenSlot(LinkId id, MutableBytes memory) override {
    const SlotId slot = ++last_slot_;
    TcpLink* link = Find(id);
    if (link != nullptr && link->state() != TcpLink::State::kDown) link->OpenSlot(slot, memory);
    return slot;
  }

  void TakeBack(LinkId id, uint64_t cookie) override {
    if (TcpLink* link = Find(id)) link->writer().TakeBack(cookie);
  }

  bool CloseSlot(LinkId id, SlotId slot) override {
    // Payloads are written by this thread only, so nobody is in the middle of it.
    if (TcpLink* link = Find(id)) link->CloseSlot(slot);
    return true;
  }

  bool ByReference(LinkId, ConstBytes) const override { return false; }

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes) override {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (bytes > SIZE_MAX - page) return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes"));
    const size_t whole = std::max<size_t>((bytes + page - 1) / page * page, page);
    void* memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes: ", strerror(errno)));
    if (whole >= 2 << 20) madvise(memory, whole, MADV_HUGEPAGE);
    return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [whole](std::byte* p) { munmap(p, whole); });
  }

  uint32_t UnansweredTimeouts(LinkId id) const override {
    const auto it = links_.find(id);
    return it == links_.end() ? 0 : transport::UnansweredTimeouts(it->second->fd());
  }

  LinkStats Stats(LinkId id) const override {
    const auto it = links_.find(id);
    return it == links_.end() ? LinkStats{} : it->second->Stats();
  }

  const EndpointLimits& limits() const override { return options_.limits; }

 private:
  // What the handler is to hear, in order. Frames are not queued: they come straight from the socket's event.
  struct Event {
    enum Kind { kUp, kDown, kSent, kWritable } kind;
    LinkId link;
    uint64_t cookie;
    absl::Status reason;
  };

  TcpLink* Find(LinkId id) {
    const auto it = links_.find(id);
    return it == links_.end() ? nullptr : it->second.get();
  }

  std::shared_ptr<TcpLink> NewLink(bool acceptor) {
    const LinkId id = ++last_link_;
    auto link = std::make_shared<TcpLink>(id, acceptor, options_, clock_, this);
    links_.emplace(id, link);
    if (tick_timer_ == 0) ArmTick();
    return link;
  }

  // ---- TcpLink::Owner ----

  absl::Status Admit(const Hello& peer) override { return options_.admit ? options_.admit(peer) : absl::OkStatus(); }

  void LinkUp(TcpLink& link) override {
    Queue({Event::kUp, link.id(), 0, {}});
    Deliver();  // before the frames that follow in the same read
  }

  void LinkFrame(TcpLink& link, const FrameHeader& header, Payload payload) override {
    handler_->OnFrame(link.id(), header, std::move(payload));
  }

  void LinkTransportFrame(TcpLink& link, const FrameHeader& header, Payload payload) override {
    if (options_.transport_frame) options_.transport_frame(link.id(), header, std::move(payload));
  }

  void LinkHasOutput(TcpLink& link) override {
    if (link.dirty) return;
    link.dirty = true;
    dirty_.push_back(link.id());
  }

  void OnConnected(LinkId id, absl::StatusOr<Connector::Connected> result) {
    const Turn turn(this);
    TcpLink* link = Find(id);
    if (link == nullptr || link->state() != TcpLink::State::kConnecting) return;
    if (result.ok()) {
      Adopt(*link, std::move(result->fd), result->peer.ToString());
    } else {
      Fail(*link, result.status());
    }
  }

  void OnAccepted(UniqueFd fd) {
    const Turn turn(this);
    const bool full = links_.size() >= options_.limits.max_links;
    const auto link = NewLink(/*acceptor=*/true);
    const std::string peer = PeerAddress(fd.get()).ToString();
    Adopt(*link, std::move(fd), peer);
    if (full) {
      Fail(*link, absl::ResourceExhaustedError(absl::StrCat("this process has ", options_.limits.max_links,
                                                            " connections, its limit; raise the limit or close some")));
    }
  }

  // ---- a connected socket ----

  void Adopt(TcpLink& link, UniqueFd fd, const std::string& peer) {
    Tune(fd.get(), {options_.socket_buffer, options_.ping_every > 0 ? options_.ping_timeout : 0, options_.congestion});
    link.watched = EPOLLIN;
    const absl::Status status =
        loop_->Watch(fd.get(), EPOLLIN, [this, id = link.id()](uint32_t events) { OnSocket(id, events); });
    link.Start(std::move(fd), peer);
    if (!status.ok()) Fail(link, status);
  }

  void OnSocket(LinkId id, uint32_t events) {
    const auto it = links_.find(id);
    if (it == links_.end()) return;
    const Turn turn(this);
    const std::shared_ptr<TcpLink> link = it->second;  // alive until this returns, whatever the handler does
    if (events & EPOLLOUT) WriteSome(*link);
    if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0 && link->fd() >= 0) {
      const auto more = link->Read({staging_.data(), staging_.size()}, kReadBudget);
      if (!more.ok()) Fail(*link, more.status());
    }
  }

  void WriteSome(TcpLink& link) {
    if (link.fd() < 0) return;
    done_.clear();
    const absl::Status status = link.Write(kWriteBudget, &done_);
    for (const uint64_t cookie : done_) Queue({Event::kSent, link.id(), cookie, {}});
    if (!status.ok()) {
      // The peer's last words may lie in our receive buffer: they explain more than the broken pipe.
      Fail(link, LastWords(link, status));
      return;
    }
    if (link.was_full && link.writer().queued_bytes() < options_.limits.max_queued_bytes / 2) {
      link.was_full = false;
      if (link.state() == TcpLink::State::kUp) Queue({Event::kWritable, link.id(), 0, {}});
    }
    const uint32_t want = EPOLLIN | (link.writer().empty() ? 0u : static_cast<uint32_t>(EPOLLOUT));
    if (want != link.watched) {
      link.watched = want;
      loop_->Rewatch(link.fd(), want);
    }
  }

  absl::Status LastWords(TcpLink& link, const absl::Status& status) {
    if (link.state() == TcpLink::State::kDown) return status;
    const auto read = link.Read({staging_.data(), staging_.size()}, kReadBudget);
    return read.ok() ? status : read.status();
  }

  // At the end of each turn: all that was queued during it goes out in few system calls.
  void FlushDirty() {
    if (dirty_.empty()) return;
    const Turn turn(this);
    // Handlers refill their queues in OnSent; a few passes, then the sockets' own events carry on.
    for (int pass = 0; pass < 4 && !dirty_.empty(); ++pass) {
      std::vector<LinkId> dirty;
      dirty.swap(dirty_);
      for (const LinkId id : dirty) {
        const auto it = links_.find(id);
        if (it == links_.end()) continue;
        const std::shared_ptr<TcpLink> link = it->second;
        link->dirty = false;
        // A socket that is waited for says itself when it can go on.
        if (link->fd() >= 0 && (link->watched & EPOLLOUT) == 0) WriteSome(*link);
      }
      Deliver();
    }
    if (!dirty_.empty()) DeliverSoon();
  }

  // The link cannot go on. A link that the handler knows goes down; a stranger is refused.
  void Fail(TcpLink& link, const absl::Status& what) {
    if (link.state() == TcpLink::State::kDown) return;
    Down(link, link.Explain(what), /*tell=*/true);
  }

  void Down(TcpLink& link, const absl::Status& reason, bool tell) {
    if (link.state() == TcpLink::State::kDown) return;
    const LinkId id = link.id();
    connector_.Cancel(id);
    const bool known = !link.acceptor() || link.state() == TcpLink::State::kUp;
    if (link.fd() >= 0) loop_->Unwatch(link.fd());
    std::vector<uint64_t> done;
    UniqueFd fd = link.Down(reason, tell, &done);
    if (tell && fd.valid()) lingerer_.Add(std::move(fd), clock_->Now());
    for (const uint64_t cookie : done) Queue({Event::kSent, id, cookie, {}});
    if (known) {
      Queue({Event::kDown, id, 0, reason});
      return;
    }
    if (options_.refused) options_.refused(reason);
    links_.erase(id);
  }

  // ---- time ----

  void ArmTick() {
    TimeNs every = std::min(options_.connect_timeout, options_.handshake_timeout);
    if (options_.ping_every > 0) every = std::min({every, options_.ping_every, options_.ping_timeout});
    every = std::clamp<TimeNs>(every / 4, kMillisecond, 500 * kMillisecond);
    tick_timer_ = loop_->After(every, [this] { Tick(); });
  }

  void Tick() {
    tick_timer_ = 0;
    const Turn turn(this);
    const TimeNs now = clock_->Now();
    std::vector<std::pair<std::shared_ptr<TcpLink>, absl::Status>> failed;
    for (auto& [id, link] : links_) {
      absl::Status status = link->Tick(now, connector_.LastError(id));
      if (!status.ok()) failed.emplace_back(link, std::move(status));
    }
    for (auto& [link, status] : failed) Fail(*link, status);
    lingerer_.Tick(now);
    if (!links_.empty() || !lingerer_.empty()) ArmTick();
  }

  // ---- the handler ----

  // A callback of the loop: what it queues for the handler is delivered at its end.
  class Turn {
   public:
    explicit Turn(EpollTcpEndpoint* endpoint) : endpoint_(endpoint) { endpoint_->in_turn_ = true; }
    ~Turn() {
      endpoint_->Deliver();
      endpoint_->in_turn_ = false;
    }

   private:
    EpollTcpEndpoint* const endpoint_;
  };

  void Queue(Event event) {
    events_.push_back(std::move(event));
    if (!in_turn_) DeliverSoon();
  }

  void DeliverSoon() {
    if (deliver_timer_ != 0) return;
    deliver_timer_ = loop_->After(0, [this] {
      deliver_timer_ = 0;
      const Turn turn(this);
    });
  }

  // Called from the loop only, never from inside a call of the handler's.
  void Deliver() {
    if (delivering_ || events_.empty()) return;
    delivering_ = true;
    // What handlers cause meanwhile waits for the next turn, so that no turn is endless.
    std::deque<Event> batch;
    batch.swap(events_);
    while (!batch.empty()) {
      const Event event = std::move(batch.front());
      batch.pop_front();
      const std::shared_ptr<TcpLink> link = links_.contains(event.link) ? links_[event.link] : nullptr;
      switch (event.kind) {
        case Event::kSent:
          handler_->OnSent(event.link, event.cookie);
          break;
        case Event::kWritable:
          if (IsUp(event.link)) handler_->OnWritable(event.link);
          break;
        case Event::kUp:
          if (link != nullptr) handler_->OnUp(event.link, link->peer());
          break;
        case Event::kDown:
          // What was handed to the dying link meanwhile.
          for (const uint64_t cookie : TakeSent(event.link, &batch)) handler_->OnSent(event.link, cookie);
          for (const uint64_t cookie : TakeSent(event.link, &events_)) handler_->OnSent(event.link, cookie);
          handler_->OnDown(event.link, event.reason);
          links_.erase(event.link);
          break;
      }
    }
    delivering_ = false;
    if (!events_.empty()) DeliverSoon();
  }

  static std::vector<uint64_t> TakeSent(LinkId link, std::deque<Event>* events) {
    std::vector<uint64_t> cookies;
    std::erase_if(*events, [&](const Event& event) {
      if (event.kind != Event::kSent || event.link != link) return false;
      cookies.push_back(event.cookie);
      return true;
    });
    return cookies;
  }

  bool IsUp(LinkId id) {
    const TcpLink* link = Find(id);
    return link != nullptr && link->state() == TcpLink::State::kUp;
  }

  // Constant after construction.
  Loop* const loop_;
  const Clock* const clock_;
  const TcpOptions options_;
  const std::shared_ptr<EpollTcpEndpoint*> alive_ = std::make_shared<EpollTcpEndpoint*>(this);
  Handler* handler_ = nullptr;

  // The loop's thread.
  Lingerer lingerer_;
  Connector connector_;
  std::unique_ptr<Acceptor> acceptor_;  // null: does not listen
  std::vector<std::byte> staging_;
  std::vector<uint64_t> done_;
  LinkId last_link_ = 0;
  SlotId last_slot_ = 0;
  std::unordered_map<LinkId, std::shared_ptr<TcpLink>> links_;
  std::vector<LinkId> dirty_;
  std::deque<Event> events_;
  bool in_turn_ = false;
  bool delivering_ = false;
  uint64_t deliver_timer_ = 0, tick_timer_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TcpEndpoint>> TcpEndpoint::Create(Loop* loop, const Clock* clock, TcpOptions options) {
  auto endpoint = std::make_unique<EpollTcpEndpoint>(loop, clock, std::move(options));
  SLUICE_RETURN_IF_ERROR(endpoint->Listen());
  return endpoint;
}

}  // namespace sluice::transport
