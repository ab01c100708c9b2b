// The command line of sluicectl.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::ctl {

enum ExitCode { kExitOk = 0, kExitFailed = 1, kExitUsage = 2, kExitUnreachable = 3, kExitUnhealthy = 4 };

struct Arguments {
  std::string command;
  std::string role;              // doctor
  std::string job;
  std::string reason;            // abort
  std::string server;            // move-shard, drain, undrain, drain-status
  uint32_t shard = 0;            // move-shard
  bool has_shard = false;
  std::string action;            // topology: import, show, check
  std::vector<std::string> files;   // topology
  bool dry_run = false;          // rebalance, plan
  bool explain = false;          // plan
  std::vector<std::string> topology;   // plan --dry-run: files
  std::string job_file;          // plan --dry-run
  std::string output;            // plan: "", hostlist, rankfile, slurm
  uint64_t seed = 1;             // plan --dry-run
  bool json = false;
  bool follow = false;           // events
  bool all = false;              // shards, plan, links --probe
  bool probe = false;            // links
  uint64_t bytes = 0;            // links --probe; 0 = the scheduler's choice
  double watch_seconds = 0;      // 0 = once
  double timeout_seconds = 10;
  uint64_t after = 0;            // events
  uint32_t limit = 0;            // events
  bool help = false;
  bool version = false;
  std::vector<std::string> config;   // what is left: --scheduler and other settings, for base/config.h
};

// Without the program's name. INVALID_ARGUMENT says what would do.
absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& words);

std::string Usage();

}  // namespace sluice::ctl
