// Rows as the headers describe them, written again from the papers and the descriptions: slow, obvious, and without a
// line of what they check.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/philox.h"
#include "proto/plan.pb.h"

namespace sluice::server {

// Initial values after row_init.h.
inline std::vector<float> SlowInitialRow(const proto::TableSpec& spec, uint64_t id) {
  const float scale = static_cast<float>(spec.init_scale() == 0 ? 0.01 : spec.init_scale());
  const auto word = [&](uint64_t w) {
    const PhiloxBlock block =
        Philox4x32({static_cast<uint32_t>(w / 4), 0x726F7773, static_cast<uint32_t>(id & 0xFFFFFFFF),
                    static_cast<uint32_t>(id >> 32)},
                   {static_cast<uint32_t>(spec.seed() & 0xFFFFFFFF), static_cast<uint32_t>(spec.seed() >> 32)});
    return block[w % 4];
  };
  std::vector<float> row;
  for (uint64_t p = 0; p < spec.dim(); ++p) {
    if (spec.initializer() == "uniform") {
      row.push_back(static_cast<float>(((word(p) / 256) / 8388608.0 - 1.0) * static_cast<double>(scale)));
    } else if (spec.initializer() == "normal") {
      double sum = 0;
      for (uint64_t w = 6 * p; w < 6 * p + 6; ++w) sum += word(w) % 65536 + word(w) / 65536;
      row.push_back(static_cast<float>((sum - 12 * 32767.5) / 65536 * static_cast<double>(scale)));
    } else {
      row.push_back(0);
    }
  }
  return row;
}

// One coordinate of a row in the arithmetic of Real, from the papers' formulas: Real = float with every intermediate
// result in a variable gives the bits; Real = double says that the formulas themselves are right.
template <typename Real>
struct Coordinate {
  Real x = 0, m = 0, v = 0;  // adagrad: v; ftrl: z = m, n = v
};

template <typename Real>
class SlowRow {
 public:
  SlowRow(const proto::TableOptimizer& config, const std::vector<float>& initial, float rate)
      : config_(config), kind_(config.kind()), coordinates_(initial.size()) {
    const Real start = static_cast<Real>(config.initial_accumulator());
    accumulator_ = start;
    for (size_t i = 0; i < initial.size(); ++i) {
      Coordinate<Real>& c = coordinates_[i];
      c.x = initial[i];
      if (kind_ == "adagrad" || kind_ == "ftrl") c.v = start;
      if (kind_ == "ftrl" && initial[i] != 0 && rate > 0) {
        const Real root = std::sqrt(start), numerator = Beta() + root, quotient = numerator / rate, q = quotient + L2();
        const Real product = c.x * q, l1 = c.x > 0 ? L1() : -L1(), sum = product + l1;
        c.m = -sum;
      }
    }
  }

  void Apply(const std::vector<float>& gradient, float rate) {
    const Real r = rate, eps = static_cast<Real>(config_.epsilon() == 0 ? 1e-8 : config_.epsilon());
    const Real decay = static_cast<Real>(1.0 - static_cast<double>(rate) * config_.l2());
    ++t_;
    if (kind_ == "rowwise_adagrad") {
      double sum = 0;  // the tree of base/fixed_sum.h
      for (size_t begin = 0; begin < gradient.size(); begin += 4096) {
        std::vector<double> lanes(16);
        for (size_t i = begin; i < std::min(gradient.size(), begin + 4096); ++i)
          lanes[i % 16] += static_cast<double>(gradient[i]) * gradient[i];
        for (size_t width = 8; width > 0; width /= 2)
          for (size_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
        sum += lanes[0];
      }
      const Real mean = static_cast<Real>(sum / static_cast<double>(gradient.size()));
      accumulator_ = accumulator_ + mean;
    }
    for (size_t i = 0; i < gradient.size(); ++i) {
      Coordinate<Real>& c = coordinates_[i];
      const Real g = gradient[i], square = g * g;
      if (kind_ == "sgd") {
        Step(c, decay, r * g);
      } else if (kind_ == "adagrad") {
        c.v = c.v + square;
        const Real root = std::sqrt(c.v), below = root + eps, above = r * g;
        Step(c, decay, above / below);
      } else if (kind_ == "rowwise_adagrad") {
        const Real root = std::sqrt(accumulator_), below = root + eps, above = r * g;
        Step(c, decay, above / below);
      } else if (kind_ == "adam") {
        const double beta1 = config_.beta1() == 0 ? 0.9 : config_.beta1(),
                     beta2 = config_.beta2() == 0 ? 0.999 : config_.beta2();
        const Real step = static_cast<Real>(rate / (1 - Power(beta1)));
        const Real correction = static_cast<Real>(1 / std::sqrt(1 - Power(beta2)));
        const Real m1 = static_cast<Real>(beta1) * c.m, m2 = static_cast<Real>(1 - beta1) * g;
        c.m = m1 + m2;
        const Real v1 = static_cast<Real>(beta2) * c.v, v2 = static_cast<Real>(1 - beta2) * square;
        c.v = v1 + v2;
        const Real root = std::sqrt(c.v), scaled = root * correction, below = scaled + eps, direction = c.m / below;
        Step(c, decay, step * direction);
      } else if (rate > 0) {
        const Real grown = c.v + square, root = std::sqrt(grown), old_root = std::sqrt(c.v);
        const Real difference = root - old_root, sigma = difference / r, product = sigma * c.x, change = g - product;
        c.m = c.m + change;
        c.v = grown;
        if (std::abs(c.m) <= L1()) {
          c.x = 0;
        } else {
          const Real above = (c.m < 0 ? -L1() : L1()) - c.m;
          const Real numerator = Beta() + root, quotient = numerator / r, below = quotient + L2();
          c.x = above / below;
        }
      }
    }
  }

  // Values at rest may be rounded further, as bf16.
  void SetValues(const std::vector<Real>& values) {
    for (size_t i = 0; i < values.size(); ++i) coordinates_[i].x = values[i];
  }
  std::vector<Real> Values() const {
    std::vector<Real> values;
    for (const auto& c : coordinates_) values.push_back(c.x);
    return values;
  }
  std::vector<Real> State() const {
    std::vector<Real> state;
    if (kind_ == "rowwise_adagrad") return {accumulator_};
    if (kind_ == "sgd") return {};
    if (kind_ != "adagrad")
      for (const auto& c : coordinates_) state.push_back(c.m);
    for (const auto& c : coordinates_) state.push_back(c.v);
    if (kind_ == "adam") state.push_back(static_cast<Real>(t_));
    return state;
  }

 private:
  static void Step(Coordinate<Real>& c, Real decay, Real change) {
    const Real decayed = decay * c.x;
    c.x = decayed - change;
  }
  Real L1() const { return static_cast<Real>(config_.l1()); }
  Real L2() const { return static_cast<Real>(config_.l2()); }
  Real Beta() const { return static_cast<Real>(config_.beta() == 0 ? 1.0 : config_.beta()); }
  double Power(double base) const {  // by squaring, lowest bit first, as the header says
    double result = 1, square = base;
    for (int e = t_; e > 0; e /= 2) {
      if (e % 2 == 1) result = result * square;
      square = square * square;
    }
    return result;
  }

  const proto::TableOptimizer config_;
  const std::string kind_;
  int t_ = 0;
  Real accumulator_ = 0;
  std::vector<Coordinate<Real>> coordinates_;
};

}  // namespace sluice::server
