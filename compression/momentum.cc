#include "compression/momentum.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "compression/encode_blocks.h"
#include "compression/half.h"

namespace sluice::compression {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

bool IsSparse(const Codec& codec) { return codec.id() == CodecId::kTopK || codec.id() == CodecId::kSparse; }

class MomentumCorrected final : public Codec {
 public:
  MomentumCorrected(std::unique_ptr<Codec> inner, float momentum) : inner_(std::move(inner)), momentum_(momentum) {}

  CodecId id() const override { return inner_->id(); }
  std::string name() const override { return inner_->name(); }   // on the wire it is that
  bool lossless() const override { return false; }   // what is sent is not the gradient
  bool biased() const override { return inner_->biased(); }
  bool uses_residual() const override { return inner_->uses_residual(); }
  std::span<const float> GradientOf(const EncodeInput& input) const override {
    if (input.state_out.empty() || reinterpret_cast<uintptr_t>(input.state_out.data()) % alignof(float) != 0) return input.gradient;
    return {reinterpret_cast<const float*>(input.state_out.data()), input.gradient.size()};
  }
  bool random() const override { return inner_->random(); }
  size_t StateBytes(uint64_t n) const override { return n * sizeof(float) + inner_->StateBytes(n); }
  uint64_t MaxEncodedBytes(uint64_t n) const override { return inner_->MaxEncodedBytes(n); }

  absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const override {
    SLUICE_RETURN_IF_ERROR(CheckEncodeArguments(*this, input, out));
    const size_t n = input.gradient.size(), bytes = n * sizeof(float);
    std::vector<float> own;   // where the new state is not wanted, or lies where floats may not
    std::span<float> velocity;
    if (!input.state_out.empty() && reinterpret_cast<uintptr_t>(input.state_out.data()) % alignof(float) == 0) {
      velocity = {reinterpret_cast<float*>(input.state_out.data()), n};
    } else {
      own.resize(n);
      velocity = own;
    }
    if (input.state.empty()) std::fill(velocity.begin(), velocity.end(), 0.0f);
    if (!input.state.empty() && bytes > 0) std::memcpy(velocity.data(), input.state.data(), bytes);
    Advance(input.gradient, velocity);
    EncodeInput moved = input;
    moved.gradient = velocity;
    if (!input.state.empty()) moved.state = input.state.subspan(bytes);
    if (!input.state_out.empty()) moved.state_out = input.state_out.subspan(bytes);
    SLUICE_ASSIGN_OR_RETURN(const size_t encoded, inner_->Encode(moved, out));
    if (input.state_out.empty()) return encoded;
    if (IsSparse(*inner_) && !input.residual_out.empty()) Mask(moved, velocity);
    if (!own.empty()) std::memcpy(input.state_out.data(), own.data(), bytes);
    return encoded;
  }

  absl::Status Validate(ConstBytes in, size_t n) const override { return inner_->Validate(in, n); }
  absl::Status Decode(ConstBytes in, std::span<float> out) const override { return inner_->Decode(in, out); }
  absl::Status DecodeAdd(ConstBytes in, std::span<float> sum) const override { return inner_->DecodeAdd(in, sum); }

 private:
  // A velocity that is not finite comes from a state that no encoder left; it counts as none.
  void Advance(std::span<const float> gradient, std::span<float> velocity) const {
    const float* __restrict g = gradient.data();
    float* __restrict u = velocity.data();
    for (size_t i = 0; i < velocity.size(); ++i) {
      const float kept = u[i] >= -kLargest && u[i] <= kLargest ? u[i] : 0.0f;
      u[i] = Saturate(momentum_ * kept + g[i], kLargest);
    }
  }

  // p once more, block by block: where it stayed in the residual whole, nothing was sent.
  static void Mask(const EncodeInput& input, std::span<float> velocity) {
    alignas(64) float p[kCompensateBlock];
    for (size_t begin = 0; begin < velocity.size(); begin += kCompensateBlock) {
      const size_t length = std::min(kCompensateBlock, velocity.size() - begin);
      Compensate(input, begin, length, p);
      const float* __restrict e = input.residual_out.data() + begin;
      float* __restrict u = velocity.data() + begin;
      for (size_t i = 0; i < length; ++i) u[i] = e[i] == p[i] ? u[i] : 0.0f;
    }
  }

  const std::unique_ptr<Codec> inner_;
  const float momentum_;
};

}  // namespace

std::unique_ptr<Codec> MakeMomentumCorrected(std::unique_ptr<Codec> inner, float momentum) {
  return std::make_unique<MomentumCorrected>(std::move(inner), momentum);
}

}  // namespace sluice::compression
