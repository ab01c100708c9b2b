// RDMA: which devices this machine has, which of them members will use, and what stands in the way of the others
// (rdma/device.h judges). Trouble with a device only warns unless data.transport asks for RDMA: members do without it.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ctl/doctor.h"
#include "rdma/memory.h"
#include "rdma/verbs.h"

namespace sluice::ctl {
namespace {

constexpr char kName[] = "RDMA";

std::string NameOf(const std::string& device) { return device.empty() ? kName : absl::StrCat(kName, " ", device); }

}  // namespace

bool HasRdmaDevice(const rdma::HostFacts& facts) { return !facts.devices.empty() || !facts.kernel_devices.empty(); }

std::vector<Check> CheckRdma(const rdma::HostFacts& facts, const rdma::RailOptions& options, bool wanted) {
  if (!HasRdmaDevice(facts) && options.devices.empty()) {
    if (!wanted) return {{Check::kOk, kName, "no RDMA device: TCP and shared memory are used", ""}};
    return {{Check::kFail, kName, "no RDMA device, and data.transport is rdma",
             "load the device's driver (`rdma link` must list it), install libibverbs1 and ibverbs-providers, or take "
             "data.transport=auto"}};
  }
  const rdma::RailChoice choice = rdma::ChooseRails(facts, options);
  std::vector<Check> checks;
  for (const rdma::Rail& rail : choice.rails) {
    checks.push_back({Check::kOk, NameOf(rail.device),
                      absl::StrCat("is used: ", rail.ToString(),
                                   rail.megabits > 0 ? absl::StrCat(", ", rail.megabits, " Mb/s") : ""),
                      ""});
  }
  for (const rdma::Finding& finding : choice.findings) {
    if (finding.mend == rdma::MemlockMend()) continue;   // CheckLockedMemory says it
    const Check::Level level = finding.severity == rdma::Severity::kInfo                ? Check::kOk
                               : finding.severity == rdma::Severity::kError && wanted ? Check::kFail
                                                                                        : Check::kWarn;
    checks.push_back({level, NameOf(finding.device), finding.what, finding.mend});
  }
  if (choice.rails.empty()) {
    checks.push_back({wanted ? Check::kFail : Check::kWarn, kName,
                      wanted ? "no device can be used, and data.transport is rdma"
                             : "no device can be used: TCP and shared memory are used",
                      "see the rows above"});
  }
  return checks;
}

std::vector<Check> ExamineRdma(const proto::Config& config) {
  const auto verbs = rdma::LoadVerbs();
  const rdma::HostFacts facts = rdma::GatherFacts(verbs.ok() ? verbs->get() : nullptr, verbs.status());
  rdma::RailOptions options;
  options.devices = absl::StrSplit(config.rdma().devices(), ',', absl::SkipWhitespace());
  options.gid_index = config.rdma().gid_index();
  std::vector<Check> checks = {CheckLockedMemory(HasRdmaDevice(facts))};
  if (config.data().transport() == "tcp" || config.data().transport() == "shm") {
    checks.push_back({Check::kOk, kName, absl::StrCat("not looked for: data.transport is ", config.data().transport()), ""});
    return checks;
  }
  for (Check& check : CheckRdma(facts, options, config.data().transport() == "rdma")) checks.push_back(std::move(check));
  return checks;
}

}  // namespace sluice::ctl
