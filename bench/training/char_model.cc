#include <algorithm>
#include <cmath>
#include <utility>

#include "bench/training/batch_model.h"
#include "bench/training/models.h"

namespace sluice::bench {
namespace {

using worker::ParameterKind;

constexpr size_t kEmbedding = 16, kHidden = 128;

class CharModel final : public BatchModel {
 public:
  CharModel(size_t alphabet, size_t context)
      : BatchModel(context, alphabet, static_cast<double>(kHidden * (context * kEmbedding + alphabet))),
        alphabet_(alphabet), context_(context) {
    AddParameter("embedding.weight", {alphabet, kEmbedding}, ParameterKind::kWeight);
    AddParameter("hidden.weight", {context * kEmbedding, kHidden}, ParameterKind::kWeight);
    AddParameter("hidden.bias", {kHidden}, ParameterKind::kBias);
    AddParameter("out.weight", {kHidden, alphabet}, ParameterKind::kWeight);
    AddParameter("out.bias", {alphabet}, ParameterKind::kBias);
  }

  // An embedding has one input, the character: values within ±0.5.
  void Initialize(uint64_t seed, std::span<const std::span<float>> parameters) const override {
    BatchModel::Initialize(seed, parameters);
    const float scale = 0.5f * std::sqrt(static_cast<float>(alphabet_) / 6.0f);
    for (float& w : parameters[0]) w *= scale;
  }

 private:
  size_t Character(float x) const {
    return x >= 0 && x < static_cast<float>(alphabet_) ? static_cast<size_t>(x) : 0;
  }

  void Forward(const float* x, size_t rows, Values p, Matrix* logits) override {
    embedded_.resize(Index(rows), Index(context_ * kEmbedding));
    for (size_t i = 0; i < rows * context_; ++i) {
      std::copy_n(&p[0][Character(x[i]) * kEmbedding], kEmbedding, embedded_.data() + i * kEmbedding);
    }
    Dense(View(embedded_), p[1], p[2], /*relu=*/true, &hidden_);
    Dense(View(hidden_), p[3], p[4], /*relu=*/false, logits);
  }

  void Backward(const float* x, const Matrix& delta, Values p, Gradients g) override {
    DenseGradient(View(hidden_), delta, g[3], g[4]);
    const Matrix back = delta * ConstMap(p[3].data(), Index(kHidden), delta.cols()).transpose();
    const Matrix hidden_delta = (hidden_.array() > 0).select(back, 0.0f);
    DenseGradient(View(embedded_), hidden_delta, g[1], g[2]);
    const Matrix input = hidden_delta * ConstMap(p[1].data(), embedded_.cols(), Index(kHidden)).transpose();
    std::fill(g[0].begin(), g[0].end(), 0.0f);
    for (size_t i = 0; i < static_cast<size_t>(delta.rows()) * context_; ++i) {
      float* const to = &g[0][Character(x[i]) * kEmbedding];
      for (size_t e = 0; e < kEmbedding; ++e) to[e] += input.data()[i * kEmbedding + e];
    }
  }

  static ConstMap View(const Matrix& m) { return ConstMap(m.data(), m.rows(), m.cols()); }

  const size_t alphabet_, context_;
  Matrix embedded_, hidden_;   // of the last Forward
};

}  // namespace

std::unique_ptr<worker::Model> MakeCharModel(size_t alphabet, size_t context) {
  return std::make_unique<CharModel>(alphabet, context);
}

}  // namespace sluice::bench
