// The makers of all codecs: a new one is a file, a line here and a line in the table of codec.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "compression/codec.h"

namespace sluice::compression {

// The parameter is what stands behind the ':', empty if nothing does.
absl::StatusOr<std::unique_ptr<Codec>> MakeNone(std::string_view);
absl::StatusOr<std::unique_ptr<Codec>> MakeFp16(std::string_view);
absl::StatusOr<std::unique_ptr<Codec>> MakeBf16(std::string_view);
absl::StatusOr<std::unique_ptr<Codec>> MakeMxfp8(std::string_view);
absl::StatusOr<std::unique_ptr<Codec>> MakeNvfp4(std::string_view);
absl::StatusOr<std::unique_ptr<Codec>> MakeInt8(std::string_view parameter);
absl::StatusOr<std::unique_ptr<Codec>> MakeInt4(std::string_view parameter);
absl::StatusOr<std::unique_ptr<Codec>> MakeOneBit(std::string_view);
absl::StatusOr<std::unique_ptr<Codec>> MakeTernGrad(std::string_view);
absl::StatusOr<std::unique_ptr<Codec>> MakeQsgd(std::string_view levels);
absl::StatusOr<std::unique_ptr<Codec>> MakeTopK(std::string_view ratio);
absl::StatusOr<std::unique_ptr<Codec>> MakeRandK(std::string_view ratio);
absl::StatusOr<std::unique_ptr<Codec>> MakeThreshold(std::string_view value);

// halves: the factors travel as fp16. columns: as in MakeCodec.
absl::StatusOr<std::unique_ptr<Codec>> MakeLowRank(std::string_view rank, bool halves, uint64_t columns);

std::unique_ptr<Codec> MakeSparseDecoder();

// picks: the name of the first part, which is known to be a codec.
absl::StatusOr<std::unique_ptr<Codec>> MakeChain(std::string_view picks, std::unique_ptr<Codec> values);

}  // namespace sluice::compression
