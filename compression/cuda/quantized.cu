// int8 and int4, rounded to nearest or by draws: encode with error feedback, decode, decode and add.
#include "compression/cuda/levels.h"
#include "compression/cuda/rows.h"

namespace sluice::compression::cuda {

Error EncodeLevels(Format format, const Batch<EncodeTask>& batch, Stream stream) {
  switch (format) {
    case Format::kInt8: return LaunchEncode<Int8Format>(batch, stream);
    case Format::kInt8Stochastic: return LaunchEncode<Int8StochasticFormat>(batch, stream);
    case Format::kInt4: return LaunchEncode<Int4Format>(batch, stream);
    case Format::kInt4Stochastic: return LaunchEncode<Int4StochasticFormat>(batch, stream);
    default: return kInvalidValue;
  }
}

Error DecodeLevels(Format format, const Batch<DecodeTask>& batch, bool add, Stream stream) {
  switch (format) {
    case Format::kInt8:
    case Format::kInt8Stochastic: return LaunchDecode<Int8Format>(batch, add, stream);
    case Format::kInt4:
    case Format::kInt4Stochastic: return LaunchDecode<Int4Format>(batch, add, stream);
    default: return kInvalidValue;
  }
}

}  // namespace sluice::compression::cuda
