// Cuts one connection's byte stream into frames and brings each payload to where it belongs.
//
//   1. A read goes into a staging buffer that the endpoint's links share, so several small frames take one system call.
//   2. A header that is complete is decoded and shown to the sink, which names the payload's memory (a slot, a buffer, or
//      nowhere). What staging already holds of the payload is copied.
//   3. The rest of a large payload is read straight into that memory, at most kChunk a call, and each piece is hashed while
//      it is in the cache. The same call takes the next frame's header behind it, so that a run of stripes is never copied.
//   4. The sink gets the frame, if its hash is right. Back to 2.
// Between calls a reader keeps less than one header, and the memory that the sink named.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/tcp/payload_hash.h"
#include "transport/wire.h"

namespace sluice::transport {

class FrameReader {
 public:
  class Sink {
   public:
    virtual ~Sink() = default;
    // Where the payload of this frame goes: memory of at least header.payload_bytes, or null to drop the frame. Called
    // for frames without payload too. An error ends the link.
    virtual absl::StatusOr<std::byte*> OnHeader(const FrameHeader& header) = 0;
    // The payload lies where OnHeader said. False: read no further (the link was closed).
    virtual bool OnPayload(const FrameHeader& header) = 0;
    // A frame with a payload that went to nowhere is over.
    virtual void OnDropped(const FrameHeader&) {}
  };

  struct Progress {
    size_t bytes = 0;
    bool end = false;   // the peer has closed its side
    bool more = false;  // the budget was used up; there may be more to read at once
  };

  explicit FrameReader(Sink* sink) : sink_(sink) {}

  // Reads until the socket has nothing more, about `budget` bytes were read, or the sink says stop. staging is scratch.
  absl::StatusOr<Progress> Read(int fd, MutableBytes staging, size_t budget);

  // The payload that is being received goes to nowhere from now on, and its frame is dropped.
  void DropPayload() { target_ = nullptr; }
  bool in_payload() const { return remaining_ > 0; }
  const FrameHeader& header() const { return header_; }  // of the frame in progress
  // The beginning of a header that is not complete yet.
  ConstBytes partial_header() const { return {partial_, partial_bytes_}; }
  // "in the middle of a frame (10 of 20 payload bytes)", or "between frames": for errors.
  std::string Position() const;

  uint64_t frames() const { return frames_; }
  uint64_t payload_bytes() const { return payload_total_; }

 private:
  static constexpr size_t kChunk = 256 << 10;

  absl::StatusOr<bool> Parse(ConstBytes bytes);  // false: the sink said stop
  absl::StatusOr<bool> BeginPayload();
  absl::StatusOr<bool> EndFrame();
  void Landed(size_t bytes);  // `bytes` more have been written at target_

  Sink* const sink_;
  std::byte partial_[kHeaderBytes];
  size_t partial_bytes_ = 0;
  FrameHeader header_;
  std::byte* target_ = nullptr;  // where the next payload byte goes; null: nowhere
  size_t remaining_ = 0;         // payload bytes of the frame in progress that have not come
  PayloadHasher hasher_;
  uint64_t frames_ = 0;
  uint64_t payload_total_ = 0;
};

}  // namespace sluice::transport
