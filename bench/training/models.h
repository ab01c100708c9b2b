// The models that bench/convergence trains beside the worker's perceptron.
#pragma once

#include <cstddef>
#include <memory>

#include "worker/model/model.h"

namespace sluice::bench {

// Images of side x side grey values: two convolutions of 5 x 5 with stride 2 and ReLU (8 and 16 filters), then softmax.
// side: at least 13.
std::unique_ptr<worker::Model> MakeConvNet(size_t side, size_t classes);

// The next character from the last `context` ones, given as numbers below `alphabet`: an embedding of 16 values a
// character, a hidden layer of 128 with ReLU, softmax. Features that are no such number read as character 0.
std::unique_ptr<worker::Model> MakeCharModel(size_t alphabet, size_t context);

}  // namespace sluice::bench
