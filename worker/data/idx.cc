#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/data/parsers.h"

namespace sluice::worker {
namespace {

enum class IdxType : uint8_t { kU8 = 0x08, kI8 = 0x09, kI16 = 0x0B, kI32 = 0x0C, kF32 = 0x0D, kF64 = 0x0E };

struct IdxHeader {
  IdxType type = IdxType::kU8;
  std::vector<uint64_t> sizes;
};

size_t BytesOf(IdxType type) {
  switch (type) {
    case IdxType::kU8:
    case IdxType::kI8:
      return 1;
    case IdxType::kI16:
      return 2;
    case IdxType::kI32:
    case IdxType::kF32:
      return 4;
    case IdxType::kF64:
      return 8;
  }
  return 0;
}

uint64_t LoadBigEndian(const char* p, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(p[i]);
  return value;
}

double Load(const char* p, IdxType type) {
  switch (type) {
    case IdxType::kU8:
      return static_cast<uint8_t>(*p);
    case IdxType::kI8:
      return static_cast<int8_t>(*p);
    case IdxType::kI16:
      return static_cast<int16_t>(LoadBigEndian(p, 2));
    case IdxType::kI32:
      return static_cast<int32_t>(LoadBigEndian(p, 4));
    case IdxType::kF32:
      return std::bit_cast<float>(static_cast<uint32_t>(LoadBigEndian(p, 4)));
    case IdxType::kF64:
      return std::bit_cast<double>(LoadBigEndian(p, 8));
  }
  return 0;
}

absl::StatusOr<IdxHeader> ReadHeader(ByteSource* source, ExactReader& reader) {
  char raw[4];
  SLUICE_RETURN_IF_ERROR(reader.Read(raw, 4));
  IdxHeader header;
  header.type = static_cast<IdxType>(raw[2]);
  const size_t dimensions = static_cast<uint8_t>(raw[3]);
  if (raw[0] != 0 || raw[1] != 0 || BytesOf(header.type) == 0 || dimensions == 0 || dimensions > 4) {
    return absl::InvalidArgumentError(absl::StrCat(source->name(), ": no IDX file: it begins with 0x",
                                                   absl::Hex(LoadBigEndian(raw, 4), absl::kZeroPad8)));
  }
  for (size_t i = 0; i < dimensions; ++i) {
    SLUICE_RETURN_IF_ERROR(reader.Read(raw, 4));
    header.sizes.push_back(LoadBigEndian(raw, 4));
  }
  return header;
}

// Reads count values and hands each to fn.
template <typename Fn>
absl::Status ReadValues(ByteSource* source, ExactReader& reader, IdxType type, uint64_t count, Fn fn) {
  const size_t bytes = BytesOf(type);
  std::vector<char> buffer(size_t{64 << 10});
  for (uint64_t i = 0; i < count;) {
    const uint64_t offset = reader.offset();
    const size_t now = std::min<uint64_t>(count - i, buffer.size() / bytes);
    SLUICE_RETURN_IF_ERROR(reader.Read(buffer.data(), now * bytes));
    for (size_t k = 0; k < now; ++k) {
      const double value = Load(buffer.data() + k * bytes, type);
      if (!fn(i + k, value)) {
        return absl::InvalidArgumentError(absl::StrCat(source->name(), ": value ", value, " at offset ",
                                                       offset + k * bytes, " cannot be used here"));
      }
    }
    i += now;
  }
  return reader.ExpectEnd();
}

}  // namespace

absl::StatusOr<Dataset> ReadIdx(ByteSource* images, ByteSource* labels, const ReadOptions& options) {
  ExactReader image_reader(images), label_reader(labels);
  SLUICE_ASSIGN_OR_RETURN(const IdxHeader image, ReadHeader(images, image_reader));
  SLUICE_ASSIGN_OR_RETURN(const IdxHeader label, ReadHeader(labels, label_reader));
  if (image.sizes.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(images->name(), ": has one dimension, so it holds labels; images are expected here"));
  }
  if (label.sizes.size() != 1 || label.type == IdxType::kF32 || label.type == IdxType::kF64) {
    return absl::InvalidArgumentError(absl::StrCat(labels->name(), ": has ", label.sizes.size(),
                                                   " dimensions; one, of integers, is expected of labels"));
  }
  if (image.sizes[0] != label.sizes[0]) {
    return absl::InvalidArgumentError(absl::StrCat(images->name(), " has ", image.sizes[0], " examples, but ",
                                                   labels->name(), " has ", label.sizes[0], " labels"));
  }
  Dataset data;
  data.rows = image.sizes[0];
  uint64_t features = 1;
  for (size_t i = 1; i < image.sizes.size() && features <= options.limits.max_features; ++i) features *= image.sizes[i];
  if (features == 0) return absl::InvalidArgumentError(absl::StrCat(images->name(), ": an image has no pixel"));
  SLUICE_RETURN_IF_ERROR(CheckSize(data.rows, features, options.limits, images->name()));
  if (options.features != 0 && options.features != features) {
    return absl::InvalidArgumentError(absl::StrCat(images->name(), ": an image has ", features, " values, expected ",
                                                   options.features));
  }
  data.features = features;
  const float scale = options.scale != 0 ? options.scale : image.type == IdxType::kU8 ? 1.0f / 255 : 1.0f;
  try {
    // Memory is used as it is filled, so a header that promises too much costs address space only.
    data.x.reserve(data.rows * features);
    data.y.reserve(data.rows);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the ", data.rows, " images of ", features, " values in ", images->name()));
  }
  SLUICE_RETURN_IF_ERROR(ReadValues(labels, label_reader, label.type, data.rows, [&](uint64_t, double value) {
    data.y.push_back(static_cast<int32_t>(value));
    return value >= 0;
  }));
  SLUICE_RETURN_IF_ERROR(SetClasses(&data, options, labels->name()));
  SLUICE_RETURN_IF_ERROR(
      ReadValues(images, image_reader, image.type, data.rows * features, [&](uint64_t, double value) {
        // Also false for what is not finite, or too large for a float.
        const bool good = std::abs(value) <= 3e38;
        data.x.push_back(good ? static_cast<float>(value) * scale : 0);
        return good;
      }));
  return data;
}

}  // namespace sluice::worker
