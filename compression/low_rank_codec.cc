// lowrank: a partition as a matrix of few components (compression/low_rank.h), or as it is where that is no larger. Biased;
// the encoder's state is Q.
//
//   0  u32  columns; 0 in the plain form
//   4  u8   components, 1 to 64; 0 in the plain form
//   5  u8   form: 0 plain (fp32 values of all elements), 1 fp32, 2 fp16
//   6  u16  0
//   8  i16  exponents of P and of Q: value = half * 2^exponent; 0 in the other forms
//   12      P by components (rows = elements / columns values each), then Q by components (columns values each)
//
// Encoding, three passes over the partition:
//   1. p = g + scale * e into the new residual, and each row times Q while it is in the cache: P = M Q.
//   2. P is made orthonormal; Q = M^T P. Both are rounded to what is sent. Q before that is the new state.
//   3. Residual = p - P Q^T of what is sent.
#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "compression/encode_blocks.h"
#include "compression/half.h"
#include "compression/low_rank.h"
#include "compression/registry.h"

namespace sluice::compression {
namespace {

constexpr size_t kHeaderBytes = 12;
enum Form : uint8_t { kPlain = 0, kFp32 = 1, kFp16 = 2 };

// What keeps a hostile payload's products finite: 64 of them stay below 2^128. Encoders stay far below both.
constexpr float kLargestP = 4.0f, kLargestQ = 0x1p100f;
constexpr int kLeastExponent = -126, kMostExponentP = -14, kMostExponentQ = 84;
static_assert(kLargestMatrixElement * 0x1p17f < kLargestQ);

// How a partition is sent.
struct Layout {
  Form form = kPlain;
  size_t rows = 0, columns = 0, rank = 0;
  size_t values() const { return rank * (rows + columns); }
  size_t value_bytes() const { return form == kFp16 ? 2 : 4; }
};

// Halves of n values that share a power of two: the largest lies in [2^14, 2^15). Values become what is sent.
int16_t RoundToHalves(std::span<float> values, std::byte* out) {
  float largest = 0;
  for (const float v : values) largest = std::max(largest, std::fabs(v));
  const int exponent = largest == 0 ? kLeastExponent : std::max(std::ilogb(largest) - 14, kLeastExponent);
  const float down = std::ldexp(1.0f, -exponent), unit = std::ldexp(1.0f, exponent);
  for (float& v : values) v *= down;
  Fp16FromFloats(values.data(), values.size(), out);
  FloatsFromFp16(out, values.size(), values.data());
  for (float& v : values) v *= unit;
  return static_cast<int16_t>(exponent);
}

class LowRank final : public Codec {
 public:
  // columns 0: no matrix is known. Encodes plainly, and decodes everything.
  LowRank(size_t rank, bool halves, uint64_t columns) : rank_(rank), halves_(halves), columns_(columns) {}

  CodecId id() const override { return CodecId::kLowRank; }
  std::string name() const override { return absl::StrCat("lowrank:", rank_, halves_ ? "+fp16" : ""); }
  bool lossless() const override { return false; }
  bool biased() const override { return true; }
  bool random() const override { return true; }   // where no state says how to begin

  size_t StateBytes(uint64_t n) const override {
    const Layout layout = LayoutFor(n);
    return 4 * layout.rank * layout.columns;
  }

  uint64_t MaxEncodedBytes(uint64_t n) const override {
    const Layout layout = LayoutFor(n);
    return kHeaderBytes + (layout.form == kPlain ? 4 * n : layout.value_bytes() * layout.values());
  }

  absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const override;

