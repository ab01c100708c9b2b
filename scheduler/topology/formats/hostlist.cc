#include "scheduler/topology/formats/hostlist.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "scheduler/topology/graph.h"

namespace sluice::topology {
namespace {

constexpr size_t kMaxDigits = 18;   // so that a number fits into 64 bits
constexpr size_t kMaxBrackets = 8;  // of one name

struct Range {
  uint64_t first = 0, last = 0;
  size_t width = 0;  // leading zeros fill up to it
};

struct Part {
  std::string text;           // before the bracket
  std::vector<Range> ranges;  // empty: there is none (the end of a name)
};

bool InName(char c) {
  const auto u = static_cast<unsigned char>(c);
  return u > ' ' && u != 127 && c != ',' && c != '[' && c != ']' && c != '"' && c != '\'' && c != '=' && c != '#' &&
         c != '\\';
}

std::string Quoted(absl::string_view text) {
  constexpr size_t kShown = 40;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kShown)), text.size() > kShown ? "…" : "", "\"");
}

absl::StatusOr<Range> ParseRange(absl::string_view text) {
  const size_t dash = text.find('-');
  const absl::string_view first = text.substr(0, dash);
  const absl::string_view last = dash == absl::string_view::npos ? first : text.substr(dash + 1);
  for (const absl::string_view number : {first, last}) {
    bool digits = !number.empty() && number.size() <= kMaxDigits;
    for (const char c : number) digits = digits && absl::ascii_isdigit(c);
    if (!digits)
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(text), " in brackets is no number and no range of numbers"));
  }
  Range range;
  range.width = first.size();
  if (!absl::SimpleAtoi(first, &range.first) || !absl::SimpleAtoi(last, &range.last))
    return absl::InvalidArgumentError(absl::StrCat(Quoted(text), " in brackets is no range of numbers"));
  if (range.last < range.first)
    return absl::InvalidArgumentError(absl::StrCat("the range ", Quoted(text), " goes down"));
  return range;
}

// One name with its brackets, from *at up to the next comma or the end.
absl::StatusOr<std::vector<Part>> ParseName(absl::string_view text, size_t* at) {
  std::vector<Part> parts(1);
  size_t bytes = 0;
  while (*at < text.size() && text[*at] != ',') {
    const char c = text[*at];
    if (c != '[') {
      if (!InName(c))
        return absl::InvalidArgumentError(
            c == ']' ? absl::StrCat("a ']' without its '[' in ", Quoted(text))
                     : absl::StrCat("the character ", Quoted(absl::string_view(&c, 1)), " is in no name"));
      parts.back().text += c;
      if (++bytes > kMaxVertexNameBytes)
        return absl::InvalidArgumentError(absl::StrCat("a name has more than ", kMaxVertexNameBytes, " bytes"));
      ++*at;
      continue;
    }
    const size_t end = text.find(']', *at);
    if (end == absl::string_view::npos)
      return absl::InvalidArgumentError(absl::StrCat("a '[' without its ']' in ", Quoted(text.substr(*at))));
    if (parts.size() > kMaxBrackets)
      return absl::InvalidArgumentError(absl::StrCat("a name has more than ", kMaxBrackets, " brackets"));
    absl::string_view inside = text.substr(*at + 1, end - *at - 1);
    for (;;) {
      const size_t comma = inside.find(',');
      SLUICE_ASSIGN_OR_RETURN(Range range, ParseRange(inside.substr(0, comma)));
      parts.back().ranges.push_back(range);
      if (comma == absl::string_view::npos) break;
      inside.remove_prefix(comma + 1);
    }
    parts.emplace_back();
    *at = end + 1;
  }
  if (parts.size() == 1 && parts[0].text.empty())
    return absl::InvalidArgumentError("an empty name (two commas, or one at an end)");
  return parts;
}

// How many names `parts` are; at most `limit` + 1.
size_t Count(const std::vector<Part>& parts, size_t limit) {
  size_t count = 1;
  for (const Part& part : parts) {
    if (part.ranges.empty()) continue;
    size_t here = 0;
    for (const Range& range : part.ranges) {
      const uint64_t numbers = range.last - range.first + 1;
      if (numbers > limit || (here += numbers) > limit) return limit + 1;
    }
    if (here > limit / count) return limit + 1;  // count * here > limit
    count *= here;
  }
  return count;
}

