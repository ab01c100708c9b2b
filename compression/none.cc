#include <algorithm>
#include <cstring>

#include "compression/encode_blocks.h"
#include "compression/registry.h"

namespace sluice::compression {
namespace {

// 4 n bytes: the fp32 values. Lossless for any bits, so NaNs and infinities pass (Validate checks the size only).
class None final : public Codec {
 public:
  CodecId id() const override { return CodecId::kNone; }
  std::string name() const override { return "none"; }
  bool lossless() const override { return true; }
  bool biased() const override { return false; }
  uint64_t MaxEncodedBytes(uint64_t n) const override { return 4 * n; }

  absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const override {
    if (absl::Status status = CheckEncodeArguments(*this, input, out); !status.ok()) return status;
    const size_t bytes = input.gradient.size_bytes();
    if (input.residual.empty()) {
      if (bytes > 0) std::memcpy(out.data(), input.gradient.data(), bytes);
      std::fill(input.residual_out.begin(), input.residual_out.end(), 0.0f);
      return bytes;
    }
    EncodeInBlocks(input, [&](size_t begin, size_t n, float* p) {
      std::memcpy(out.data() + 4 * begin, p, 4 * n);
      std::fill_n(p, n, 0.0f);
    });
    return bytes;
  }

  absl::Status Validate(ConstBytes in, size_t n) const override {
    return in.size() == MaxEncodedBytes(n) ? absl::OkStatus() : WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
  }

  absl::Status Decode(ConstBytes in, std::span<float> out) const override {
    if (absl::Status status = Validate(in, out.size()); !status.ok()) return status;
    if (!in.empty()) std::memcpy(out.data(), in.data(), in.size());
    return absl::OkStatus();
  }

  absl::Status DecodeAdd(ConstBytes in, std::span<float> accumulator) const override {
    if (absl::Status status = Validate(in, accumulator.size()); !status.ok()) return status;
    const std::byte* __restrict from = in.data();
    float* __restrict sum = accumulator.data();
    const size_t n = accumulator.size();
    for (size_t i = 0; i < n; ++i) sum[i] += LoadLe<float>(from + 4 * i);
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Codec>> MakeNone(std::string_view) { return std::make_unique<None>(); }

}  // namespace sluice::compression