  absl::Status Validate(ConstBytes in, size_t n) const override {
    SLUICE_ASSIGN_OR_RETURN(const Parts parts, Split(in, n));
    const Layout& layout = parts.layout;
    const size_t p_values = layout.rank * layout.rows, values = layout.form == kPlain ? n : layout.values();
    if (layout.form == kFp16) {
      if (const size_t bad = FirstNonfiniteHalf(parts.values.data(), values, 0x7C00); bad < values)
        return absl::InvalidArgumentError(absl::StrCat("lowrank: value ", bad, " of ", values, " is not finite"));
      return absl::OkStatus();
    }
    // As magnitudes' bits: infinities and NaNs lie above.
    const float largest = std::numeric_limits<float>::max();
    for (size_t i = 0; i < values; ++i) {
      const float most = layout.form == kPlain ? largest : i < p_values ? kLargestP : kLargestQ;
      if ((LoadLe<uint32_t>(parts.values.data() + 4 * i) & 0x7FFFFFFF) > std::bit_cast<uint32_t>(most))
        return absl::InvalidArgumentError(absl::StrCat("lowrank: value ", i, " of ", values, " is too large or not finite"));
    }
    return absl::OkStatus();
  }

  absl::Status Decode(ConstBytes in, std::span<float> out) const override { return DecodeInto<Product::kStore>(in, out); }
  absl::Status DecodeAdd(ConstBytes in, std::span<float> accumulator) const override {
    return DecodeInto<Product::kAdd>(in, accumulator);
  }

 private:
  struct Parts {
    Layout layout;
    float p_unit = 1, q_unit = 1;
    ConstBytes values;
  };

  Layout LayoutFor(uint64_t n) const;
  // Checks the header and the size.
  static absl::StatusOr<Parts> Split(ConstBytes in, size_t n);
  template <Product kind>
  static absl::Status DecodeInto(ConstBytes in, std::span<float> out);
  void BeginFactor(const EncodeInput& input, const Layout& layout, float* q) const;
  size_t EncodePlain(const EncodeInput& input, MutableBytes out) const;

