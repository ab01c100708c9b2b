// A step of the job:
//   1. Each worker computes the gradient of its batch at the parameters that it has, y.
//   2. It encodes that with its residual, whose unit follows the rate (old rate / new rate), and keeps the new one.
//   3. The server adds up what it decodes, takes the mean, and steps: v = momentum * v + mean, x -= rate * v.
//   4. Without a reply codec y = x; with one y += decoded(encoded(x - y)), so that what a reply lost is in the next.
#include "compression/digits.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "eigen3/Eigen/Core"
#include "base/philox.h"
#include "base/status_macros.h"
#include "compression/codec.h"

namespace sluice::compression {
namespace {

constexpr size_t kPixels = 64, kHidden = 128, kClasses = 10, kBatch = 32, kTrainRows = 1437;
constexpr float kRate = 0.1f, kLateRate = 0.01f;
constexpr double kLate = 0.7;   // of the steps
constexpr size_t kMaxRows = 10000, kMaxLine = 4096;

// Where the parameters lie in one tensor: layer 1, its bias, layer 2, its bias. Weights are inputs x outputs, row-major.
constexpr size_t kBias1 = kPixels * kHidden, kLayer2 = kBias1 + kHidden, kBias2 = kLayer2 + kHidden * kClasses,
                 kParameters = kBias2 + kClasses;
using Tensor = std::vector<float>;

float Gaussian(PhiloxRandom* random) {   // Box-Muller
  const double u = 1 - double{random->Uniform()}, v = random->Uniform();
  return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v));
}

Tensor Start(uint64_t seed) {
  Tensor values(kParameters, 0.0f);
  PhiloxRandom random(seed, 0);
  for (size_t i = 0; i < kBias1; ++i) values[i] = Gaussian(&random) / std::sqrt(float{kPixels});
  for (size_t i = kLayer2; i < kBias2; ++i) values[i] = Gaussian(&random) / std::sqrt(float{kHidden});
  return values;
}

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const Matrix>;
using Map = Eigen::Map<Matrix>;
using ConstRow = Eigen::Map<const Eigen::RowVectorXf>;

struct Layers {
  explicit Layers(const Tensor& p)
      : w1(p.data(), kPixels, kHidden), b1(&p[kBias1], kHidden),
        w2(&p[kLayer2], kHidden, kClasses), b2(&p[kBias2], kClasses) {}
  const ConstMap w1;
  const ConstRow b1;
  const ConstMap w2;
  const ConstRow b2;
};

void Forward(const Layers& p, const Matrix& x, Matrix* hidden, Matrix* out) {
  *hidden = ((x * p.w1).rowwise() + p.b1).cwiseMax(0.0f);
  *out = (*hidden * p.w2).rowwise() + p.b2;
}

// The gradient of the batch's mean cross-entropy.
Tensor Gradient(const Tensor& parameters, const Matrix& x, const std::vector<int>& labels) {
  const Layers p(parameters);
  Matrix hidden, out;
  Forward(p, x, &hidden, &out);
  out = (out.colwise() - out.rowwise().maxCoeff().eval()).array().exp();
  const Eigen::VectorXf sum = out.rowwise().sum() * static_cast<float>(x.rows());
  for (Eigen::Index r = 0; r < x.rows(); ++r) {
    out.row(r) /= sum[r];
    out(r, labels[static_cast<size_t>(r)]) -= 1.0f / static_cast<float>(x.rows());
  }
  const Matrix back = (hidden.array() > 0).select(out * p.w2.transpose(), 0.0f);
  Tensor g(kParameters);
  Map(g.data(), kPixels, kHidden).noalias() = x.transpose() * back;
  Map(&g[kBias1], 1, kHidden) = back.colwise().sum();
  Map(&g[kLayer2], kHidden, kClasses).noalias() = hidden.transpose() * out;
  Map(&g[kBias2], 1, kClasses) = out.colwise().sum();
  return g;
}

double Accuracy(const Digits& digits, const Tensor& parameters) {
  const size_t rows = digits.rows() - kTrainRows;
  const Matrix x = ConstMap(&digits.x[kTrainRows * kPixels], static_cast<Eigen::Index>(rows), kPixels);
  Matrix hidden, out;
  Forward(Layers(parameters), x, &hidden, &out);
  size_t right = 0;
  for (size_t r = 0; r < rows; ++r) {
    Eigen::Index best = 0;
    out.row(static_cast<Eigen::Index>(r)).maxCoeff(&best);
    right += best == digits.y[kTrainRows + r];
  }
  return static_cast<double>(right) / static_cast<double>(rows);
}

void Add(float scale, const Tensor& from, Tensor* to) {
  for (size_t i = 0; i < from.size(); ++i) (*to)[i] += scale * from[i];
}

// What one encoding is made of.
struct Slice {
  size_t first = 0, size = kParameters;
  std::unique_ptr<Codec> codec;
};

absl::StatusOr<std::vector<Slice>> MakeSlices(const DigitsJob& job) {
  std::vector<Slice> slices;
  const auto add = [&](size_t first, size_t end, size_t columns) -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec, MakeCodec(job.codec, columns));
    slices.push_back({first, end - first, std::move(codec)});
    return absl::OkStatus();
  };
  if (job.by_tensor) {
    SLUICE_RETURN_IF_ERROR(add(0, kBias1, kHidden));
    SLUICE_RETURN_IF_ERROR(add(kBias1, kLayer2, 1));
    SLUICE_RETURN_IF_ERROR(add(kLayer2, kBias2, kClasses));
    SLUICE_RETURN_IF_ERROR(add(kBias2, kParameters, 1));
  } else {
    SLUICE_RETURN_IF_ERROR(add(0, kParameters, 1));
  }
  return slices;
}

