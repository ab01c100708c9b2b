// libFuzzer's entry: a peer that was let in and then writes what it likes into its outbox. The input is a sequence of
// descriptors; each frame header's magic, version and check are made right, so that what lies behind them is reached.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "transport/hello.h"
#include "transport/shm/outbox.h"
#include "transport/shm/packet_socket.h"
#include "transport/shm/shm_endpoint.h"

namespace sluice::transport {
namespace {

constexpr size_t kRecord = 8 + sizeof(Descriptor);
constexpr uint32_t kEntries = 16;

class Toucher : public Handler {
 public:
  void OnUp(LinkId link, const Hello&) override { up = link; }
  void OnDown(LinkId, const absl::Status&) override { down = true; }
  void OnFrame(LinkId, const FrameHeader& header, Payload payload) override {
    if (payload.size() != header.payload_bytes) __builtin_trap();
    for (const std::byte b : payload.bytes()) sum = sum + std::to_integer<uint64_t>(b);
    held.push_back(std::move(payload));
  }
  void OnSent(LinkId, uint64_t) override {}
  void OnSlotClosed(LinkId, SlotId) override {}
  void OnWritable(LinkId) override {}

  LinkId up = 0;
  bool down = false;
  volatile uint64_t sum = 0;
  std::vector<Payload> held;
};

struct Victim {
  std::unique_ptr<Loop> loop = *Loop::Create();
  std::unique_ptr<ShmEndpoint> endpoint;
  std::unique_ptr<Toucher> handler;
  UniqueFd slab = *CreateSealedMemory("fuzz", 8192);

  // Until done() or, what must not be, for ever.
  template <typename Done>
  void Run(Done done) {
    std::function<void()> look = [&] {
      if (done()) {
        loop->Stop();
      } else {
        loop->After(0, look);
      }
    };
    loop->After(0, look);
    loop->Run();
  }
};

void Send(int fd, FrameHeader header, ConstBytes payload, int file) {
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.total_bytes = payload.size();
  std::vector<std::byte> packet(kHeaderBytes + payload.size());
  EncodeHeader(header, packet.data());
  std::copy(payload.begin(), payload.end(), packet.begin() + kHeaderBytes);
  SendPacket(fd, packet, file).IgnoreError();
}

}  // namespace
}  // namespace sluice::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;             // NOLINT
  using namespace sluice::transport;  // NOLINT
  static Victim* const victim = new Victim;
  victim->endpoint = *ShmEndpoint::Create(victim->loop.get(), {.self = {.role = PeerRole::kServer}});
  victim->handler = std::make_unique<Toucher>();
  Toucher& handler = *victim->handler;
  victim->endpoint->SetHandler(&handler);

  UniqueFd socket = *ConnectPackets(victim->endpoint->local_address().unix_socket);
  Outbox own = *Outbox::Create({.ring_entries = kEntries, .slots = 4, .arena_bytes = 8192});
  Send(socket.get(), {.type = FrameType::kHello}, EncodeHello({.role = PeerRole::kWorker}), own.file());
  victim->Run([&] { return handler.up != 0; });
  Send(socket.get(), {.type = FrameType::kTransport, .aux = static_cast<uint32_t>(SocketMessage::kSlab), .aux64 = 1},
       {}, victim->slab.get());
  std::byte slot_memory[1000];
  const SlotId slot = victim->endpoint->OpenSlot(handler.up, slot_memory);

  uint64_t tail = 0;
  for (size_t at = 0; at + kRecord <= size && tail < kEntries; at += kRecord) {
    const uint8_t flags = data[at];
    Descriptor descriptor;
    std::memcpy(&descriptor, data + at + 8, sizeof(descriptor));
    descriptor.kind %= 7;
    if ((flags & 1) != 0) descriptor.slab = 1;
    if ((flags & 2) != 0) descriptor.position %= 8192;
    if ((flags & 4) != 0) StoreLe<uint32_t>(descriptor.header + 64, descriptor.bytes);  // payload_bytes
    if ((flags & 8) != 0) StoreLe<uint64_t>(descriptor.header + 72, slot);
    if ((flags & 16) == 0) {  // the stripe is the whole message
      StoreLe<uint64_t>(descriptor.header + 48, LoadLe<uint32_t>(descriptor.header + 64));
      StoreLe<uint64_t>(descriptor.header + 56, 0);
    }
    if ((flags & 32) == 0) descriptor.header[5] = static_cast<std::byte>(FrameType::kPush);
    StoreLe<uint32_t>(descriptor.header, kMagic);
    descriptor.header[4] = std::byte{kWireVersion};
    StoreLe<uint64_t>(descriptor.header + 120, HashBytes({descriptor.header, 120}));
    std::memcpy(own.entry(tail++), &descriptor, sizeof(descriptor));
  }
  own.producer().tail.store(size % kRecord == 1 ? data[size - 1] : tail);
  const std::byte wake{1};
  SendPacket(socket.get(), {&wake, 1}).IgnoreError();
  socket.reset();
  victim->Run([&] { return handler.down; });
  handler.held.clear();
  victim->endpoint.reset();
  return 0;
}
