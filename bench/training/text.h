// A text as examples of "which character comes next".
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace sluice::bench {

struct TextData {
  worker::Dataset train, test;   // features: the numbers of `context` characters; label: that of the next one
  size_t alphabet = 0;
};

// The last twentieth of the file is for testing. Up to train_rows and test_rows places, evenly spread. Characters (bytes)
// are numbered in order of their value. NOT_FOUND; INVALID_ARGUMENT if the file is too short, or beyond 64 MiB.
absl::StatusOr<TextData> ReadText(const std::string& path, size_t context, size_t train_rows, size_t test_rows);

}  // namespace sluice::bench
