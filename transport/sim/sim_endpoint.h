// An Endpoint on a SimNetwork.
//
// What it is strict about, so that a caller who is wrong is found out: a lent payload is read either when it is sent or
// at the last moment before OnSent, by the seed, and OnSent says nothing about arrival; slots are written at delivery; a
// closed slot drops its frames; every frame's header passes EncodeHeader and DecodeHeader.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "transport/sim/sim_network.h"
#include "transport/transport.h"

namespace sluice::transport {

class SimEndpoint final : public Endpoint {
 public:
  ~SimEndpoint() override;  // as a crash of this endpoint alone

  // Connects are accepted from now on; `self` is what a connector's OnUp gets. accept may refuse a peer.
  void Listen(Hello self, std::function<absl::Status(const Hello&)> accept = nullptr);
  Address address() const;
  const std::string& name() const { return name_; }
  size_t open_slots() const { return slots_.size(); }
  size_t lent() const;  // cookies whose OnSent has not come

  void SetHandler(Handler* handler) override { handler_ = handler; }
  LinkId Connect(const Address& address, const Hello& self) override;
  void Send(LinkId link, const FrameHeader& header, ConstBytes payload, uint64_t cookie) override;
  bool Writable(LinkId link) const override;
  void Close(LinkId link, const absl::Status& reason) override;
  SlotId OpenSlot(LinkId link, MutableBytes memory) override;
  bool CloseSlot(LinkId link, SlotId slot) override;
  bool ByReference(LinkId link, ConstBytes payload) const override;
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes) override;
  LinkStats Stats(LinkId link) const override;
  const EndpointLimits& limits() const override { return limits_; }

 private:
  friend class SimNetwork;
  struct Connection;
  struct Frame;
  struct End;
  struct Slot {
    LinkId link = 0;
    MutableBytes memory;
    int writing = 0;       // frames in the middle
    bool closing = false;
  };

  SimEndpoint(SimNetwork* network, std::string name, EndpointLimits limits);

  std::shared_ptr<Connection> Find(LinkId link, int* side) const;
  void Accept(const std::shared_ptr<Connection>& connection, const std::string& host);
  void Deliver(const std::shared_ptr<Connection>& connection, int to, const std::shared_ptr<Frame>& frame,
               const std::shared_ptr<const void>& owner);
  void FinishSlow(const std::shared_ptr<Connection>& connection, int to, const std::shared_ptr<Frame>& frame);
  void Sent(const std::shared_ptr<Connection>& connection, int from, const std::shared_ptr<Frame>& frame);
  static void Break(SimNetwork* network, const std::shared_ptr<Connection>& connection, const absl::Status& first,
                    const absl::Status& second);
  static void Down(const std::shared_ptr<Connection>& connection, int side, const absl::Status& reason);
  void Die();

  SimNetwork* const network_;
  const std::string name_;
  const EndpointLimits limits_;
  Handler* handler_ = nullptr;
  std::shared_ptr<const bool> alive_ = std::make_shared<bool>(true);  // null: crashed
  bool listening_ = false;
  Hello self_;
  std::function<absl::Status(const Hello&)> accept_;
  std::map<LinkId, std::pair<std::shared_ptr<Connection>, int>> links_;  // and which side is ours
  std::map<SlotId, Slot> slots_;
  LinkId next_link_ = 1;
  SlotId next_slot_ = 1;
};

}  // namespace sluice::transport
