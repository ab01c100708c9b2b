#include "scheduler/topology/formats/units.h"

#include <cmath>
#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::topology {
namespace {

struct Unit {
  absl::string_view name;
  double value;
};

constexpr Unit kBandwidths[] = {{"b/s", 1.0 / 8},   {"kb/s", 1e3 / 8}, {"Mb/s", 1e6 / 8}, {"Gb/s", 1e9 / 8},
                                {"Tb/s", 1e12 / 8}, {"B/s", 1},        {"kB/s", 1e3},     {"MB/s", 1e6},
                                {"GB/s", 1e9},      {"TB/s", 1e12}};
// Divisors, so that 5us is the same number as 5e-6.
constexpr Unit kLatencies[] = {{"ns", 1e9}, {"us", 1e6}, {"ms", 1e3}, {"s", 1}};

std::string Digits(double value, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  return text;
}

// A number as far as it goes, and its unit.
absl::string_view UnitOf(absl::string_view text) {
  size_t end = 0;
  while (end < text.size() &&
         (absl::ascii_isdigit(text[end]) || text[end] == '.' ||
          ((text[end] == 'e' || text[end] == 'E') && end > 0 && end + 1 < text.size() &&
           (absl::ascii_isdigit(text[end + 1]) || text[end + 1] == '+' || text[end + 1] == '-')) ||
          ((text[end] == '+' || text[end] == '-') && end > 0 && absl::ascii_tolower(text[end - 1]) == 'e')))
    ++end;
  return text.substr(end);
}

}  // namespace

absl::StatusOr<double> ParsePositive(absl::string_view text) {
  double value = 0;
  if (text.empty() || !absl::ascii_isdigit(text[0]) || !absl::SimpleAtod(text, &value) || !std::isfinite(value) ||
      !(value > 0))
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no number above 0"));
  return value;
}

absl::StatusOr<double> ParseBandwidth(absl::string_view text) {
  const absl::string_view unit = UnitOf(text);
  for (const Unit& known : kBandwidths)
    if (unit == known.name) {
      SLUICE_ASSIGN_OR_RETURN(const double number, ParsePositive(text.substr(0, text.size() - unit.size())));
      const double value = number * known.value;
      if (!std::isfinite(value) || !(value > 0)) break;
      return value;
    }
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no bandwidth such as 25Gb/s or 3GB/s"));
}

absl::StatusOr<double> ParseLatency(absl::string_view text) {
  const absl::string_view unit = UnitOf(text);
  for (const Unit& known : kLatencies)
    if (unit == known.name) {
      SLUICE_ASSIGN_OR_RETURN(const double number, ParsePositive(text.substr(0, text.size() - unit.size())));
      const double value = number / known.value;
      if (!(value > 0)) break;
      return value;
    }
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no latency such as 5us or 300ns"));
}

std::string BandwidthText(double bytes_per_second) {
  for (const int digits : {6, 17}) {
    const std::string text = Digits(bytes_per_second / (1e9 / 8), digits) + "Gb/s";
    const absl::StatusOr<double> back = ParseBandwidth(text);
    if (back.ok() && *back == bytes_per_second) return text;
  }
  return Digits(bytes_per_second, 17) + "B/s";
}

std::string LatencyText(double seconds) {
  for (const int digits : {6, 17}) {
    const std::string text = Digits(seconds * 1e6, digits) + "us";
    const absl::StatusOr<double> back = ParseLatency(text);
    if (back.ok() && *back == seconds) return text;
  }
  return Digits(seconds, 17) + "s";
}

std::string ShortBandwidth(double bytes_per_second) {
  const double bits = bytes_per_second * 8;
  for (const auto& [name, value] : {Unit{"Tb/s", 1e12}, Unit{"Gb/s", 1e9}, Unit{"Mb/s", 1e6}, Unit{"kb/s", 1e3}})
    if (bits >= value) return absl::StrCat(Digits(bits / value, 4), " ", name);
  return absl::StrCat(Digits(bits, 4), " b/s");
}

std::string ShortLatency(double seconds) {
  for (const auto& [name, value] : {Unit{"s", 1}, Unit{"ms", 1e-3}, Unit{"us", 1e-6}})
    if (seconds >= value) return absl::StrCat(Digits(seconds / value, 4), " ", name);
  return absl::StrCat(Digits(seconds * 1e9, 4), " ns");
}

}  // namespace sluice::topology
