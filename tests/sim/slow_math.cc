#include "tests/sim/slow_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/philox.h"

namespace sluice::sim {
namespace {

absl::Status Bad(const std::string& what) { return absl::DataLossError(absl::StrCat("not an encoding: ", what)); }

float HalfToFloat(uint16_t half) {
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>((half & 0x8000) != 0 ? -magnitude : magnitude);
}

absl::StatusOr<std::vector<uint64_t>> ReadIndices(ConstBytes in, int form, uint64_t count, size_t n) {
  const auto bit = [&](size_t byte, size_t position) {
    return byte + position / 8 < in.size() && (std::to_integer<int>(in[byte + position / 8]) >> (position % 8) & 1) != 0;
  };
  std::vector<uint64_t> at;
  if (form == 1) {
    for (size_t i = 0; i < n; ++i)
      if (bit(0, i)) at.push_back(i);
  } else {
    size_t byte = 0, next = 0;
    while (at.size() < count) {
      if (byte >= in.size()) return Bad("indices end early");
      const size_t width = std::to_integer<size_t>(in[byte++]);
      const size_t members = std::min<size_t>(64, count - at.size());
      for (size_t j = 0; j < members; ++j) {
        size_t gap = 0;
        for (size_t b = 0; b < width; ++b) gap |= size_t{bit(byte, j * width + b)} << b;
        next += gap;
        at.push_back(next++);
      }
      byte += (members * width + 7) / 8;
    }
  }
  if (at.size() != count || (!at.empty() && at.back() >= n)) return Bad("indices");
  return at;
}

absl::StatusOr<std::vector<float>> DecodeTopK(ConstBytes in, size_t n) {
  if (in.size() < 8) return Bad("topk without a header");
  const uint32_t count = LoadLe<uint32_t>(in.data());
  const int exponent = LoadLe<int16_t>(in.data() + 4);
  if (count > n || in.size() < 8 + 2 * size_t{count}) return Bad("topk with too many entries");
  const auto at = ReadIndices(in.subspan(8 + 2 * size_t{count}), std::to_integer<int>(in[6]), count, n);
  if (!at.ok()) return at.status();
  std::vector<float> out(n, 0.0f);
  const float unit = static_cast<float>(std::ldexp(1.0, exponent));
  for (size_t j = 0; j < count; ++j) out[(*at)[j]] = HalfToFloat(LoadLe<uint16_t>(in.data() + 8 + 2 * j)) * unit;
  return out;
}

// A whole number of units 2^exponent, to the nearest float, half to even.
float NearestFloat(__int128 units, int exponent) {
  const bool negative = units < 0;
  unsigned __int128 m = negative ? -static_cast<unsigned __int128>(units) : static_cast<unsigned __int128>(units);
  if (m == 0) return 0.0f;
  bool half = false, more = false;  // what was shifted out
  while (m >= (1u << 24) || exponent < -149) {
    more |= half;
    half = (m & 1) != 0;
    m >>= 1;
    ++exponent;
  }
  if (half && (more || (m & 1) != 0)) ++m;
  const double value = std::ldexp(static_cast<double>(static_cast<uint64_t>(m)), exponent);
  return static_cast<float>(negative ? -value : value);
}

// server/math/exact_sum.h: values are cut into bins of 32 bits; the bins from one below the highest home bin on count.
float ExactSumOf(const std::vector<float>& values) {
  int top = 0;
  for (const float value : values) {
    if (!std::isfinite(value)) return std::numeric_limits<float>::quiet_NaN();
    const int exponent = std::bit_cast<uint32_t>(value) >> 23 & 255;
    top = std::max(top, (std::max(exponent, 1) - 1) / 32);
  }
  __int128 sum = 0;  // in units of bin top-1
  for (const float value : values) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const int exponent = bits >> 23 & 255, position = std::max(exponent, 1) - 1;
    const uint64_t mantissa = (bits & 0x7FFFFF) + (exponent != 0 ? 0x800000 : 0);
    const uint64_t wide = mantissa << (position % 32);
    const uint64_t parts[2] = {wide & 0xFFFFFFFF, wide >> 32};
    for (int part = 0; part < 2; ++part) {
      const int bin = position / 32 + part;
      if (bin < top - 1) continue;
      const __int128 units = static_cast<__int128>(parts[part]) << (32 * (bin - (top - 1)));
      sum += (bits >> 31) != 0 ? -units : units;
    }
  }
  return NearestFloat(sum, 32 * (top - 1) - 149);
}

double E4M3ToDouble(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code >= 128 ? -magnitude : magnitude;
}

absl::StatusOr<std::vector<float>> DecodeQsgd(ConstBytes in, size_t n) {
  if (in.size() < 4) return Bad("qsgd without a header");
  const uint32_t levels = LoadLe<uint32_t>(in.data());
  if (levels < 1 || levels > 127) return Bad("qsgd of other levels");
  size_t bits = 1;
  while ((1u << bits) < 2 * levels + 1) ++bits;
  const size_t blocks = (n + 127) / 128, head = 4 + 4 * blocks;
  if (in.size() != head + n / 128 * 16 * bits + (n % 128 + 7) / 8 * bits) return Bad("qsgd of another size");
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) {
    const size_t block = i / 128, plane = (std::min<size_t>(128, n - block * 128) + 7) / 8;
    int code = 0;
    for (size_t b = 0; b < bits; ++b) {
      const std::byte byte = in[head + block * 16 * bits + b * plane + i % 128 / 8];
      code |= (std::to_integer<int>(byte) >> (i % 8) & 1) << b;
    }
    if (code >= 1 << (bits - 1)) code -= 1 << bits;
    out[i] = static_cast<float>(code) * LoadLe<float>(in.data() + 4 + 4 * block);
  }
  return out;
}

