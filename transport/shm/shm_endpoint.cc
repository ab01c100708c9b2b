#include "transport/shm/shm_endpoint.h"

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <functional>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/shm/packet_socket.h"
#include "transport/shm/shm_link.h"
#include "transport/shm/slots.h"

namespace sluice::transport {
namespace {

constexpr TimeNs kAcceptPause = 100 * kMillisecond;

std::string FreshName() {
  uint64_t random = 0;
  [[maybe_unused]] const ssize_t got = ::getrandom(&random, sizeof(random), 0);
  return absl::StrCat("sluice-", ::getpid(), "-", absl::Hex(random, absl::kZeroPad16));
}

class ShmEndpointImpl final : public ShmEndpoint {
 public:
  ShmEndpointImpl(Loop* loop, ShmOptions options, UniqueFd listener)
      : loop_(loop), options_(std::move(options)), listener_(std::move(listener)) {
    context_.loop = loop;
    context_.slabs = options_.slabs;
    context_.limits = options_.limits;
    context_.shape = options_.shape;
    context_.min_reference_bytes = options_.min_reference_bytes;
    context_.handshake_timeout = options_.handshake_timeout;
    context_.admit = options_.admit;
    context_.refused = options_.refused;
    context_.defer = [this](std::function<void()> fn) { Defer(std::move(fn)); };
    context_.forget = [this](LinkId link) { links_.erase(link); };
    // Slabs are freed on any thread.
    slab_listener_ = context_.slabs->AddListener([loop, weak = std::weak_ptr(alive_)](uint32_t slab) {
      loop->Post([weak, slab] {
        const auto self = weak.lock();
        if (self == nullptr) return;
        for (auto& [id, link] : (*self)->links_) link->SlabRetired(slab);
      });
    });
  }

  ~ShmEndpointImpl() override {
    context_.slabs->RemoveListener(slab_listener_);
    alive_.reset();
    loop_->CancelTimer(accept_timer_);
    if (watching_) loop_->Unwatch(listener_.get());
    for (auto& [id, link] : links_) link->Abandon();
  }

  void SetHandler(Handler* handler) override {
    context_.handler = handler;
    if (listener_.valid()) WatchListener();
  }

  LinkId Connect(const Address& address, const Hello& self) override {
    const std::shared_ptr<ShmLink> link = NewLink(self);
    const LinkId id = kShmIdBit | last_link_;
    if (address.unix_socket.empty()) {
      link->Refuse(absl::InvalidArgumentError(absl::StrCat(
          address.ToString(), " has no shared-memory socket; does the peer have shared memory switched off?")));
    } else if (!options_.host_id.empty() && !address.host_id.empty() && options_.host_id != address.host_id) {
      link->Refuse(absl::FailedPreconditionError(absl::StrCat("shm:@", address.unix_socket, " is on another host or in "
                                                              "another network namespace (", address.host_id,
                                                              "; this is ", options_.host_id, ")")));
    } else {
      link->StartConnect(address.unix_socket);
    }
    return id;
  }

  void Send(LinkId link, const FrameHeader& header, ConstBytes payload, uint64_t cookie) override {
    if (ShmLink* found = Find(link)) return found->Send(header, payload, cookie);
    if (cookie != 0) Defer([this, link, cookie] { context_.handler->OnSent(link, cookie); });
  }

  bool Writable(LinkId link) const override {
    ShmLink* found = Find(link);
    return found == nullptr || found->Writable();
  }

  void Close(LinkId link, const absl::Status& reason) override {
    if (ShmLink* found = Find(link)) found->Close(reason);
  }

  SlotId OpenSlot(LinkId link, MutableBytes memory) override {
    ShmLink* found = Find(link);
    return found == nullptr ? 0 : found->OpenSlot(memory);
  }

  bool CloseSlot(LinkId link, SlotId slot) override {
    ShmLink* found = Find(link);
    return found == nullptr || found->CloseSlot(slot);
  }

  bool ByReference(LinkId link, ConstBytes payload) const override {
    ShmLink* found = Find(link);
    return found != nullptr && found->ByReference(payload);
  }

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes) override { return context_.slabs->Allocate(bytes); }

  LinkStats Stats(LinkId link) const override {
    ShmLink* found = Find(link);
    return found == nullptr ? LinkStats{} : found->Stats();
  }

  const EndpointLimits& limits() const override { return options_.limits; }