// One worker's pushes, and what it owes: residuals and the codecs' own states, written out of place as in the runtime.
class Pusher {
 public:
  Pusher(const std::vector<Slice>& slices, bool feedback, uint64_t seed, size_t rank)
      : slices_(slices),
        seed_(RandomSeed(absl::StrCat("digits", seed), static_cast<uint32_t>(rank))),
        residual_(feedback ? kParameters : 0, 0.0f),
        states_(slices.size()) {}

  // What arrives of the gradient.
  absl::StatusOr<Tensor> Push(const Tensor& gradient, int step, float residual_scale) {
    Tensor next(residual_.size()), arrived(kParameters);
    for (size_t s = 0; s < slices_.size(); ++s) {
      const auto& [first, size, codec] = slices_[s];
      const bool feedback = codec->uses_residual() && !residual_.empty();
      std::vector<std::byte> state(codec->StateBytes(size));
      bytes_.resize(codec->MaxEncodedBytes(size));
      EncodeInput input;
      input.gradient = std::span(gradient).subspan(first, size);
      if (feedback) {
        input.residual = std::span(residual_).subspan(first, size);
        input.residual_out = std::span(next).subspan(first, size);
      }
      input.residual_scale = residual_scale;
      input.random = {.seed = seed_, .round = static_cast<uint64_t>(step), .tensor = static_cast<uint32_t>(s)};
      input.state = states_[s];
      input.state_out = state;
      SLUICE_ASSIGN_OR_RETURN(const size_t used, codec->Encode(input, bytes_));
      SLUICE_RETURN_IF_ERROR(codec->Decode(std::span(bytes_).first(used), std::span(arrived).subspan(first, size)));
      states_[s] = std::move(state);
    }
    residual_ = std::move(next);
    return arrived;
  }

 private:
  const std::vector<Slice>& slices_;
  const uint64_t seed_;
  Tensor residual_;
  std::vector<std::vector<std::byte>> states_;
  std::vector<std::byte> bytes_;
};

// y moves by what arrives of x - y.
absl::Status Reply(const Codec& codec, const Tensor& x, Tensor* y) {
  Tensor change = x;
  Add(-1, *y, &change);
  std::vector<std::byte> bytes(codec.MaxEncodedBytes(kParameters));
  EncodeInput input;
  input.gradient = change;
  SLUICE_ASSIGN_OR_RETURN(const size_t used, codec.Encode(input, bytes));
  return codec.DecodeAdd(std::span(bytes).first(used), *y);
}

}  // namespace

absl::StatusOr<Digits> ReadDigits(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), &gzclose);
  if (file == nullptr) return absl::NotFoundError(absl::StrCat(path, " cannot be read"));
  Digits digits;
  std::vector<char> line(kMaxLine);
  while (gzgets(file.get(), line.data(), static_cast<int>(line.size())) != nullptr) {
    const auto bad = [&](const char* what) {
      return absl::DataLossError(absl::StrCat(path, ", line ", digits.rows() + 1, ": ", what));
    };
    if (digits.rows() == kMaxRows) return bad("more rows than the digits have");
    const char* at = line.data();
    for (size_t i = 0; i <= kPixels; ++i) {
      char* end = nullptr;
      const float value = std::strtof(at, &end);
      if (end == at || *end != (i < kPixels ? ',' : '\n')) return bad("not 65 numbers with commas between");
      if (!(value >= 0 && value <= (i < kPixels ? 16 : 9))) return bad("a pixel beyond 16 or a label beyond 9");
      if (i < kPixels) digits.x.push_back(value / 16);
      else digits.y.push_back(static_cast<int>(value));
      at = end + 1;
    }
  }
  if (digits.rows() <= kTrainRows) return absl::DataLossError(absl::StrCat(path, " ends after row ", digits.rows()));
  return digits;
}

absl::StatusOr<double> TrainDigits(const Digits& digits, const DigitsJob& job, uint64_t seed) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Slice> slices, MakeSlices(job));
  std::unique_ptr<Codec> reply;
  if (!job.reply.empty()) {
    SLUICE_ASSIGN_OR_RETURN(reply, MakeCodec(job.reply));
  }
  Tensor x = Start(seed), y = x, v(kParameters, 0.0f);
  std::vector<Pusher> pushers;
  std::vector<PhiloxRandom> examples;
  for (size_t w = 0; w < job.workers; ++w) {
    pushers.emplace_back(slices, job.feedback, seed, w);
    examples.emplace_back(seed, w + 1);
  }
  Matrix batch(kBatch, kPixels);
  std::vector<int> labels(kBatch);
  float old_rate = kRate;
  for (int step = 0; step < job.steps; ++step) {
    const float rate = step < kLate * job.steps ? kRate : kLateRate;
    Tensor sum(kParameters, 0.0f);
    for (size_t w = 0; w < job.workers; ++w) {
      for (size_t b = 0; b < kBatch; ++b) {
        const size_t row = examples[w].Below(kTrainRows);
        std::copy_n(&digits.x[row * kPixels], kPixels, &batch(static_cast<Eigen::Index>(b), 0));
        labels[b] = digits.y[row];
      }
      SLUICE_ASSIGN_OR_RETURN(const Tensor arrived, pushers[w].Push(Gradient(y, batch, labels), step, old_rate / rate));
      Add(job.push_scale, arrived, &sum);
    }
    for (size_t i = 0; i < kParameters; ++i) {
      v[i] = job.momentum * v[i] + sum[i] / static_cast<float>(job.workers);
      x[i] -= rate * v[i];
    }
    if (reply == nullptr) {
      y = x;
    } else {
      SLUICE_RETURN_IF_ERROR(Reply(*reply, x, &y));
    }
    old_rate = rate;
  }
  return Accuracy(digits, y);
}

}  // namespace sluice::compression
