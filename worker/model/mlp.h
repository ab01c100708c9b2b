// A multilayer perceptron with ReLU between its layers and softmax with cross-entropy at the end. Without hidden layers
// it is softmax regression.
#pragma once

#include <memory>
#include <vector>

#include "worker/model/model.h"

namespace sluice::worker {

// widths: features, hidden layers, classes; at least two, none 0.
std::unique_ptr<Model> MakeMlp(std::vector<size_t> widths);

}  // namespace sluice::worker
