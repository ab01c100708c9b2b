// Images are rows x columns x channels, so a patch is five runs of 5 x channels values. A convolution is a matrix product
// with one row a patch (im2col); its output is an image of the same layout.
#include <algorithm>
#include <utility>

#include "bench/training/batch_model.h"
#include "bench/training/models.h"

namespace sluice::bench {
namespace {

using worker::ParameterKind;

constexpr size_t kKernel = 5, kStride = 2, kFilters1 = 8, kFilters2 = 16;

struct Convolution {
  size_t side, channels, filters;
  size_t out_side() const { return (side - kKernel) / kStride + 1; }
  size_t patches() const { return out_side() * out_side(); }
  size_t patch() const { return kKernel * kKernel * channels; }
  double multiplications() const { return static_cast<double>(patches() * patch() * filters); }

  // Calls run(place in the image, place in the patches, length) for each run of a patch of one image.
  template <typename Run>
  void ForEachRun(Run run) const {
    size_t to = 0;
    for (size_t y = 0; y < out_side(); ++y) {
      for (size_t x = 0; x < out_side(); ++x) {
        for (size_t k = 0; k < kKernel; ++k, to += kKernel * channels) {
          run(((y * kStride + k) * side + x * kStride) * channels, to, kKernel * channels);
        }
      }
    }
  }

  void Gather(const float* images, size_t rows, Matrix* patches_out) const {
    patches_out->resize(Index(rows * patches()), Index(patch()));
    for (size_t r = 0; r < rows; ++r) {
      const float* const image = images + r * side * side * channels;
      float* const out = patches_out->data() + r * patches() * patch();
      ForEachRun([&](size_t from, size_t to, size_t n) { std::copy_n(image + from, n, out + to); });
    }
  }

  // The gradient of the images from that of the patches.
  void Scatter(const Matrix& patch_gradients, size_t rows, Matrix* images) const {
    images->setZero(Index(rows * side * side), Index(channels));
    for (size_t r = 0; r < rows; ++r) {
      float* const image = images->data() + r * side * side * channels;
      const float* const in = patch_gradients.data() + r * patches() * patch();
      ForEachRun([&](size_t to, size_t from, size_t n) {
        for (size_t i = 0; i < n; ++i) image[to + i] += in[from + i];
      });
    }
  }
};

class ConvNet final : public BatchModel {
 public:
  ConvNet(Convolution first, Convolution second, size_t classes)
      : BatchModel(first.side * first.side, classes,
                   first.multiplications() + second.multiplications() +
                       static_cast<double>(second.patches() * second.filters * classes)),
        first_(first), second_(second) {
    AddParameter("conv1.weight", {first.patch(), first.filters}, ParameterKind::kWeight);
    AddParameter("conv1.bias", {first.filters}, ParameterKind::kBias);
    AddParameter("conv2.weight", {second.patch(), second.filters}, ParameterKind::kWeight);
    AddParameter("conv2.bias", {second.filters}, ParameterKind::kBias);
    AddParameter("linear.weight", {second.patches() * second.filters, classes}, ParameterKind::kWeight);
    AddParameter("linear.bias", {classes}, ParameterKind::kBias);
  }

 private:
  void Forward(const float* x, size_t rows, Values p, Matrix* logits) override {
    first_.Gather(x, rows, &patches1_);
    Dense(View(patches1_), p[0], p[1], /*relu=*/true, &image1_);
    second_.Gather(image1_.data(), rows, &patches2_);
    Dense(View(patches2_), p[2], p[3], /*relu=*/true, &image2_);
    Dense(Flat(rows), p[4], p[5], /*relu=*/false, logits);
  }

  void Backward(const float*, const Matrix& delta, Values p, Gradients g) override {
    const auto rows = static_cast<size_t>(delta.rows());
    DenseGradient(Flat(rows), delta, g[4], g[5]);
    const Matrix flat = delta * ConstMap(p[4].data(), Index(second_.patches() * second_.filters), delta.cols()).transpose();
    const Matrix delta2 =
        (image2_.array() > 0).select(ConstMap(flat.data(), image2_.rows(), image2_.cols()), 0.0f);
    DenseGradient(View(patches2_), delta2, g[2], g[3]);
    const Matrix back = delta2 * ConstMap(p[2].data(), patches2_.cols(), delta2.cols()).transpose();
    Matrix delta1;
    second_.Scatter(back, rows, &delta1);
    delta1 = (image1_.array() > 0).select(delta1, 0.0f);
    DenseGradient(View(patches1_), delta1, g[0], g[1]);
  }

  static ConstMap View(const Matrix& m) { return ConstMap(m.data(), m.rows(), m.cols()); }
  ConstMap Flat(size_t rows) const {
    return ConstMap(image2_.data(), Index(rows), Index(second_.patches() * second_.filters));
  }

  const Convolution first_, second_;
  Matrix patches1_, image1_, patches2_, image2_;   // of the last Forward
};

}  // namespace

std::unique_ptr<worker::Model> MakeConvNet(size_t side, size_t classes) {
  const Convolution first{side, 1, kFilters1};
  return std::make_unique<ConvNet>(first, Convolution{first.out_side(), kFilters1, kFilters2}, classes);
}

}  // namespace sluice::bench
