#include "server/table/row_init.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/config_schema.h"
#include "base/philox.h"

namespace sluice::server {
namespace {

constexpr uint32_t kDomain = 0x726F7773;  // "rows"
constexpr int32_t kMeanOfTwelve = 6 * 65535;

const std::vector<std::string>& Kinds() {  // in the order of RowInit::Kind
  static const auto* kinds = new std::vector<std::string>{"zero", "uniform", "normal"};
  return *kinds;
}

// The words of one row, in order.
class RowWords {
 public:
  RowWords(uint64_t seed, uint64_t id)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, id_(id) {}
  uint32_t Next() {
    if (used_ == 4) {
      block_ = Philox4x32({count_++, kDomain, static_cast<uint32_t>(id_), static_cast<uint32_t>(id_ >> 32)}, key_);
      used_ = 0;
    }
    return block_[used_++];
  }

 private:
  const std::array<uint32_t, 2> key_;
  const uint64_t id_;
  uint32_t count_ = 0;
  PhiloxBlock block_{};
  int used_ = 4;
};

}  // namespace

absl::StatusOr<RowInit> RowInit::Create(const proto::TableSpec& spec) {
  const std::string name = spec.initializer().empty() ? "zero" : spec.initializer();
  const auto found = std::find(Kinds().begin(), Kinds().end(), name);
  if (found == Kinds().end())
    return absl::InvalidArgumentError(absl::StrCat("table.initializer: no initializer \"", name.substr(0, 80), "\" (",
                                                   absl::StrJoin(Kinds(), ", "), "); the nearest is \"",
                                                   Nearest(name, Kinds()), "\""));
  const double scale = spec.init_scale() == 0 ? 0.01 : spec.init_scale();
  if (!(scale >= 1e-30 && scale < 1e30))
    return absl::InvalidArgumentError(absl::StrCat("table.init_scale is ", spec.init_scale(),
                                                   "; it must be from 1e-30 to below 1e30, or 0 for 0.01"));
  RowInit init;
  init.kind_ = static_cast<Kind>(found - Kinds().begin());
  init.seed_ = spec.seed();
  init.scale_ = static_cast<float>(scale);
  return init;
}

void RowInit::Fill(uint64_t id, std::span<float> values) const {
  RowWords words(seed_, id);
  switch (kind_) {
    case Kind::kZero: std::fill(values.begin(), values.end(), 0.0f); break;
    case Kind::kUniform:
      for (float& value : values) value = (static_cast<float>(words.Next() >> 8) * 0x1p-23f - 1.0f) * scale_;
      break;
    case Kind::kNormal:
      for (float& value : values) {
        int32_t sum = -kMeanOfTwelve;
        for (int i = 0; i < 6; ++i) {
          const uint32_t word = words.Next();
          sum += static_cast<int32_t>(word & 0xFFFF) + static_cast<int32_t>(word >> 16);
        }
        value = static_cast<float>(sum) * 0x1p-16f * scale_;
      }
      break;
  }
}

}  // namespace sluice::server