  Address local_address() const override {
    Address address;
    if (listener_.valid()) address.unix_socket = options_.name;
    address.host_id = options_.host_id;
    return address;
  }

 private:
  ShmLink* Find(LinkId link) const {
    const auto it = links_.find(link);
    return it == links_.end() ? nullptr : it->second.get();
  }

  std::shared_ptr<ShmLink> NewLink(const Hello& self) {
    const LinkId id = kShmIdBit | ++last_link_;
    auto link = std::make_shared<ShmLink>(&context_, id, self);
    links_.emplace(id, link);
    return link;
  }

  void Defer(std::function<void()> fn) {
    deferred_.push_back(std::move(fn));
    if (deferred_.size() > 1 || running_deferred_) return;
    loop_->After(0, [weak = std::weak_ptr(alive_)] {
      if (const auto self = weak.lock()) (*self)->RunDeferred();
    });
  }

  void RunDeferred() {
    running_deferred_ = true;
    // What these callbacks defer waits for the next turn.
    std::deque<std::function<void()>> now;
    now.swap(deferred_);
    for (auto& fn : now) fn();
    running_deferred_ = false;
    if (deferred_.empty()) return;
    loop_->After(0, [weak = std::weak_ptr(alive_)] {
      if (const auto self = weak.lock()) (*self)->RunDeferred();
    });
  }

  void WatchListener() {
    watching_ = loop_->Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); }).ok();
  }

  void Accept() {
    for (int i = 0; i < 16; ++i) {
      absl::StatusOr<UniqueFd> socket = AcceptPackets(listener_.get());
      if (!socket.ok()) {
        // Out of files: what waits would wake the loop for ever.
        loop_->Unwatch(listener_.get());
        watching_ = false;
        accept_timer_ = loop_->After(kAcceptPause, [this] { WatchListener(); });
        return;
      }
      if (!socket->valid()) return;
      absl::StatusOr<PeerProcess> peer = CheckPeerProcess(socket->get());
      if (!peer.ok()) {
        Refuse(*socket, peer.status());
      } else if (links_.size() >= options_.limits.max_links) {
        Refuse(*socket, absl::ResourceExhaustedError(absl::StrCat("@", options_.name, " has its ",
                                                                  options_.limits.max_links, " links already")));
      } else {
        NewLink(options_.self)->StartAccept(*std::move(socket), *peer);
      }
    }
  }

  void Refuse(const UniqueFd& socket, const absl::Status& reason) {
    if (options_.refused) options_.refused(reason);
    FrameHeader header{.type = FrameType::kError, .status = static_cast<uint16_t>(reason.code())};
    const std::string text(reason.message());
    header.payload_bytes = static_cast<uint32_t>(text.size());
    header.total_bytes = text.size();
    std::vector<std::byte> packet(kHeaderBytes + text.size());
    EncodeHeader(header, packet.data());
    std::memcpy(packet.data() + kHeaderBytes, text.data(), text.size());
    SendPacket(socket.get(), packet).IgnoreError();
  }

  Loop* const loop_;
  const ShmOptions options_;
  const UniqueFd listener_;
  ShmContext context_;
  std::unordered_map<LinkId, std::shared_ptr<ShmLink>> links_;
  uint64_t last_link_ = 0;
  std::deque<std::function<void()>> deferred_;
  bool running_deferred_ = false;
  bool watching_ = false;
  uint64_t accept_timer_ = 0;
  uint64_t slab_listener_ = 0;
  // Closures that the loop still holds look here whether the endpoint lives.
  std::shared_ptr<ShmEndpointImpl*> alive_ = std::make_shared<ShmEndpointImpl*>(this);
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShmEndpoint>> ShmEndpoint::Create(Loop* loop, ShmOptions options) {
  if (options.slabs == nullptr) options.slabs = SlabAllocator::Create();
  UniqueFd listener;
  if (options.listen) {
    if (options.self.role == PeerRole::kUnknown) {
      return absl::InvalidArgumentError("an endpoint that listens must say what it is: ShmOptions::self.role");
    }
    if (options.name.empty()) options.name = FreshName();
    SLUICE_ASSIGN_OR_RETURN(listener, ListenPackets(options.name));
  }
  return std::make_unique<ShmEndpointImpl>(loop, std::move(options), std::move(listener));
}

}  // namespace sluice::transport
