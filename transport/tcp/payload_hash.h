// XXH3-64 of a payload, in one go or piece by piece while each piece is still in the cache. The same function as
// HashBytes of transport/wire.h; compiled in with the vector width of the build, where Debian's library has SSE2 only.
#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"

namespace sluice::transport {

uint64_t HashPayload(ConstBytes bytes);

class PayloadHasher {
 public:
  PayloadHasher();
  ~PayloadHasher();
  PayloadHasher(const PayloadHasher&) = delete;
  PayloadHasher& operator=(const PayloadHasher&) = delete;

  void Reset();
  void Update(ConstBytes bytes);
  uint64_t Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::transport