  const size_t rank_;
  const bool halves_;
  const uint64_t columns_;
};

Layout LowRank::LayoutFor(uint64_t n) const {
  if (columns_ < 2 || columns_ > UINT32_MAX || n % columns_ != 0 || n / columns_ < 2) return {};
  Layout layout{.form = halves_ ? kFp16 : kFp32, .rows = n / columns_, .columns = columns_};
  layout.rank = std::min({rank_, layout.rows, layout.columns});
  // Both extents are at most n / 2 < 2^47.
  return layout.value_bytes() * layout.values() < 4 * n ? layout : Layout{};
}

size_t LowRank::EncodePlain(const EncodeInput& input, MutableBytes out) const {
  std::memset(out.data(), 0, kHeaderBytes);
  EncodeInBlocks(input, [&](size_t begin, size_t n, float* p) {
    std::memcpy(out.data() + kHeaderBytes + 4 * begin, p, 4 * n);
    for (size_t i = 0; i < n; ++i) p[i] -= p[i];
  });
  return kHeaderBytes + 4 * input.gradient.size();
}

// Component k of Q is that of the last round; if there is none that makes sense, draws k * columns, ... of the round, as
// values in [-1, 1).
void LowRank::BeginFactor(const EncodeInput& input, const Layout& layout, float* q) const {
  const size_t columns = layout.columns;
  std::vector<uint32_t> draws;
  for (size_t k = 0; k < layout.rank; ++k) {
    const std::span<float> component(q + k * columns, columns);
    if (!input.state.empty()) {
      std::memcpy(component.data(), input.state.data() + 4 * k * columns, 4 * columns);
      if (Normalize(component)) continue;
    }
    draws.resize(columns);
    FillDraws(DrawKey(input.random, DrawPurpose::kFactor), k * columns, draws);
    for (size_t j = 0; j < columns; ++j) component[j] = static_cast<float>(draws[j] >> 8) * 0x1p-23f - 1.0f;
  }
}

absl::StatusOr<size_t> LowRank::Encode(const EncodeInput& input, MutableBytes out) const {
  SLUICE_RETURN_IF_ERROR(CheckEncodeArguments(*this, input, out));
  const size_t n = input.gradient.size();
  const Layout layout = LayoutFor(n);
  if (layout.form == kPlain) return EncodePlain(input, out);
  const size_t rows = layout.rows, columns = layout.columns, rank = layout.rank;
  std::unique_ptr<float[]> scratch;
  float* m = input.residual_out.data();
  if (input.residual_out.empty()) m = (scratch = std::make_unique_for_overwrite<float[]>(n)).get();
  std::vector<float> p(rank * rows), q(rank * columns);
  BeginFactor(input, layout, q.data());

  size_t done = 0;   // rows whose product is made
  CompensateAll(input, m, [&](size_t begin, size_t length, const float*) {
    for (; (done + 1) * columns <= begin + length; ++done)
      RowTimesFactor(m + done * columns, q.data(), columns, rows, rank, p.data() + done);
  });
  Orthonormalize(p.data(), rows, rank);
  TransposeTimesFactor(m, p.data(), rows, columns, rank, q.data());
  if (!input.state_out.empty()) std::memcpy(input.state_out.data(), q.data(), 4 * q.size());

  std::byte* values = out.data() + kHeaderBytes;
  int16_t p_exponent = 0, q_exponent = 0;
  if (layout.form == kFp16) {
    p_exponent = RoundToHalves(p, values);
    q_exponent = RoundToHalves(q, values + 2 * p.size());
  } else {
    std::memcpy(values, p.data(), 4 * p.size());
    std::memcpy(values + 4 * p.size(), q.data(), 4 * q.size());
  }
  StoreLe(out.data(), static_cast<uint32_t>(columns));
  StoreLe(out.data() + 4, static_cast<uint8_t>(rank));
  StoreLe(out.data() + 5, static_cast<uint8_t>(layout.form));
  StoreLe(out.data() + 6, uint16_t{0});
  StoreLe(out.data() + 8, p_exponent);
  StoreLe(out.data() + 10, q_exponent);
  if (!input.residual_out.empty())
    MultiplyFactors<Product::kSubtract>(
        {.p = p.data(), .q = q.data(), .p_stride = rows, .q_stride = columns, .rows = rows, .columns = columns, .rank = rank},
        m, columns);
  return MaxEncodedBytes(n);
}

absl::StatusOr<LowRank::Parts> LowRank::Split(ConstBytes in, size_t n) {
  if (in.size() < kHeaderBytes)
    return absl::InvalidArgumentError(absl::StrCat("lowrank: ", in.size(), " bytes; the header alone has ", kHeaderBytes));
  Parts parts;
  Layout& layout = parts.layout;
  const uint32_t columns = LoadLe<uint32_t>(in.data());
  const uint8_t rank = LoadLe<uint8_t>(in.data() + 4), form = LoadLe<uint8_t>(in.data() + 5);
  const uint16_t zero = LoadLe<uint16_t>(in.data() + 6);
  const int16_t p_exponent = LoadLe<int16_t>(in.data() + 8), q_exponent = LoadLe<int16_t>(in.data() + 10);
  if (form > kFp16 || zero != 0)
    return absl::InvalidArgumentError(absl::StrCat("lowrank: form ", static_cast<int>(form), ", reserved bytes ", zero));
  const bool exponents_sane = form == kFp16
                                  ? p_exponent >= kLeastExponent && p_exponent <= kMostExponentP &&
                                        q_exponent >= kLeastExponent && q_exponent <= kMostExponentQ
                                  : p_exponent == 0 && q_exponent == 0;
  if (!exponents_sane)
    return absl::InvalidArgumentError(
        absl::StrCat("lowrank: exponents ", p_exponent, " and ", q_exponent, " in form ", static_cast<int>(form)));
  layout.form = static_cast<Form>(form);
  parts.values = in.subspan(kHeaderBytes);
  if (form == kPlain) {
    if (columns != 0 || rank != 0 || n > SIZE_MAX / 4 || parts.values.size() != 4 * n)
      return absl::InvalidArgumentError(absl::StrCat("lowrank: ", n, " elements as they are in ", in.size(), " bytes, with ",
                                                     columns, " columns of rank ", static_cast<int>(rank)));
    return parts;
  }
  const size_t rows = columns == 0 ? 0 : n / columns;
  const auto bad = [&] {
    return absl::InvalidArgumentError(absl::StrCat("lowrank: ", n, " elements in ", columns, " columns with rank ",
                                                   static_cast<int>(rank), " in ", in.size(), " bytes"));
  };
  // Each row and each column has a value of its own, so that the product below cannot overflow.
  if (columns < 2 || rows < 2 || rows * columns != n || rank == 0 || rank > std::min({kMaxRank, rows, size_t{columns}}) ||
      rows > in.size() || columns > in.size())
    return bad();
  layout.rows = rows;
  layout.columns = columns;
  layout.rank = rank;
  const size_t bytes = layout.value_bytes() * layout.values();
  if (bytes != parts.values.size() || bytes / 4 >= n) return bad();
  parts.p_unit = std::ldexp(1.0f, p_exponent);
  parts.q_unit = std::ldexp(1.0f, q_exponent);
  return parts;
}

// By tiles of Q and blocks of P that lie on the stack: whatever a peer says, nothing is allocated. (So values of P are read once
// for each tile, and those of Q once for each block; all of them are taken as they come.)
template <Product kind>
absl::Status LowRank::DecodeInto(ConstBytes in, std::span<float> out) {
  SLUICE_ASSIGN_OR_RETURN(const Parts parts, Split(in, out.size()));
  const Layout& layout = parts.layout;
  if (layout.form == kPlain) {
    for (size_t i = 0; i < out.size(); ++i) {
      const float value = LoadLe<float>(parts.values.data() + 4 * i);
      out[i] = kind == Product::kStore ? value : out[i] + value;
    }
    return absl::OkStatus();
  }
  constexpr size_t kTileFloats = 8192, kBlockRows = 64;
  alignas(32) float q_tile[kTileFloats], p_block[kMaxRank * kBlockRows];
  const size_t tile = kTileFloats / layout.rank;
  const std::byte* p_values = parts.values.data();
  const std::byte* q_values = p_values + layout.value_bytes() * layout.rank * layout.rows;
  const auto load = [&](const std::byte* values, size_t first, size_t count, float unit, float* to) {
    if (layout.form == kFp32) {
      std::memcpy(to, values + 4 * first, 4 * count);
      return;
    }
    FloatsFromFp16(values + 2 * first, count, to);
    for (size_t i = 0; i < count; ++i) to[i] *= unit;
  };
  for (size_t column = 0; column < layout.columns; column += tile) {
    const size_t width = std::min(tile, layout.columns - column);
    for (size_t k = 0; k < layout.rank; ++k)
      load(q_values, k * layout.columns + column, width, parts.q_unit, q_tile + k * tile);
    for (size_t row = 0; row < layout.rows; row += kBlockRows) {
      const size_t height = std::min(kBlockRows, layout.rows - row);
      for (size_t k = 0; k < layout.rank; ++k)
        load(p_values, k * layout.rows + row, height, parts.p_unit, p_block + k * kBlockRows);
      MultiplyFactors<kind>({.p = p_block, .q = q_tile, .p_stride = kBlockRows, .q_stride = tile, .rows = height,
                             .columns = width, .rank = layout.rank},
                            out.data() + row * layout.columns + column, layout.columns);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Codec>> MakeLowRank(std::string_view rank, bool halves, uint64_t columns) {
  uint32_t value = 0;
  if (!absl::SimpleAtoi(std::string(rank.substr(0, 80)), &value) || value < 1 || value > kMaxRank)
    return absl::InvalidArgumentError(absl::StrCat("codec \"lowrank:", std::string(rank.substr(0, 80)),
                                                   "\": the rank must be a whole number from 1 to ", kMaxRank));
  return std::make_unique<LowRank>(value, halves, columns);
}

}  // namespace sluice::compression