absl::StatusOr<std::vector<float>> DecodeSparse(ConstBytes in, size_t n) {
  if (in.size() < 8) return Bad("sparse without a header");
  const uint64_t count = LoadLe<uint32_t>(in.data());
  const int form = std::to_integer<int>(in[4]), id = std::to_integer<int>(in[5]);
  const size_t sizes[] = {4 * count, 2 * count, 2 * count, count + 4 * ((count + 127) / 128), 0,
                          (count + 1) / 2 + 4 * ((count + 127) / 128), (count + 7) / 8 + 4 * ((count + 255) / 256), 0,
                          count + (count + 31) / 32};
  if (id > 8 || id == 4 || id == 7) return Bad("sparse with values of another codec");
  const size_t value_bytes = sizes[id];
  if (count > n || in.size() < 8 + value_bytes) return Bad("sparse with too many entries");
  const auto values = SlowDecode(static_cast<uint16_t>(id), in.subspan(8, value_bytes), count);
  if (!values.ok()) return values.status();
  const ConstBytes packed = in.subspan(8 + value_bytes);
  std::vector<uint64_t> indices;
  if (form == 2) {
    if (packed.size() != 8) return Bad("drawn indices without their key");
    for (uint64_t j = 0; j < count; ++j) {
      const uint64_t draw = Philox4x32({static_cast<uint32_t>(j / 4), 0, 0, 0},
                                       {LoadLe<uint32_t>(packed.data()), LoadLe<uint32_t>(packed.data() + 4)})[j % 4];
      const uint64_t begin = j * n / count, end = (j + 1) * n / count;
      indices.push_back(begin + draw * (end - begin) / 4294967296);
    }
  } else if (auto read = ReadIndices(packed, form, count, n); read.ok()) {
    indices = *std::move(read);
  } else {
    return read.status();
  }
  std::vector<float> out(n);
  for (size_t j = 0; j < count; ++j) out[indices[j]] = (*values)[j];
  return out;
}

absl::StatusOr<std::vector<float>> DecodeLowRank(ConstBytes in, size_t n) {
  if (in.size() < 12) return Bad("lowrank without a header");
  const size_t columns = LoadLe<uint32_t>(in.data()), rank = std::to_integer<size_t>(in[4]);
  const int form = std::to_integer<int>(in[5]);
  std::vector<float> out(n);
  if (form == 0) {
    if (in.size() != 12 + 4 * n) return Bad("lowrank as it is of another size");
    for (size_t i = 0; i < n; ++i) out[i] = LoadLe<float>(in.data() + 12 + 4 * i);
    return out;
  }
  if (columns == 0 || n % columns != 0) return Bad("lowrank without rows");
  const size_t rows = n / columns, width = form == 1 ? 4 : 2;
  if (in.size() != 12 + width * rank * (rows + columns)) return Bad("lowrank of another size");
  const auto value = [&](size_t i, int exponent) {
    if (form == 1) return LoadLe<float>(in.data() + 12 + 4 * i);
    return static_cast<float>(std::ldexp(HalfToFloat(LoadLe<uint16_t>(in.data() + 12 + 2 * i)), exponent));
  };
  const int of_p = LoadLe<int16_t>(in.data() + 8), of_q = LoadLe<int16_t>(in.data() + 10);
  for (size_t i = 0; i < n; ++i)
    for (size_t k = 0; k < rank; ++k)
      out[i] += value(k * rows + i / columns, of_p) * value(rank * rows + k * columns + i % columns, of_q);
  return out;
}

