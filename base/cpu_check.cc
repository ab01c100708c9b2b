// Built for plain x86-64 (see BUILD): it must run where the rest cannot.
#include "base/cpu_check.h"

namespace sluice {

absl::Status MissingCpuFeatures(const std::vector<std::string>& missing) {
  if (missing.empty()) return absl::OkStatus();
  std::string names;
  for (const std::string& name : missing) {
    if (!names.empty()) names += ", ";
    names += name;
  }
  return absl::FailedPreconditionError(
      "this processor lacks " + names +
      ", which Sluice's builds use (x86-64-v3: Intel Haswell or AMD Zen and later; in a virtual machine pass the "
      "host's "
      "CPU model through). Run on such a machine, or build with another --copt=-march in .bazelrc");
}

absl::Status CheckCpu() {
  std::vector<std::string> missing;
  if (!__builtin_cpu_supports("avx2")) missing.push_back("AVX2");
  if (!__builtin_cpu_supports("fma")) missing.push_back("FMA");
  if (!__builtin_cpu_supports("f16c")) missing.push_back("F16C");
  if (!__builtin_cpu_supports("bmi2")) missing.push_back("BMI2");
  return MissingCpuFeatures(missing);
}

}  // namespace sluice
