// What launchers of other systems say by their variables: torchrun and MPI style, DMLC (ps-lite, BytePS), Slurm.
// They are input only, weaker than SLUICE_… variables and flags, stronger than a configuration file:
//
//   RANK, WORLD_SIZE, LOCAL_RANK       this worker's rank, the number of workers, its rank on this host
//   DMLC_ROLE                          must agree with the program that is started
//   DMLC_PS_ROOT_URI, _PORT            where the scheduler is (on the scheduler: where it listens)
//   DMLC_NUM_WORKER, DMLC_NUM_SERVER   how many there will be
//   SLURM_PROCID, SLURM_NTASKS         rank and number of workers (only together, as srun sets them)
//
// Where several name one thing, the first of this list wins.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/environment.h"

namespace sluice {

struct LauncherValue {
  std::string key;  // of the configuration
  std::string text;
  std::string variable;  // where it comes from
};

struct LaunchInfo {
  std::optional<int> rank;
  std::optional<int> local_rank;
  std::vector<LauncherValue> values;
};

// `role` is "scheduler", "server", "worker", or "" for a program that has none (it ignores DMLC_ROLE).
absl::StatusOr<LaunchInfo> ReadLauncher(const Environment& environment, std::string_view role);

}  // namespace sluice
