// A handler that writes down what it is told, and fails the test where the contract of transport.h is broken.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "transport/transport.h"

namespace sluice::transport::conformance {

class Recorder : public Handler {
 public:
  struct Frame {
    LinkId link;
    FrameHeader header;
    std::vector<std::byte> bytes;  // as they were on arrival
    Payload payload;               // held only with keep_payloads
  };

  void OnUp(LinkId link, const Hello& peer) override {
    Enter(link);
    EXPECT_TRUE(up.emplace(link, peer).second) << "OnUp twice for link " << link;
    EXPECT_NE(peer.role, PeerRole::kUnknown);
    order.push_back(link);
    if (on_up) on_up(link, peer);
    Leave();
  }
  void OnDown(LinkId link, const absl::Status& reason) override {
    Enter(link);
    EXPECT_FALSE(reason.ok());
    EXPECT_TRUE(lent[link].empty()) << "OnDown of link " << link << " before OnSent of all that was lent to it";
    down.emplace(link, reason);
    Leave();
    if (on_down) on_down(link, reason);
  }
  void OnFrame(LinkId link, const FrameHeader& header, Payload payload) override {
    Enter(link);
    EXPECT_TRUE(up.contains(link)) << "a frame before OnUp";
    EXPECT_EQ(header.payload_bytes, payload.size());
    std::vector<std::byte> bytes(payload.bytes().begin(), payload.bytes().end());
    if (!keep_payloads) payload = Payload();
    frames.push_back({link, header, std::move(bytes), Payload()});
    frames.back().payload = std::move(payload);
    if (on_frame) on_frame(frames.back());
    Leave();
  }
  void OnSent(LinkId link, uint64_t cookie) override {
    Enter(link);
    sent.push_back(cookie);
    EXPECT_EQ(lent[link].erase(cookie), 1u) << "OnSent of a cookie that is not lent: " << cookie;
    if (on_sent) on_sent(link, cookie);
    Leave();
  }
  void OnSlotClosed(LinkId link, SlotId slot) override {
    Enter(link);
    closed_slots.insert(slot);
    if (on_slot_closed) on_slot_closed(link, slot);
    Leave();
  }
  void OnWritable(LinkId link) override {
    Enter(link);
    ++writable[link];
    if (on_writable) on_writable(link);
    Leave();
  }

  // Sends with a cookie of its own, which the recorder then expects back exactly once.
  void Lend(Endpoint* endpoint, LinkId link, const FrameHeader& header, ConstBytes payload, uint64_t cookie) {
    EXPECT_TRUE(lent[link].insert(cookie).second);
    const Call call(this);
    endpoint->Send(link, header, payload, cookie);
  }

  // A call into the endpoint under way: no callback may come meanwhile.
  class Call {
   public:
    explicit Call(Recorder* recorder) : recorder_(recorder) { ++recorder_->calls_; }
    ~Call() { --recorder_->calls_; }

   private:
    Recorder* const recorder_;
  };

  bool keep_payloads = false;
  std::function<void(LinkId, const Hello&)> on_up;
  std::function<void(LinkId, const absl::Status&)> on_down;
  std::function<void(Frame&)> on_frame;
  std::function<void(LinkId, uint64_t)> on_sent;
  std::function<void(LinkId, SlotId)> on_slot_closed;
  std::function<void(LinkId)> on_writable;

  std::map<LinkId, Hello> up;
  std::vector<LinkId> order;  // of OnUp
  std::map<LinkId, absl::Status> down;
  std::vector<Frame> frames;
  std::vector<uint64_t> sent;
  std::map<LinkId, std::set<uint64_t>> lent;
  std::set<SlotId> closed_slots;
  std::map<LinkId, int> writable;

 private:
  void Enter(LinkId link) {
    EXPECT_EQ(calls_, 0) << "a callback from inside a call";
    EXPECT_FALSE(in_callback_) << "a callback from inside a callback";
    EXPECT_FALSE(down.contains(link)) << "a callback of link " << link << " after its OnDown";
    in_callback_ = true;
  }
  void Leave() { in_callback_ = false; }

  int calls_ = 0;
  bool in_callback_ = false;
};

}  // namespace sluice::transport::conformance
