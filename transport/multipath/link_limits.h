// What each side of a multipath link may make the other keep. The sender's limits are well below the receiver's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace sluice::transport::multipath {

inline constexpr TimeNs kAnswerWithin = 30 * kSecond;       // of a peer whose base connection lives
inline constexpr uint32_t kCreditStep = 16;                 // receives posted before the peer is told
inline constexpr size_t kMostChunksOfFrame = 1024;          // a larger frame has larger chunks
inline constexpr uint64_t kMostHeldByPeer = 8 << 20;        // payload and headers behind a frame that waits for chunks
inline constexpr size_t kMostAhead = 2 << 20;               // bytes of chunks that are announced and wait for a path
inline constexpr size_t kMostHeldBytes = 32 << 20;          // the receiver's bound for the same
inline constexpr size_t kMostHeldFrames = 1 << 18;
inline constexpr size_t kMostEarlyPackets = 1 << 10;        // a path has 64 in doubt at most
inline constexpr size_t kMostEarlyTags = 1 << 16;
inline constexpr size_t kMostEarlyLosses = 1 << 12;
inline constexpr size_t kMostRemoteSlots = 1 << 16;
inline constexpr size_t kMostAnswersOwed = 1 << 12;         // to a peer that closes slots and reads nothing
inline constexpr size_t kMostAnnouncedTags = 1 << 14;

}  // namespace sluice::transport::multipath
