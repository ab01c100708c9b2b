#include "bench/transport/tcp_duplex.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "transport/loop.h"
#include "transport/tcp/tcp_endpoint.h"

namespace sluice::bench {

using namespace transport;  // NOLINT: a benchmark of that namespace

class TcpDuplex::Side final : public Handler {
 public:
  Side(size_t bytes, size_t stripe, bool hash, size_t socket_buffer) : bytes_(bytes), stripe_(stripe) {
    loop_ = *Loop::Create();
    TcpOptions options;
    options.hash = hash;
    options.socket_buffer = socket_buffer;
    options.self.role = PeerRole::kServer;
    auto endpoint = TcpEndpoint::Create(loop_.get(), &clock_, options);
    if (!endpoint.ok()) {
      std::fprintf(stderr, "%s\n", endpoint.status().ToString().c_str());
      std::exit(1);
    }
    endpoint_ = *std::move(endpoint);
    endpoint_->SetHandler(this);
    out_ = *endpoint_->Allocate(bytes);
    in_ = *endpoint_->Allocate(bytes);
    std::memset(out_.get(), 1, bytes);
    std::memset(in_.get(), 2, bytes);
  }

  uint32_t port() const { return endpoint_->port(); }
  void Connect(uint32_t port) {
    Hello hello;
    hello.role = PeerRole::kWorker;
    endpoint_->Connect({.host = "127.0.0.1", .port = port}, hello);
  }
  void RunUntilReady() { loop_->Run(); }  // both slots are known
  void RunForever() {
    forever_ = true;
    loop_->Run();
  }

  // One exchange: the first side's first stripe makes the other begin too.
  void Exchange() {
    Begin();
    loop_->Run();
  }

  void OnUp(LinkId link, const Hello&) override {
    link_ = link;
    FrameHeader grant;
    grant.type = FrameType::kGrant;
    grant.slot = endpoint_->OpenSlot(link, {in_.get(), bytes_});
    endpoint_->Send(link, grant, {}, 0);
  }
  void OnDown(LinkId, const absl::Status& reason) override {
    if (!forever_) std::fprintf(stderr, "%s\n", reason.ToString().c_str());
    loop_->Stop();
  }
  void OnFrame(LinkId link, const FrameHeader& header, Payload payload) override {
    if (header.type == FrameType::kGrant) {
      peer_slot_ = header.slot;
      if (!forever_) loop_->Stop();
    } else if (header.type == FrameType::kApplied) {
      peer_done_ = true;
    } else {
      if (!busy_) Begin();
      received_ += payload.size();
      if (received_ == bytes_) {
        FrameHeader applied;
        applied.type = FrameType::kApplied;
        endpoint_->Send(link, applied, {}, 0);
      }
    }
    if (busy_ && peer_done_ && received_ == bytes_) {
      busy_ = false;
      if (!forever_) loop_->Stop();
    }
  }
  void OnSent(LinkId, uint64_t) override {}
  void OnSlotClosed(LinkId, SlotId) override {}
  void OnWritable(LinkId) override { Fill(); }

 private:
  void Begin() {
    busy_ = true;
    peer_done_ = false;
    received_ = offset_ = 0;
    Fill();
  }
  void Fill() {
    while (offset_ < bytes_ && endpoint_->Writable(link_)) {
      FrameHeader header;
      header.type = FrameType::kPush;
      header.total_bytes = bytes_;
      header.stripe_offset = offset_;
      header.slot = peer_slot_;
      const size_t n = std::min(stripe_, bytes_ - offset_);
      header.payload_bytes = static_cast<uint32_t>(n);
      endpoint_->Send(link_, header, {out_.get() + offset_, n}, 1 + offset_);
      offset_ += n;
    }
  }

  const size_t bytes_, stripe_;
  const SteadyClock clock_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<TcpEndpoint> endpoint_;
  std::shared_ptr<std::byte> out_, in_;
  LinkId link_ = 0;
  SlotId peer_slot_ = 0;
  bool forever_ = false, busy_ = false, peer_done_ = false;
  size_t received_ = 0, offset_ = 0;
};

TcpDuplex::TcpDuplex(size_t bytes, size_t stripe, bool hash, size_t socket_buffer) {
  int ports[2];
  if (pipe(ports) != 0) std::exit(1);
  child_ = fork();
  if (child_ == 0) {
    Side side(bytes, stripe, hash, socket_buffer);
    const uint32_t port = side.port();
    if (write(ports[1], &port, sizeof(port)) != sizeof(port)) std::_Exit(1);
    side.RunForever();
    std::_Exit(0);
  }
  side_ = std::make_unique<Side>(bytes, stripe, hash, socket_buffer);
  uint32_t port = 0;
  if (read(ports[0], &port, sizeof(port)) != sizeof(port)) std::exit(1);
  close(ports[0]);
  close(ports[1]);
  side_->Connect(port);
  side_->RunUntilReady();
}

TcpDuplex::~TcpDuplex() {
  side_.reset();
  waitpid(child_, nullptr, 0);
}

double TcpDuplex::Exchange() {
  const auto begin = std::chrono::steady_clock::now();
  side_->Exchange();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace sluice::bench
