// An Endpoint for tests that does nothing by itself: it writes down what is sent, and the test plays the peer.
#pragma once

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace sluice::transport {

class FakeEndpoint final : public Endpoint {
 public:
  struct Sent {
    LinkId link;
    FrameHeader header;
    std::string payload;  // as it was at Send
    uint64_t cookie;
    bool in_batch = false;
  };

  void SetHandler(Handler*) override {}
  LinkId Connect(const Address&, const Hello&) override { return 0; }
  void Send(LinkId link, const FrameHeader& header, ConstBytes payload, uint64_t cookie) override {
    if (header.payload_bytes != payload.size()) ++size_errors;
    if (header.type == FrameType::kBatch) {
      ++batches;
      const absl::Status status = ForEachInBatch(header, payload, [&](const FrameHeader& inner, ConstBytes bytes) {
        sent.push_back({link, inner, ToString(bytes), 0, true});
      });
      if (!status.ok()) ++size_errors;
      if (cookie != 0) batch_cookies.push_back(cookie);
    } else {
      sent.push_back({link, header, ToString(payload), cookie});
    }
    if (room > 0) --room;
  }
  bool Writable(LinkId) const override { return room > 0; }
  void Close(LinkId link, const absl::Status& reason) override { closed[link] = reason; }
  SlotId OpenSlot(LinkId link, MutableBytes memory) override {
    slots[next_slot] = {link, memory};
    return next_slot++;
  }
  bool CloseSlot(LinkId, SlotId slot) override {
    if (busy_slots.contains(slot)) return false;
    slots.erase(slot);
    return true;
  }
  bool ByReference(LinkId, ConstBytes payload) const override { return by_reference && !payload.empty(); }
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes) override {
    if (fail_allocate) return absl::ResourceExhaustedError("no memory");
    ++allocations;
    return std::shared_ptr<std::byte>(new std::byte[bytes](), std::default_delete<std::byte[]>());
  }
  LinkStats Stats(LinkId) const override { return {}; }
  const EndpointLimits& limits() const override { return limits_; }

  // What was sent since the last call.
  std::vector<Sent> Take() { return std::exchange(sent, {}); }

  // A frame into a slot, as a transport would place it; the payload to hand on.
  Payload Write(const FrameHeader& header, ConstBytes bytes) {
    const MutableBytes memory = slots.at(header.slot).second.subspan(header.stripe_offset, bytes.size());
    std::memcpy(memory.data(), bytes.data(), bytes.size());
    return Payload(memory, nullptr);
  }

  static std::string ToString(ConstBytes bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::vector<Sent> sent;
  std::vector<uint64_t> batch_cookies;
  std::map<SlotId, std::pair<LinkId, MutableBytes>> slots;
  std::set<SlotId> busy_slots;  // CloseSlot finds the peer in the middle
  std::map<LinkId, absl::Status> closed;
  SlotId next_slot = 100;
  int room = 1 << 30;           // frames until Writable is false
  int batches = 0, size_errors = 0, allocations = 0;
  bool by_reference = false, fail_allocate = false;
  EndpointLimits limits_;
};

}  // namespace sluice::transport
