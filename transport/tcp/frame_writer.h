// One connection's outgoing frames: a queue, and gather writes of headers and lent payloads (never copied here).
//
// A payload is hashed when its frame reaches the socket, not when it is queued, so that the kernel's copy finds it in the
// cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/wire.h"

namespace sluice::transport {

class FrameWriter {
 public:
  explicit FrameWriter(bool hash) : hash_(hash) {}

  // cookie 0: the payload is copied now. Else it is read until the cookie comes out of Write or TakeCookies.
  void Add(FrameHeader header, ConstBytes payload, uint64_t cookie);
  // A small frame (its payload is copied) that goes ahead of all others, but not into the middle of one.
  void AddUrgent(FrameHeader header, ConstBytes payload = {});

  // Writes until the socket takes no more, about `budget` bytes are out, or the queue is empty. Appends the cookies of
  // frames that are out to *done. Returns the bytes written; blocked() says whether the socket was full.
  absl::StatusOr<size_t> Write(int fd, size_t budget, std::vector<uint64_t>* done);
  bool blocked() const { return blocked_; }

  bool empty() const { return queue_.empty(); }
  bool between_frames() const { return queue_.empty() || queue_.front().sent == 0; }
  size_t queued_bytes() const { return queued_bytes_; }
  // The payload with this cookie is read no more from now on: what has not been written is copied. Its cookie does not come out.
  void TakeBack(uint64_t cookie);
  // Gives up: empties the queue, and appends the cookies of all of it.
  void TakeCookies(std::vector<uint64_t>* done);

  uint64_t frames() const { return frames_; }
  uint64_t payload_bytes() const { return payload_total_; }

 private:
  static constexpr int kMaxParts = 128;
  static constexpr size_t kChunk = 256 << 10;

  struct Frame {
    FrameHeader header;
    std::byte encoded[kHeaderBytes];
    std::vector<std::byte> copy;
    ConstBytes payload;
    uint64_t cookie = 0;
    size_t sent = 0;      // of header and payload
    bool ready = false;   // encoded holds the header
  };

  void Encode(Frame& frame);

  const bool hash_;
  std::deque<Frame> queue_;
  size_t queued_bytes_ = 0;  // not written yet
  bool blocked_ = false;
  uint64_t frames_ = 0;
  uint64_t payload_total_ = 0;
};

}  // namespace sluice::transport
