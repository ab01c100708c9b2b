// The readers of one format each, over any source of bytes.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "worker/data/byte_source.h"
#include "worker/data/dataset.h"

namespace sluice::worker {

// IDX (yann.lecun.com/exdb/mnist): u16 zero, u8 type (0x08 u8, 0x09 i8, 0x0B i16, 0x0C i32, 0x0D f32, 0x0E f64), u8
// dimensions, u32 size of each, values; big-endian. images: 2 to 4 dimensions, all but the first are features.
// labels: 1 dimension, integers.
absl::StatusOr<Dataset> ReadIdx(ByteSource* images, ByteSource* labels, const ReadOptions& options);

// One example a line: numbers, one of them the label (a whole number from 0). Numbers may stand in double quotes. Empty
// lines are skipped.
absl::StatusOr<Dataset> ReadCsv(ByteSource* source, const ReadOptions& options);

// One example a line: LABEL [qid:N] INDEX:VALUE… with rising indices; # begins a comment. Labels are whole numbers from
// 0, or -1 and 1, which become 0 and 1.
absl::StatusOr<Dataset> ReadLibsvm(ByteSource* source, const ReadOptions& options);

// A finite number and nothing else; spaces around it and one leading + are allowed.
bool ParseNumber(std::string_view text, float* out);
// The label of a class: a whole number, perhaps written 3.0. False if it is none, or lies outside ±2^30.
bool ParseLabel(std::string_view text, int32_t* out);
std::string_view Trim(std::string_view text);
// `text` as it may stand in an error: cut, and without control characters.
std::string Quote(std::string_view text);

// OK if `rows` examples of `features` fit into the limits; where: for the error.
absl::Status CheckSize(uint64_t rows, uint64_t features, const ReadLimits& limits, std::string_view where);
// Labels are there: counts the classes, or checks them against options.classes. where: for the error.
absl::Status SetClasses(Dataset* data, const ReadOptions& options, std::string_view where);

}  // namespace sluice::worker
