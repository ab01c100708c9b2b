// libFuzzer: a peer that sends any packets and notices in any order to a link with slots, paths and frames under way. The
// link may refuse them; it must not crash, nor write outside its slots, nor keep more than its limits.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "transport/multipath/link.h"

namespace sluice::transport::multipath {
namespace {

class Nowhere final : public MultipathLink::Owner {
 public:
  size_t Room(PathId) override { return 16; }
  bool CanSendFrom(PathId, ConstBytes) override { return true; }
  void SendPacket(PathId, ConstBytes packet, uint64_t) override {
    if (packet.size() > kPacketBytes) abort();
  }
  void SendChunk(PathId path, const Chunk& chunk, uint64_t token) override {
    sum += chunk.payload.empty() ? 0 : static_cast<uint64_t>(chunk.payload.back());
    flying.push_back({path, token});
  }
  void TakeBack(PathId path, uint64_t) override {
    if (path == 1) abort();
  }
  uint32_t ReceivesPosted(PathId) override { return 64; }
  void BreakPath(PathId path, const absl::Status&) override { broken.push_back(path); }
  void Deliver(const FrameHeader& header, Payload payload) override {
    if (payload.size() != header.payload_bytes) abort();
    for (const std::byte b : payload.bytes()) sum += static_cast<uint64_t>(b);
  }
  void Sent(uint64_t cookie) override {
    if (cookie != 1) abort();
  }
  void SlotClosed(SlotId) override {}

  struct Flying {
    PathId path;
    uint64_t token;
  };
  std::vector<Flying> flying;
  std::vector<PathId> broken;
  uint64_t sum = 0;
};

}  // namespace
}  // namespace sluice::transport::multipath

// The first byte of each piece says what it is, the next two how long; lengths beyond the end take what is left.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  using namespace sluice::transport;
  using namespace sluice::transport::multipath;
  Nowhere owner;
  std::vector<std::byte> memory(1000), payload(20000);
  MultipathLink link(&owner, {.max_slotless_bytes = 10000}, 4096);
  TimeNs now = kSecond;
  link.PathUp(kBasePath, {.read_by_peer = true}, now);
  link.Begin();
  link.PathUp(1, {.tier = 1, .remote_group = 1, .credits = 8, .receives = 8}, now);
  link.PathUp(2, {.remote_group = 2, .packets = false, .read_by_peer = true}, now);
  link.OpenSlot(1, memory, {{.group = 1, .address = 4096, .key = 7}}, true);
  ConstBytes rest{reinterpret_cast<const std::byte*>(data), size};
  while (rest.size() >= 3) {
    const auto kind = static_cast<uint8_t>(rest[0]);
    const size_t bytes = std::min<size_t>(LoadLe<uint16_t>(rest.data() + 1), rest.size() - 3);
    const ConstBytes piece = rest.subspan(3, bytes);
    rest = rest.subspan(3 + bytes);
    now += kMillisecond;
    absl::Status status;
    switch (kind % 6) {
      case 0: status = link.OnPacket(kind / 6 % 3, piece); break;
      case 1:
        if (piece.size() >= 4) status = link.OnChunk(kind / 6 % 3, LoadLe<uint32_t>(piece.data()));
        break;
      case 2: {
        FrameHeader header;
        header.type = FrameType::kPush;
        header.slot = kind / 6 % 4;
        header.payload_bytes = header.total_bytes = bytes * 2;
        link.Send(header, ConstBytes(payload).first(std::min(payload.size(), bytes * 2)), 1);
        break;
      }
      case 3:
        if (!owner.flying.empty()) {
          link.Done(owner.flying.back().path, owner.flying.back().token, now);
          owner.flying.pop_back();
        }
        break;
      case 4: link.CloseSlot(1, now); break;
      default:
        for (const PathId path : owner.broken) link.PathLost(path, now);
        owner.broken.clear();
    }
    if (!status.ok()) break;
    link.Pump(now);
  }
  link.Finish();
  link.Stop();
  return 0;
}
