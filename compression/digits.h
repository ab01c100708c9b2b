// A small training job for the oracles of codecs: handwritten digits (1,797 images of 8 x 8, UCI), a perceptron of
// 64-128-10 with ReLU and softmax, synchronous SGD of several workers whose gradients pass through real codecs. One thread,
// no runtime. docs/compression.md has the figures.
//
// What the figures depend on, and is the same for all:
//   - features are the pixels (0 to 16) over 16; weights begin normal with deviation 1 / sqrt(inputs), biases at 0
//   - the first 1,437 rows train, the other 360 test; each worker draws 32 rows with replacement for a step
//   - 1,200 steps at rate 0.1, the last 30 % at 0.01
//   - all parameters are one tensor of 9,610 elements unless the job says otherwise, biases too: nothing is exempt from the
//     codec, and the largest 1 per mille are ten of all (of each tensor by itself 1 per mille alone ends lower: .70 for .77)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::compression {

struct Digits {
  std::vector<float> x;  // rows x 64, 0 to 1
  std::vector<int> y;    // rows, 0 to 9
  size_t rows() const { return y.size(); }
};

// path: scikit-learn's digits.csv.gz: 64 pixels and the label in a line. NOT_FOUND without it; DATA_LOSS names the line.
absl::StatusOr<Digits> ReadDigits(const std::string& path);

struct DigitsJob {
  std::string codec = "none";    // of pushes
  std::string reply = "";        // of replies, which are changes of the parameters; empty: parameters as they are
  bool by_tensor = false;        // each of the four tensors by itself, as codecs of matrices need it
  bool feedback = true;          // workers keep a residual, if the codec uses one
  float push_scale = 1;          // what is decoded counts so many times (the unbiased form of random-k: n / k)
  float momentum = 0;            // of the server's optimizer
  size_t workers = 4;
  int steps = 1200;
};

// Share of the test rows that the trained model names rightly. The same seed has the same start and the same examples
// whatever the codec. INVALID_ARGUMENT names an unknown codec.
absl::StatusOr<double> TrainDigits(const Digits& digits, const DigitsJob& job, uint64_t seed);

}  // namespace sluice::compression
