#include "transport/stream/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace sluice::transport {
namespace {

constexpr size_t kPage = 4096;

size_t BufferSize(size_t bytes) {
  const size_t pages = std::max<size_t>(kPage, bytes);
  const size_t step = std::max<size_t>(kPage, std::bit_floor(pages) / 4);
  return (pages + step - 1) / step * step;
}

}  // namespace

std::shared_ptr<BufferPool> BufferPool::Create(Endpoint* endpoint, size_t limit, size_t reserve) {
  return std::shared_ptr<BufferPool>(new BufferPool(endpoint, limit, std::min(reserve, limit)));
}

bool BufferPool::Fits(size_t bytes, bool urgent) const {
  const size_t limit = urgent ? limit_ : limit_ - reserve_;
  return bytes == 0 || (used_ <= limit && bytes <= limit - used_);
}

void BufferPool::Count(size_t bytes) {
  used_ += bytes;
  peak_ = std::max(peak_, used_);
}

absl::StatusOr<std::shared_ptr<std::byte>> BufferPool::Take(size_t bytes) {
  const size_t size = BufferSize(bytes);
  std::shared_ptr<std::byte> buffer;
  if (const auto it = free_.find(size); it != free_.end()) {
    buffer = std::move(it->second.back());
    it->second.pop_back();
    if (it->second.empty()) free_.erase(it);
    kept_ -= size;
  } else {
    // Sizes have changed: let free buffers of other sizes go, the largest first, before fresh memory is asked for.
    while (kept_ > 0 && lent_ + kept_ + size > limit_) {
      const auto largest = std::prev(free_.end());
      kept_ -= largest->first;
      largest->second.pop_back();
      if (largest->second.empty()) free_.erase(largest);
    }
    absl::StatusOr<std::shared_ptr<std::byte>> fresh = endpoint_->Allocate(size);
    if (!fresh.ok()) return fresh.status();
    buffer = *std::move(fresh);
  }
  lent_ += size;
  Count(bytes);
  std::byte* const data = buffer.get();
  return std::shared_ptr<std::byte>(
      data, [pool = shared_from_this(), buffer = std::move(buffer), bytes, size](std::byte*) mutable {
        pool->Discount(bytes);
        pool->lent_ -= size;
        pool->Keep(std::move(buffer), size);
      });
}

void BufferPool::Keep(std::shared_ptr<std::byte> buffer, size_t size) {
  if (lent_ + kept_ + size > limit_) return;
  free_[size].push_back(std::move(buffer));
  kept_ += size;
}

Payload BufferPool::Charge(Payload payload) {
  struct Charged {
    Charged(std::shared_ptr<BufferPool> pool, Payload payload) : pool(std::move(pool)), payload(std::move(payload)) {
      this->pool->Count(this->payload.size());
    }
    ~Charged() { pool->Discount(payload.size()); }
    const std::shared_ptr<BufferPool> pool;
    const Payload payload;
  };
  const ConstBytes bytes = payload.bytes();
  return Payload(bytes, std::make_shared<const Charged>(shared_from_this(), std::move(payload)));
}

}  // namespace sluice::transport
