// Ids of shared memory have kShmIdBit set, those of TCP do not, so an id tells its transport. The exception are links
// that fell back to TCP: they keep the id that Connect gave, and aliases map it to TCP's and back.
#include "transport/auto/auto_endpoint.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/auto/host_id.h"
#include "transport/shm/slots.h"

namespace sluice::transport {
namespace {

class AutoEndpointImpl final : public AutoEndpoint {
 public:
  AutoEndpointImpl(AutoOptions options, std::unique_ptr<MultipathEndpoint> tcp, std::unique_ptr<ShmEndpoint> shm)
      : options_(std::move(options)), tcp_(std::move(tcp)), shm_(std::move(shm)), tcp_relay_(this), shm_relay_(this) {}

  void SetHandler(Handler* handler) override {
    handler_ = handler;
    if (tcp_ != nullptr) tcp_->SetHandler(&tcp_relay_);
    if (shm_ != nullptr) shm_->SetHandler(&shm_relay_);
  }

  LinkId Connect(const Address& address, const Hello& self) override {
    const bool same_host = !address.unix_socket.empty() && !options_.shm.host_id.empty() &&
                           address.host_id == options_.shm.host_id;
    if (shm_ == nullptr || (tcp_ != nullptr && !same_host)) return tcp_->Connect(address, self);
    const LinkId link = shm_->Connect(address, self);
    connecting_.emplace(link, Connecting{address, self, {}});
    return link;
  }

  void Send(LinkId link, const FrameHeader& header, ConstBytes payload, uint64_t cookie) override {
    if (const auto it = connecting_.find(link); it != connecting_.end()) {
      Held held{.header = header, .payload = payload, .cookie = cookie, .copy = {}};
      if (cookie == 0) {
        held.copy.assign(payload.begin(), payload.end());
        held.payload = held.copy;
      }
      it->second.queued_bytes += kHeaderBytes + payload.size();
      it->second.held.push_back(std::move(held));
      return;
    }
    const Target target = Find(link);
    target.endpoint->Send(target.link, header, payload, cookie);
  }

  bool Writable(LinkId link) const override {
    if (const auto it = connecting_.find(link); it != connecting_.end()) {
      if (it->second.queued_bytes <= limits().max_queued_bytes) return true;
      it->second.wants_writable = true;
      return false;
    }
    const Target target = Find(link);
    return target.endpoint->Writable(target.link);
  }

  void Close(LinkId link, const absl::Status& reason) override {
    if (const auto it = connecting_.find(link); it != connecting_.end()) {
      // No falling back any more; the transport gives the cookies back.
      const Connecting connecting = std::move(it->second);
      connecting_.erase(it);
      for (const Held& held : connecting.held) shm_->Send(link, held.header, held.payload, held.cookie);
    }
    const Target target = Find(link);
    target.endpoint->Close(target.link, reason);
  }

  SlotId OpenSlot(LinkId link, MutableBytes memory) override {
    if (connecting_.contains(link)) return 0;
    const Target target = Find(link);
    return target.endpoint->OpenSlot(target.link, memory);
  }

  bool CloseSlot(LinkId link, SlotId slot) override {
    const Target target = Find(link);
    return target.endpoint->CloseSlot(target.link, slot);
  }

  bool ByReference(LinkId link, ConstBytes payload) const override {
    const Target target = Find(link);
    return target.endpoint->ByReference(target.link, payload);
  }

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes) override {
    if (shm_ == nullptr) return tcp_->Allocate(bytes);
    auto memory = shm_->Allocate(bytes);
    if (!memory.ok() || tcp_ == nullptr) return memory;
    std::shared_ptr<void> handle = tcp_->Register({memory->get(), bytes});
    if (handle == nullptr) return memory;
    std::byte* const data = memory->get();
    // Devices forget it before it goes.
    return std::shared_ptr<std::byte>(data, [memory = *std::move(memory), handle = std::move(handle)](std::byte*) mutable {
      handle.reset();
      memory.reset();
    });
  }

  std::vector<PathReport> Paths() const override {
    if (tcp_ == nullptr) return {};
    std::vector<PathReport> paths = tcp_->Paths();
    for (PathReport& path : paths) {
      if (const auto name = names_.find(path.link); name != names_.end()) path.link = name->second;
    }
    return paths;
  }

  std::vector<PathRow> Rows(LinkId link) const override {
    const Target target = Find(link);
    if (target.endpoint == tcp_.get()) return tcp_->Rows(target.link);
    const LinkStats stats = shm_->Stats(target.link);
    return {{.kind = stats.kind, .rail = "", .address = stats.peer, .bytes_out = stats.bytes_out, .bytes_in = stats.bytes_in,
             .note = ""}};
  }

