// A copy for readers elsewhere: large values that the copying core does not touch again.
#pragma once

#include "base/bytes.h"

namespace sluice {

// Copies `from` to `to` (same size, no overlap). From 256 KiB on it writes past the cache: an ordinary store first reads the
// line that it is about to overwrite, a third of a copy's memory traffic, and evicts what the core works on. Each byte of
// `from` is loaded once (a peer may be writing it). Stores are visible, in order, to whoever synchronizes with this thread.
void StreamCopy(ConstBytes from, MutableBytes to);

// For what is made piece by piece in a buffer that stays in the first-level cache: one piece past the cache, whatever its
// size. StreamFence() once after the last piece, before anyone else looks.
void StreamPiece(ConstBytes from, MutableBytes to);
void StreamFence();

}  // namespace sluice
