// An Endpoint without a network: keeps what was sent, and does nothing by itself. Tests play the peers.
#pragma once

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace sluice::server {

struct SentFrame {
  transport::FrameHeader header;
  std::vector<std::byte> payload;

  std::vector<float> Floats() const {
    std::vector<float> values(payload.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), payload.data(), values.size() * sizeof(float));
    return values;
  }
  std::string Text() const { return std::string(reinterpret_cast<const char*>(payload.data()), payload.size()); }
};

class FakeEndpoint final : public transport::Endpoint {
 public:
  using LinkId = transport::LinkId;
  using SlotId = transport::SlotId;

  void SetHandler(transport::Handler* handler) override { handler_ = handler; }
  LinkId Connect(const transport::Address& address, const transport::Hello& self) override {
    connects.push_back({next_link, address, self});
    return next_link++;
  }
  void Send(LinkId link, const transport::FrameHeader& header, ConstBytes payload, uint64_t cookie) override {
    if (header.type == transport::FrameType::kBatch) {
      (void)transport::ForEachInBatch(header, payload, [&](const transport::FrameHeader& inner, ConstBytes bytes) {
        sent[link].push_back({inner, {bytes.begin(), bytes.end()}});
      });
    } else {
      sent[link].push_back({header, {payload.begin(), payload.end()}});
    }
    if (cookie != 0) lent.push_back({link, cookie});
  }
  bool Writable(LinkId) const override { return true; }
  void Close(LinkId link, const absl::Status& reason) override { closed[link] = reason; }
  SlotId OpenSlot(LinkId, MutableBytes memory) override {
    slots[next_slot] = memory;
    return next_slot++;
  }
  bool CloseSlot(LinkId, SlotId slot) override {
    slots.erase(slot);
    return true;
  }
  bool ByReference(LinkId, ConstBytes) const override { return by_reference; }
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes) override {
    std::shared_ptr<std::byte> memory(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)),
                                      [](std::byte* p) { std::free(p); });
    std::memset(memory.get(), 0, bytes);
    return memory;
  }
  transport::LinkStats Stats(LinkId) const override { return {}; }
  const transport::EndpointLimits& limits() const override { return limits_; }

  // What was sent on this link since the last call.
  std::vector<SentFrame> Take(LinkId link) { return std::exchange(sent[link], {}); }
  // Lets go of everything that was lent.
  void ReleaseAll() {
    for (const auto& [link, cookie] : std::exchange(lent, {})) handler_->OnSent(link, cookie);
  }

  struct Connected {
    LinkId link;
    transport::Address address;
    transport::Hello self;
  };
  std::vector<Connected> connects;
  std::map<LinkId, std::vector<SentFrame>> sent;
  std::vector<std::pair<LinkId, uint64_t>> lent;
  std::map<LinkId, absl::Status> closed;
  std::map<SlotId, MutableBytes> slots;
  bool by_reference = false;
  LinkId next_link = 1000;
  SlotId next_slot = 1;

 private:
  transport::Handler* handler_ = nullptr;
  transport::EndpointLimits limits_;
};

}  // namespace sluice::server
