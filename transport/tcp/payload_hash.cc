#include "transport/tcp/payload_hash.h"

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace sluice::transport {

struct PayloadHasher::State {
  XXH3_state_t xxh;  // aligned to 64 by its own attribute
};

uint64_t HashPayload(ConstBytes bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

PayloadHasher::PayloadHasher() : state_(std::make_unique<State>()) { Reset(); }
PayloadHasher::~PayloadHasher() = default;

void PayloadHasher::Reset() { XXH3_64bits_reset(&state_->xxh); }
void PayloadHasher::Update(ConstBytes bytes) { XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size()); }
uint64_t PayloadHasher::Digest() const { return XXH3_64bits_digest(&state_->xxh); }

}  // namespace sluice::transport
