// One TCP connection from the first byte to the last: handshake, frames, slots, pings. It decides; its owner (the
// endpoint) watches the socket, calls the handler and keeps the table of links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "transport/tcp/frame_reader.h"
#include "transport/tcp/frame_writer.h"
#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_endpoint.h"
#include "transport/transport.h"

namespace sluice::transport {

class TcpLink final : public FrameReader::Sink {
 public:
  enum class State {
    kConnecting,  // connector: name or TCP handshake under way
    kGreeting,    // connector: WELCOME awaited; acceptor: HELLO awaited
    kUp,
    kDown,        // kept until the handler has heard of it
  };

  class Owner {
   public:
    virtual ~Owner() = default;
    virtual absl::Status Admit(const Hello& peer) = 0;      // acceptor only
    virtual void LinkUp(TcpLink& link) = 0;                 // both sides know each other now
    virtual void LinkFrame(TcpLink& link, const FrameHeader& header, Payload payload) = 0;
    virtual void LinkTransportFrame(TcpLink& link, const FrameHeader& header, Payload payload) = 0;
    virtual void LinkHasOutput(TcpLink& link) = 0;          // there is something to write
  };

  TcpLink(LinkId id, bool acceptor, const TcpOptions& options, const Clock* clock, Owner* owner);

  // The TCP connection is there. A connector says HELLO.
  void Start(UniqueFd fd, std::string peer_address);
  void SetSelf(const Hello& self) { self_ = self; }

  // An error means that the link cannot go on. After each call that may have called back: look at state().
  absl::StatusOr<bool> Read(MutableBytes staging, size_t budget);   // true: the budget was used up
  absl::Status Write(size_t budget, std::vector<uint64_t>* done);
  void Send(const FrameHeader& header, ConstBytes payload, uint64_t cookie);

  void OpenSlot(SlotId slot, MutableBytes memory) { slots_[slot] = memory; }
  void CloseSlot(SlotId slot);

  // PING if it is time to; an error if the peer has been silent for too long, or did not finish the handshake in time
  // (connect_error: what is known of why).
  absl::Status Tick(TimeNs now, const absl::Status& connect_error);

  // The end. Cookies that are still lent are appended to *done. tell: the peer gets the reason, if it can be told.
  // Returns the socket, so that the owner may linger on it until the peer has read what was sent.
  UniqueFd Down(const absl::Status& reason, bool tell, std::vector<uint64_t>* done);

  LinkId id() const { return id_; }
  State state() const { return state_; }
  bool acceptor() const { return acceptor_; }
  int fd() const { return fd_.get(); }
  const Hello& peer() const { return peer_; }
  FrameWriter& writer() { return writer_; }
  LinkStats Stats() const;
  // `what` with who, where and since when: "link to worker 3 (a:71) at 10.0.0.1:5000, up for 3s: <what>".
  absl::Status Explain(const absl::Status& what) const;
  void set_peer_address(std::string text) { peer_address_ = std::move(text); }

  // The owner's book-keeping.
  bool dirty = false;          // in the owner's list of links with output
  bool was_full = false;       // Writable() was false since the last OnWritable
  uint32_t watched = 0;        // epoll events asked for

 private:
  absl::StatusOr<std::byte*> OnHeader(const FrameHeader& header) override;
  bool OnPayload(const FrameHeader& header) override;
  void OnDropped(const FrameHeader& header) override;

  absl::Status CheckHandshake(const FrameHeader& header) const;
  absl::Status CheckPreamble() const;
  void FinishHandshake(const FrameHeader& header);
  void TransportFrame(const FrameHeader& header);
  ConstBytes payload_bytes(const FrameHeader& header) const;

  const LinkId id_;
  const bool acceptor_;
  const TcpOptions& options_;
  const Clock* const clock_;
  Owner* const owner_;
  const TimeNs created_;

  State state_ = State::kConnecting;
  UniqueFd fd_;
  Hello self_;
  Hello peer_;
  std::string peer_address_;
  FrameReader reader_;
  FrameWriter writer_;
  std::unordered_map<SlotId, MutableBytes> slots_;

  // The payload in progress: in a slot of the handler's, or in a buffer of ours.
  SlotId target_slot_ = 0;
  std::byte* target_ = nullptr;
  std::shared_ptr<std::byte[]> buffer_;

  absl::Status refusal_;       // what a callback of the reader found; Read returns it
  TimeNs up_since_ = 0;
  TimeNs last_heard_ = 0;
  TimeNs last_ping_ = 0;
  uint64_t bytes_in_ = 0, bytes_out_ = 0;
};

}  // namespace sluice::transport