double Or(double value, double fallback) { return value == 0 ? fallback : value; }

// base^exponent by squaring, from the lowest bit up: the order is a part of the format.
double Power(double base, uint64_t exponent) {
  double result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1) result = result * base;
    base = base * base;
    exponent /= 2;
  }
  return result;
}

double CosineOfPi(double t) {  // Taylor's series of twelve terms on the first half, mirrored on the second
  if (t > 0.5) return -CosineOfPi(1.0 - t);
  const double angle = 3.14159265358979323846 * t;
  const double square = angle * angle;
  double sum = 1.0;
  for (int k = 24; k >= 2; k -= 2) sum = 1.0 - sum * square / (static_cast<double>(k) * (k - 1));
  return sum;
}

}  // namespace

absl::StatusOr<std::vector<float>> SlowDecode(uint16_t codec, ConstBytes payload, size_t n) {
  std::vector<float> out(n);
  const std::byte* const in = payload.data();
  switch (codec) {
    case 0:
      if (payload.size() != 4 * n) return Bad("none of another size");
      for (size_t i = 0; i < n; ++i) out[i] = LoadLe<float>(in + 4 * i);
      return out;
    case 1:
      if (payload.size() != 2 * n) return Bad("fp16 of another size");
      for (size_t i = 0; i < n; ++i) out[i] = HalfToFloat(LoadLe<uint16_t>(in + 2 * i));
      return out;
    case 2:
      if (payload.size() != 2 * n) return Bad("bf16 of another size");
      for (size_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(uint32_t{LoadLe<uint16_t>(in + 2 * i)} << 16);
      return out;
    case 3: {
      const size_t blocks = (n + 127) / 128;
      if (payload.size() != n + 4 * blocks) return Bad("int8 of another size");
      for (size_t i = 0; i < n; ++i)
        out[i] = static_cast<float>(LoadLe<int8_t>(in + 4 * blocks + i)) * LoadLe<float>(in + 4 * (i / 128));
      return out;
    }
    case 4: return DecodeTopK(payload, n);
    case 5: {
      const size_t head = 4 * ((n + 127) / 128);
      if (payload.size() != head + (n + 1) / 2) return Bad("int4 of another size");
      for (size_t i = 0; i < n; ++i) {
        int code = std::to_integer<int>(in[head + i / 2]) >> (i % 2 * 4) & 15;
        if (code >= 8) code -= 16;
        out[i] = static_cast<float>(code) * LoadLe<float>(in + 4 * (i / 128));
      }
      return out;
    }
    case 6: {
      const size_t head = 4 * ((n + 255) / 256);
      if (payload.size() != head + (n + 7) / 8) return Bad("onebit of another size");
      for (size_t i = 0; i < n; ++i) {
        const float scale = LoadLe<float>(in + 4 * (i / 256));
        out[i] = (std::to_integer<int>(in[head + i / 8]) >> (i % 8) & 1) != 0 ? -scale : scale;
      }
      return out;
    }
    case 7: return DecodeQsgd(payload, n);
    case 8: {
      const size_t head = (n + 31) / 32;
      if (payload.size() != head + n) return Bad("mxfp8 of another size");
      for (size_t i = 0; i < n; ++i) {
        const double value = std::ldexp(E4M3ToDouble(std::to_integer<int>(in[head + i])), std::to_integer<int>(in[i / 32]) - 127);
        out[i] = static_cast<float>(std::to_integer<int>(in[head + i]) == 128 ? -0.0 : value);
      }
      return out;
    }
    case 9: return DecodeSparse(payload, n);
    case 10: return DecodeLowRank(payload, n);
    case 11: {
      static constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
      const size_t head = 4 + (n + 15) / 16;
      if (payload.size() != head + (n + 1) / 2) return Bad("nvfp4 of another size");
      for (size_t i = 0; i < n; ++i) {
        const float block = static_cast<float>(E4M3ToDouble(std::to_integer<int>(in[4 + i / 16]))) * LoadLe<float>(in);
        const int code = std::to_integer<int>(in[head + i / 2]) >> (i % 2 * 4) & 15;
        out[i] = (code >= 8 ? -kValues[code & 7] : kValues[code]) * block;
      }
      return out;
    }
    default: return Bad(absl::StrCat("codec ", codec));
  }
}

absl::StatusOr<SlowRows> SlowParseRows(ConstBytes payload) {
  const auto byte = [&](size_t at) { return at < payload.size() ? static_cast<uint64_t>(payload[at]) : 0; };
  const auto word = [&](size_t at, int bytes) {
    uint64_t value = 0;
    for (int b = 0; b < bytes; ++b) value += byte(at + static_cast<size_t>(b)) << (8 * b);
    return value;
  };
  const uint64_t rows = word(0, 4), id_bytes = word(4, 4);
  SlowRows result;
  size_t at = 8;
  if (rows > 0) {
    result.ids.push_back(word(at, 8));
    at += 8;
  }
  while (result.ids.size() < rows) {
    const uint64_t width = byte(at++);
    size_t bit = 0;
    for (int i = 0; i < 128 && result.ids.size() < rows; ++i) {
      uint64_t difference = 0;
      for (uint64_t b = 0; b < width; ++b, ++bit) difference |= (byte(at + bit / 8) >> (bit % 8) & 1) << b;
      result.ids.push_back(result.ids.back() + difference + 1);
    }
    at += (bit + 7) / 8;
  }
  if (at != 8 + id_bytes) return absl::DataLossError("the packed ids have another length than they say");
  const size_t begin = 8 + (id_bytes + 7) / 8 * 8;
  if (begin > payload.size()) return absl::DataLossError("the payload ends in its ids");
  result.values = payload.subspan(begin);
  return result;
}

uint32_t SlowSegmentOf(uint64_t id, uint32_t segments) {
  uint64_t z = id;   // the finalizer of splitmix64
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<uint32_t>((z >> 32) * segments >> 32);
}

std::vector<float> SlowReduce(proto::Order order, proto::Reduction reduction,
                              const std::vector<std::vector<float>>& vectors, size_t contributors, size_t n) {
  std::vector<float> out(n, 0.0f);
  for (size_t i = 0; i < n && !vectors.empty(); ++i) {
    if (order == proto::ORDER_EXACT) {
      std::vector<float> column;
      for (const auto& vector : vectors) column.push_back(vector[i]);
      out[i] = ExactSumOf(column);
    } else {
      out[i] = vectors[0][i];
      for (size_t j = 1; j < vectors.size(); ++j) out[i] = out[i] + vectors[j][i];
    }
    if (reduction == proto::REDUCTION_MEAN && contributors > 1) out[i] = out[i] / static_cast<float>(contributors);
  }
  return out;
}

double SlowSumOfSquares(std::span<const float> values) {
  double total = 0;
  for (size_t block = 0; block < values.size(); block += 4096) {
    double lanes[16] = {};
    for (size_t i = block; i < std::min(values.size(), block + 4096); ++i) {
      const double value = values[i];
      lanes[(i - block) % 16] += value * value;
    }
    for (const int width : {8, 4, 2, 1})
      for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    total += lanes[0];
  }
  return total;
}

bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

float SlowRate(const proto::OptimizerConfig& c, uint64_t step) {
  if (c.kind().empty() || c.kind() == "none") return 0.0f;
  const double rate = Or(c.rate(), 0.01), warmup = static_cast<double>(c.warmup_rounds());
  if (step < c.warmup_rounds()) return static_cast<float>(rate * (static_cast<double>(step) + 1.0) / warmup);
  const uint64_t i = step - c.warmup_rounds();
  if (c.schedule() == "step") return static_cast<float>(rate * Power(Or(c.step_factor(), 0.1), i / c.step_rounds()));
  if (c.schedule() != "linear" && c.schedule() != "cosine") return static_cast<float>(rate);
  const uint64_t length = c.total_rounds() - c.warmup_rounds();
  const double part = static_cast<double>(std::min(i, length)) / static_cast<double>(length);
  const double end = c.final_rate();
  if (c.schedule() == "linear") return static_cast<float>(part == 1.0 ? end : rate + (end - rate) * part);
  return static_cast<float>(end + (rate - end) * (0.5 * (1.0 + CosineOfPi(part))));
}

SlowOptimizer::SlowOptimizer(const proto::OptimizerConfig& config, proto::TensorKind kind, size_t n)
    : config_(config),
      kind_(config.kind().empty() ? "none" : config.kind()),
      exempt_(kind != proto::TENSOR_WEIGHT && !config.decay_all()),
      x_(n, 0.0f),
      m_(n, 0.0f),
      v_(n, 0.0f) {}

std::vector<float> SlowOptimizer::Update(const std::vector<float>& gradient, double scale) const {
  const double beta1 = Or(config_.beta1(), 0.9), beta2 = Or(config_.beta2(), 0.999);
  const float b1 = static_cast<float>(beta1), b2 = static_cast<float>(beta2);
  const float epsilon = static_cast<float>(Or(config_.epsilon(), 1e-8));
  const float decay = exempt_ ? 0.0f : static_cast<float>(config_.weight_decay());
  const uint64_t t = updates_ + 1;
  const float h = static_cast<float>(1.0 / (1.0 - Power(beta1, t)));
  const float c = static_cast<float>(1.0 / std::sqrt(1.0 - Power(beta2, t)));
  std::vector<float> update(x_.size());
  for (size_t i = 0; i < x_.size(); ++i) {
    const float g = static_cast<float>(scale) * gradient[i];
    const float m = b1 * m_[i] + static_cast<float>(1.0 - beta1) * g;
    const float v = b2 * v_[i] + static_cast<float>(1.0 - beta2) * (g * g);
    update[i] = (m * h) / (std::sqrt(v) * c + epsilon) + decay * x_[i];
  }
  return update;
}

double SlowOptimizer::Trust(double parameters, double update) const {
  const double x = std::sqrt(parameters), u = std::sqrt(update);
  const bool meaning = layerwise() && !exempt_ && x > 0 && u > 0 && std::isfinite(x) && std::isfinite(u);
  return meaning ? x / u : 1.0;
}

void SlowOptimizer::Apply(const std::vector<float>& gradient, float rate, double scale, double trust) {
  const double beta1 = Or(config_.beta1(), 0.9), beta2 = Or(config_.beta2(), 0.999);
  const float b1 = static_cast<float>(beta1), b2 = static_cast<float>(beta2);
  const float mu = static_cast<float>(Or(config_.momentum(), 0.9));
  const float epsilon = static_cast<float>(Or(config_.epsilon(), 1e-8));
  const double weight_decay = exempt_ ? 0.0 : config_.weight_decay();
  const float w = static_cast<float>(weight_decay);
  const float d = static_cast<float>(1.0 - static_cast<double>(rate) * weight_decay);
  const std::vector<float> update = layerwise() ? Update(gradient, scale) : std::vector<float>();
  const uint64_t t = ++updates_;
  const float step_size = static_cast<float>(static_cast<double>(rate) / (1.0 - Power(beta1, t)));
  const float c = static_cast<float>(1.0 / std::sqrt(1.0 - Power(beta2, t)));
  for (size_t i = 0; i < x_.size(); ++i) {
    float g = static_cast<float>(scale) * gradient[i];
    float& x = x_[i];
    float &m = m_[i], &v = v_[i];
    if (kind_ == "none") {
      x = g;
    } else if (kind_ == "sgd") {
      x = d * x - rate * g;
    } else if (kind_ == "momentum") {
      m = mu * m + g;
      x = d * x - rate * m;
    } else if (kind_ == "nesterov") {
      m = mu * m + g;
      x = d * x - rate * (g + mu * m);
    } else if (kind_ == "adagrad") {
      g = g + w * x;
      v = v + g * g;
      x = x - (rate * g) / (std::sqrt(v) + epsilon);
    } else {
      if (kind_ == "adam") g = g + w * x;
      m = b1 * m + static_cast<float>(1.0 - beta1) * g;
      v = b2 * v + static_cast<float>(1.0 - beta2) * (g * g);
      const float direction = m / (std::sqrt(v) * c + epsilon);
      if (kind_ == "adam") x = x - step_size * direction;
      if (kind_ == "adamw") x = d * x - step_size * direction;
      if (kind_ == "lamb") x = x - static_cast<float>(static_cast<double>(rate) * trust) * update[i];
    }
  }
}

}  // namespace sluice::sim