  PathTotals Totals() const override { return tcp_ == nullptr ? PathTotals{} : tcp_->Totals(); }

  LinkStats Stats(LinkId link) const override {
    const Target target = Find(link);
    return target.endpoint->Stats(target.link);
  }

  const EndpointLimits& limits() const override { return tcp_ != nullptr ? tcp_->limits() : shm_->limits(); }

  Address local_address() const override {
    Address address;
    if (shm_ != nullptr) address = shm_->local_address();
    if (tcp_ != nullptr && tcp_->port() != 0) {
      address.host = options_.advertised_host.empty() ? options_.tcp.bind_host : options_.advertised_host;
      address.port = tcp_->port();
    }
    return address;
  }

 private:
  struct Held {
    FrameHeader header;
    ConstBytes payload;
    uint64_t cookie = 0;
    std::vector<std::byte> copy;
  };
  struct Connecting {  // over shared memory, not up yet
    Address address;
    Hello self;
    std::vector<Held> held;
    size_t queued_bytes = 0;
    mutable bool wants_writable = false;
  };
  struct Target {
    Endpoint* endpoint;
    LinkId link;
  };

  class TcpRelay final : public Handler {
   public:
    explicit TcpRelay(AutoEndpointImpl* owner) : owner_(owner) {}
    void OnUp(LinkId link, const Hello& peer) override { owner_->handler_->OnUp(Name(link), peer); }
    void OnDown(LinkId link, const absl::Status& reason) override {
      const LinkId name = Name(link);
      owner_->names_.erase(link);
      owner_->aliases_.erase(name);
      owner_->handler_->OnDown(name, reason);
    }
    void OnFrame(LinkId link, const FrameHeader& header, Payload payload) override {
      owner_->handler_->OnFrame(Name(link), header, std::move(payload));
    }
    void OnSent(LinkId link, uint64_t cookie) override { owner_->handler_->OnSent(Name(link), cookie); }
    void OnSlotClosed(LinkId link, SlotId slot) override { owner_->handler_->OnSlotClosed(Name(link), slot); }
    void OnWritable(LinkId link) override { owner_->handler_->OnWritable(Name(link)); }

   private:
    LinkId Name(LinkId link) const {
      const auto it = owner_->names_.find(link);
      return it == owner_->names_.end() ? link : it->second;
    }
    AutoEndpointImpl* const owner_;
  };

  class ShmRelay final : public Handler {
   public:
    explicit ShmRelay(AutoEndpointImpl* owner) : owner_(owner) {}
    void OnUp(LinkId link, const Hello& peer) override {
      bool writable = false;
      if (const auto it = owner_->connecting_.find(link); it != owner_->connecting_.end()) {
        writable = owner_->Continue({owner_->shm_.get(), link}, link, std::move(it->second));
      }
      owner_->handler_->OnUp(link, peer);
      if (writable) owner_->handler_->OnWritable(link);
    }
    void OnDown(LinkId link, const absl::Status& reason) override { owner_->ShmDown(link, reason); }
    void OnFrame(LinkId link, const FrameHeader& header, Payload payload) override {
      owner_->handler_->OnFrame(link, header, std::move(payload));
    }
    void OnSent(LinkId link, uint64_t cookie) override { owner_->handler_->OnSent(link, cookie); }
    void OnSlotClosed(LinkId link, SlotId slot) override { owner_->handler_->OnSlotClosed(link, slot); }
    void OnWritable(LinkId link) override { owner_->handler_->OnWritable(link); }

   private:
    AutoEndpointImpl* const owner_;
  };

  Target Find(LinkId link) const {
    if (const auto it = aliases_.find(link); it != aliases_.end()) return {tcp_.get(), it->second};
    const bool shm = tcp_ == nullptr || (shm_ != nullptr && (link & kShmIdBit) != 0);
    return {shm ? static_cast<Endpoint*>(shm_.get()) : tcp_.get(), link};
  }

  // The link's transport is known now: what was held goes there. True: somebody waits for OnWritable, and it is time;
  // if the transport's queue is long already, it will tell.
  bool Continue(Target target, LinkId name, Connecting connecting) {
    connecting_.erase(name);
    for (const Held& held : connecting.held) target.endpoint->Send(target.link, held.header, held.payload, held.cookie);
    return connecting.wants_writable && target.endpoint->Writable(target.link);
  }

