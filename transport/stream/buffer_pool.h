// A receiver's memory for pushes in flight: counts bytes, and keeps freed buffers so that a push does not pay for fresh
// pages. What is handed out gives itself back when its last owner drops it, also after the pool's own end.
//
// The count is of message bytes. Buffers are rounded up to pages and then to a quarter of a power of two, so that
// messages of similar sizes share them; freed ones are kept only while all of them fit the pool's bytes together.
// Single-threaded: owners drop on the thread of the loop.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/transport.h"

namespace sluice::transport {

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  // limit: all of it; reserve: the part that only urgent takers get.
  static std::shared_ptr<BufferPool> Create(Endpoint* endpoint, size_t limit, size_t reserve);

  bool Fits(size_t bytes, bool urgent) const;

  // Memory of at least `bytes` (which may be dirty), counted until it is dropped. The caller has asked Fits.
  absl::StatusOr<std::shared_ptr<std::byte>> Take(size_t bytes);

  // The same payload, counted until it is dropped; its memory stays the transport's.
  Payload Charge(Payload payload);

  size_t used() const { return used_; }
  size_t peak() const { return peak_; }
  size_t kept() const { return kept_; }  // bytes of free buffers

 private:
  BufferPool(Endpoint* endpoint, size_t limit, size_t reserve)
      : endpoint_(endpoint), limit_(limit), reserve_(reserve) {}

  void Count(size_t bytes);
  void Discount(size_t bytes) { used_ -= bytes; }
  void Keep(std::shared_ptr<std::byte> buffer, size_t size);

  Endpoint* const endpoint_;
  const size_t limit_, reserve_;
  size_t used_ = 0, peak_ = 0;
  size_t lent_ = 0, kept_ = 0;  // bytes of buffers out and free
  std::map<size_t, std::vector<std::shared_ptr<std::byte>>> free_;  // by size of the buffer
};

}  // namespace sluice::transport