void Append(const std::vector<Part>& parts, size_t index, std::string prefix, std::vector<std::string>* out) {
  prefix += parts[index].text;
  if (parts[index].ranges.empty()) {
    out->push_back(std::move(prefix));
    return;
  }
  char digits[kMaxDigits + 2];
  for (const Range& range : parts[index].ranges)
    for (uint64_t number = range.first; number <= range.last; ++number) {
      const int length = std::snprintf(digits, sizeof digits, "%0*llu", static_cast<int>(range.width),
                                       static_cast<unsigned long long>(number));
      Append(parts, index + 1, prefix + std::string(digits, length), out);
    }
}

// A name as what stands before its last number, and that number. Without one: digits is empty.
struct Split {
  absl::string_view before, digits, after;
};

Split SplitName(absl::string_view name) {
  size_t end = name.size();
  while (end > 0 && !absl::ascii_isdigit(name[end - 1])) --end;
  size_t begin = end;
  while (begin > 0 && absl::ascii_isdigit(name[begin - 1]) && end - begin < kMaxDigits) --begin;
  return {name.substr(0, begin), name.substr(begin, end - begin), name.substr(end)};
}

// Whether a range of that width prints `number` as `digits`.
bool SameWidth(const Range& range, absl::string_view digits, uint64_t number) {
  return digits.size() == std::max(range.width, std::to_string(number).size());
}

}  // namespace

bool IsHostlistName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxVertexNameBytes) return false;
  for (const char c : name)
    if (!InName(c)) return false;
  return true;
}

absl::StatusOr<std::vector<std::string>> ExpandHostlist(absl::string_view text, size_t max_names) {
  std::vector<std::string> names;
  for (size_t at = 0;; ++at) {  // over the comma
    SLUICE_ASSIGN_OR_RETURN(const std::vector<Part> parts, ParseName(text, &at));
    const size_t left = max_names - names.size();
    if (Count(parts, left) > left)
      return absl::ResourceExhaustedError(
          absl::StrCat("the list ", Quoted(text), " has more than ", max_names, " names"));
    const size_t before = names.size();
    // A name that ends in a bracket has an empty last part: Append needs it as its end.
    Append(parts, 0, "", &names);
    for (size_t i = before; i < names.size(); ++i)
      if (names[i].size() > kMaxVertexNameBytes)
        return absl::InvalidArgumentError(absl::StrCat("a name has more than ", kMaxVertexNameBytes, " bytes"));
    if (at >= text.size()) return names;
  }
}

std::string CompressHostlist(std::span<const std::string> names) {
  std::string out;
  for (size_t i = 0; i < names.size();) {
    if (i > 0) out += ',';
    const Split first = SplitName(names[i]);
    uint64_t number = 0;
    if (first.digits.empty() || !absl::SimpleAtoi(first.digits, &number)) {
      out += names[i++];
      continue;
    }
    // All that follow with the same words around their number are one bracket.
    std::vector<Range> ranges = {{number, number, first.digits.size()}};
    size_t end = i + 1;
    for (; end < names.size(); ++end) {
      const Split next = SplitName(names[end]);
      if (next.digits.empty() || next.before != first.before || next.after != first.after ||
          !absl::SimpleAtoi(next.digits, &number))
        break;
      Range& range = ranges.back();
      if (number == range.last + 1 && SameWidth(range, next.digits, number)) {
        range.last = number;
      } else {
        ranges.push_back({number, number, next.digits.size()});
      }
    }
    if (end == i + 1) {
      out += names[i];
    } else {
      absl::StrAppend(&out, first.before);
      for (size_t r = 0; r < ranges.size(); ++r) {
        const auto digits = [&](uint64_t value) {
          const std::string text = std::to_string(value);
          return std::string(text.size() < ranges[r].width ? ranges[r].width - text.size() : 0, '0') + text;
        };
        absl::StrAppend(&out, r == 0 ? "[" : ",", digits(ranges[r].first));
        if (ranges[r].last > ranges[r].first) absl::StrAppend(&out, "-", digits(ranges[r].last));
      }
      absl::StrAppend(&out, "]", first.after);
    }
    i = end;
  }
  return out;
}

}  // namespace sluice::topology