  void ShmDown(LinkId link, const absl::Status& reason) {
    const auto it = connecting_.find(link);
    if (it == connecting_.end()) return handler_->OnDown(link, reason);
    Connecting connecting = std::move(it->second);
    if (tcp_ == nullptr || connecting.address.host.empty()) {
      // The frames that were held have no link to go to: their cookies come back first.
      connecting_.erase(it);
      for (const Held& held : connecting.held) {
        if (held.cookie != 0) handler_->OnSent(link, held.cookie);
      }
      return handler_->OnDown(link, reason);
    }
    if (options_.log) {
      options_.log(absl::StrCat("no shared memory with ", connecting.address.ToString(), ", going on over TCP: ",
                                reason.message()));
    }
    const LinkId tcp_link = tcp_->Connect(connecting.address, connecting.self);
    aliases_.emplace(link, tcp_link);
    names_.emplace(tcp_link, link);
    if (Continue({tcp_.get(), tcp_link}, link, std::move(connecting))) handler_->OnWritable(link);
  }

  const AutoOptions options_;
  const std::unique_ptr<MultipathEndpoint> tcp_;  // null: kShm
  const std::unique_ptr<ShmEndpoint> shm_;  // null: kTcp, or not to be had
  TcpRelay tcp_relay_;
  ShmRelay shm_relay_;
  Handler* handler_ = nullptr;
  std::unordered_map<LinkId, Connecting> connecting_;
  std::unordered_map<LinkId, LinkId> aliases_;  // our name -> TCP's
  std::unordered_map<LinkId, LinkId> names_;    // TCP's name -> ours
};

}  // namespace

AutoOptions MakeAutoOptions(const Hello& self, const EndpointLimits& limits,
                            std::function<absl::Status(const Hello&)> admit) {
  AutoOptions options;
  options.tcp.self = options.shm.self = self;
  options.tcp.limits = options.shm.limits = limits;
  options.tcp.admit = options.shm.admit = std::move(admit);
  options.shm.host_id = HostId();
  return options;
}

absl::StatusOr<std::unique_ptr<AutoEndpoint>> AutoEndpoint::Create(Loop* loop, const Clock* clock,
                                                                   AutoOptions options) {
  std::unique_ptr<MultipathEndpoint> tcp;
  std::unique_ptr<ShmEndpoint> shm;
  const TransportChoice choice = options.choice;
  if (choice != TransportChoice::kShm) {
    MultipathOptions multipath;
    multipath.tcp = options.tcp;
    multipath.rails = options.rails;
    multipath.chunk_bytes = options.chunk_bytes;
    multipath.reconnect = options.reconnect;
    multipath.log = options.log;
    multipath.why_no_driver = choice == TransportChoice::kTcp ? "TCP was asked for (data.transport)"
                              : options.rdma == nullptr       ? "no device is looked for"
                                                              : "";
    if (options.rdma != nullptr && choice != TransportChoice::kTcp) {
      auto driver = options.rdma(loop, clock);
      if (driver.ok()) {
        multipath.driver = *std::move(driver);
      } else if (choice == TransportChoice::kRdma) {
        return absl::FailedPreconditionError(absl::StrCat(
            "data.transport=rdma: ", driver.status().message(),
            "; `sluicectl doctor` says more, and data.transport=auto goes on without"));
      } else {
        multipath.why_no_driver = std::string(driver.status().message());
      }
      if (!driver.ok() && options.log && !absl::IsNotFound(driver.status())) {
        options.log(absl::StrCat("RDMA is not used: ", driver.status().message()));
      }
    } else if (choice == TransportChoice::kRdma) {
      return absl::FailedPreconditionError("RDMA was asked for, and this process looks for no devices");
    }
    SLUICE_ASSIGN_OR_RETURN(tcp, MultipathEndpoint::Create(loop, clock, std::move(multipath)));
  }
  if (choice == TransportChoice::kAuto || choice == TransportChoice::kShm) {
    absl::StatusOr<std::unique_ptr<ShmEndpoint>> created = ShmEndpoint::Create(loop, options.shm);
    if (created.ok()) {
      shm = *std::move(created);
    } else if (tcp == nullptr) {
      return created.status();
    } else if (options.log) {
      options.log(absl::StrCat("no shared memory on this host, TCP only: ", created.status().message()));
    }
  }
  return std::make_unique<AutoEndpointImpl>(std::move(options), std::move(tcp), std::move(shm));
}

}  // namespace sluice::transport
