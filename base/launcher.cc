#include "base/launcher.h"

#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice {
namespace {

// A whole number from 0 to 2^31 - 1; nothing if the variable is absent or empty.
absl::StatusOr<std::optional<int>> Number(const Environment& environment, const char* name) {
  const std::optional<std::string> text = environment.Get(name);
  if (!text || text->empty()) return std::optional<int>();
  int value = 0;
  if (!absl::SimpleAtoi(*text, &value) || value < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable ", name, ": \"", text->substr(0, 80), "\" is not a whole number from 0 on"));
  }
  return std::optional<int>(value);
}

std::string Text(const Environment& environment, const char* name) { return environment.Get(name).value_or(""); }

}  // namespace

absl::StatusOr<LaunchInfo> ReadLauncher(const Environment& environment, std::string_view role) {
  LaunchInfo info;
  const bool is_worker = role == "worker";
  const bool is_scheduler = role == "scheduler";

  const std::string dmlc_role = Text(environment, "DMLC_ROLE");
  if (!dmlc_role.empty() && !role.empty() && dmlc_role != role) {
    return absl::FailedPreconditionError(absl::StrCat("this is the ", std::string(role), ", but DMLC_ROLE says \"",
                                                      dmlc_role.substr(0, 80), "\": start sluice-",
                                                      dmlc_role.substr(0, 80), " there, or unset DMLC_ROLE"));
  }

  SLUICE_ASSIGN_OR_RETURN(const std::optional<int> rank, Number(environment, "RANK"));
  SLUICE_ASSIGN_OR_RETURN(const std::optional<int> world, Number(environment, "WORLD_SIZE"));
  SLUICE_ASSIGN_OR_RETURN(info.local_rank, Number(environment, "LOCAL_RANK"));
  SLUICE_ASSIGN_OR_RETURN(const std::optional<int> dmlc_workers, Number(environment, "DMLC_NUM_WORKER"));
  SLUICE_ASSIGN_OR_RETURN(const std::optional<int> dmlc_servers, Number(environment, "DMLC_NUM_SERVER"));
  SLUICE_ASSIGN_OR_RETURN(const std::optional<int> dmlc_port, Number(environment, "DMLC_PS_ROOT_PORT"));
  SLUICE_ASSIGN_OR_RETURN(const std::optional<int> slurm_rank, Number(environment, "SLURM_PROCID"));
  SLUICE_ASSIGN_OR_RETURN(const std::optional<int> slurm_tasks, Number(environment, "SLURM_NTASKS"));

  if (rank) {
    info.rank = rank;
  } else if (slurm_rank && is_worker) {
    info.rank = slurm_rank;
  }

  // Servers and the scheduler do not count tasks: srun counts them in its own way, torchrun never starts them.
  if (world && is_worker) {
    info.values.push_back({"job.workers", absl::StrCat(*world), "WORLD_SIZE"});
  } else if (dmlc_workers) {
    info.values.push_back({"job.workers", absl::StrCat(*dmlc_workers), "DMLC_NUM_WORKER"});
  } else if (slurm_tasks && slurm_rank && is_worker) {
    info.values.push_back({"job.workers", absl::StrCat(*slurm_tasks), "SLURM_NTASKS"});
  }
  if (dmlc_servers) info.values.push_back({"node.servers", absl::StrCat(*dmlc_servers), "DMLC_NUM_SERVER"});

  const std::string root = Text(environment, "DMLC_PS_ROOT_URI");
  if (is_scheduler) {
    if (!root.empty()) info.values.push_back({"node.listen", root, "DMLC_PS_ROOT_URI"});
    if (dmlc_port) info.values.push_back({"node.port", absl::StrCat(*dmlc_port), "DMLC_PS_ROOT_PORT"});
  } else if (!root.empty()) {
    info.values.push_back({"node.scheduler", absl::StrCat(root, ":", dmlc_port.value_or(7700)), "DMLC_PS_ROOT_URI"});
  }
  return info;
}

}  // namespace sluice
