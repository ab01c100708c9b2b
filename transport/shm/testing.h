// Test helpers: a handler that writes down what it is told, and a loop that runs until something is so.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "transport/loop.h"
#include "transport/transport.h"

namespace sluice::transport::testing {

class Recorder : public Handler {
 public:
  struct Frame {
    LinkId link;
    FrameHeader header;
    std::vector<std::byte> bytes;  // a copy, at the time of arrival
    Payload payload;
  };

  void OnUp(LinkId link, const Hello& peer) override { up.emplace_back(link, peer); }
  void OnDown(LinkId link, const absl::Status& reason) override {
    EXPECT_TRUE(down.emplace(link, reason).second);
  }
  void OnFrame(LinkId link, const FrameHeader& header, Payload payload) override {
    EXPECT_FALSE(down.contains(link));
    std::vector<std::byte> bytes(payload.bytes().begin(), payload.bytes().end());
    if (!keep) payload = Payload();
    frames.push_back({link, header, std::move(bytes), std::move(payload)});
    if (on_frame) on_frame(frames.back());
  }
  void OnSent(LinkId link, uint64_t cookie) override {
    EXPECT_FALSE(down.contains(link));
    sent.push_back(cookie);
  }
  void OnSlotClosed(LinkId link, SlotId slot) override {
    EXPECT_FALSE(down.contains(link));
    slots_closed.push_back(slot);
  }
  void OnWritable(LinkId) override { ++writable; }

  bool keep = false;  // payloads
  std::function<void(Frame&)> on_frame;
  std::vector<std::pair<LinkId, Hello>> up;
  std::map<LinkId, absl::Status> down;
  std::vector<Frame> frames;
  std::vector<uint64_t> sent;
  std::vector<SlotId> slots_closed;
  int writable = 0;
};

// Runs the loop until done() holds after a turn; a test that never gets there fails after a while.
inline bool RunUntil(Loop& loop, std::function<bool()> done) {
  bool reached = false;
  auto poll = std::make_shared<std::function<void()>>();
  *poll = [&, poll_weak = std::weak_ptr(poll)] {
    if (done()) {
      reached = true;
      loop.Stop();
    } else if (auto self = poll_weak.lock()) {
      loop.After(0, *self);
    }
  };
  const uint64_t guard = loop.After(20 * kSecond, [&] { loop.Stop(); });
  loop.After(0, *poll);
  loop.Run();
  loop.CancelTimer(guard);
  poll.reset();
  return reached;
}

inline std::vector<std::byte> Pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    seed = seed * 1664525 + 1013904223;
    out[i] = static_cast<std::byte>(seed >> 24);
  }
  return out;
}

inline FrameHeader PushHeader(size_t bytes, uint64_t round = 0, SlotId slot = 0) {
  return {.type = FrameType::kPush, .round = round, .total_bytes = bytes,
          .payload_bytes = static_cast<uint32_t>(bytes), .slot = slot};
}

}  // namespace sluice::transport::testing
