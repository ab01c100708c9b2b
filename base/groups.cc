#include "base/groups.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace sluice {
namespace {

constexpr absl::string_view kForm =
    "job.groups is a list of NAME:SIZE, innermost first, such as tensor:8,pipeline:4,data:16";

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("job.groups: ", what, ". ", kForm));
}

bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxGroupNameBytes && absl::ascii_isalpha(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; });
}

// What a message quotes of a text that may be anything.
std::string Quoted(absl::string_view text) { return absl::StrCat("\"", text.substr(0, 64), "\""); }

}  // namespace

absl::StatusOr<Groups> Groups::Parse(absl::string_view text, uint32_t workers) {
  Groups groups;
  groups.workers_ = std::max(workers, 1u);
  if (absl::StripAsciiWhitespace(text).empty()) return groups;
  uint64_t product = 1;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (groups.axes_.size() == kMaxGroupAxes) return Bad(absl::StrCat("more than ", kMaxGroupAxes, " axes"));
    const size_t colon = part.find(':');
    const absl::string_view name = absl::StripAsciiWhitespace(part.substr(0, colon));
    const absl::string_view digits =
        colon == absl::string_view::npos ? "" : absl::StripAsciiWhitespace(part.substr(colon + 1));
    if (!IsName(name)) return Bad(absl::StrCat(Quoted(name), " is no name: a letter, then letters, digits, _ and -"));
    if (name == kWorldGroup) return Bad("\"world\" is the name of the group of all ranks");
    uint32_t size = 0;
    if (!std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(digits, &size) || size == 0)
      return Bad(absl::StrCat(Quoted(part), " names no size of 1 or more"));
    for (const GroupAxis& axis : groups.axes_)
      if (axis.name == name) return Bad(absl::StrCat("\"", name, "\" comes twice"));
    groups.axes_.push_back({std::string(name), size, static_cast<uint32_t>(product)});
    product *= size;
    if (product > groups.workers_) break;   // before it can overflow
  }
  if (product != groups.workers_)
    return Bad(absl::StrCat("the product of the sizes is ", product, product > groups.workers_ ? " or more" : "",
                            ", but job.workers is ", groups.workers_));
  return groups;
}

absl::StatusOr<RankGroup> Groups::Of(uint32_t rank, absl::string_view name) const {
  if (name.empty() || name == kWorldGroup) return Of(rank, 0u);
  for (size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].name == name) return Of(rank, static_cast<uint32_t>(i + 1));
  return absl::NotFoundError(absl::StrCat(
      "there is no group ", Quoted(name), "; there are: world",
      axes_.empty() ? " (job.groups is empty)" : "", absl::StrJoin(axes_, "", [](std::string* out, const GroupAxis& axis) {
        absl::StrAppend(out, ", ", axis.name);
      })));
}

absl::StatusOr<RankGroup> Groups::Of(uint32_t rank, uint32_t number) const {
  if (rank >= workers_) return absl::OutOfRangeError(absl::StrCat("rank ", rank, " of ", workers_, " workers"));
  if (number > axes_.size())
    return absl::NotFoundError(absl::StrCat("there is no group number ", number, " of ", axes_.size() + 1));
  RankGroup group;
  group.number = number;
  if (number == 0) {
    group.name = std::string(kWorldGroup);
    group.size = workers_;
    group.index = rank;
    return group;
  }
  const GroupAxis& axis = axes_[number - 1];
  group.name = axis.name;
  group.stride = axis.stride;
  group.size = axis.size;
  group.index = rank / axis.stride % axis.size;
  group.first = rank - group.index * axis.stride;
  return group;
}

}  // namespace sluice
