// The makers of all codecs: a new one is a file, a line here and a line in the table of codec.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "compression/codec.h"

namespace sluice::compression {

std::unique_ptr<Codec> MakeNone();
std::unique_ptr<Codec> MakeFp16();
std::unique_ptr<Codec> MakeBf16();
std::unique_ptr<Codec> MakeInt8();
absl::StatusOr<std::unique_ptr<Codec>> MakeTopK(std::string_view ratio);

}  // namespace sluice::compression
