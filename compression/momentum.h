// Momentum correction and momentum factor masking for codecs that send a part now and the rest later (Deep Gradient
// Compression, Lin et al. 2018, sections 3.1 and 3.2; algorithm 4 of its appendix).
//
// With momentum at the optimizer, a gradient that waits in the residual misses the rounds that it waits for. So the worker
// keeps the velocity, and its sum is what waits:
//   u' = m u + g                      u: the velocity, this codec's state
//   p  = u' + scale e                 what is encoded; e is the residual, as with every codec
//   u'[i] = 0 where element i was sent (sparse codecs only): what was delayed must not go on by its own momentum
// The optimizer at the servers then has no momentum of its own. A codec that sends all elements masks nothing: its sum over
// the workers is momentum as the optimizer would have it.
//
// "Sent" means that the element's residual is not p itself: a value that is rounded to zero was not.
#pragma once

#include <memory>

#include "compression/codec.h"

namespace sluice::compression {

// momentum: between 0 and 1. Same bytes on the wire as `inner`'s, so its decoders serve. State: velocity, then inner's.
std::unique_ptr<Codec> MakeMomentumCorrected(std::unique_ptr<Codec> inner, float momentum);

}  // namespace sluice::compression
