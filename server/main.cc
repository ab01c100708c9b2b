// sluice-server: holds partitions of the parameters, sums gradients, applies the optimizer, answers workers.

#include <cstdio>
#include <string>
#include <utility>

#include "base/config.h"
#include "base/cpu_check.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/writable.h"
#include "server/daemon.h"

namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "sluice-server: %s\n", std::string(status.ToString()).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (absl::Status status = sluice::CheckCpu(); !status.ok()) return Fail(status);
  sluice::ConfigOptions options;
  options.program = "sluice-server";
  options.role = "server";
  options.summary = "Holds a part of the parameters of every job of its scheduler: sums the workers' gradients, applies the "
                    "optimizer, and replies. Start one or more; the scheduler divides the work.";
  int exit_code = 0;
  const auto loaded = sluice::LoadConfigForMain(options, argc, argv, &exit_code);
  if (!loaded.has_value()) return exit_code;
  const auto level = sluice::ParseLogLevel(loaded->config.node().log_level());
  if (!level.ok()) return Fail(level.status());
  sluice::StderrLog::Get()->set_level(*level);
  for (const auto& [setting, path] : {std::pair("--node.trace", loaded->config.node().trace()),
                                      std::pair("--node.port_file", loaded->config.node().port_file())}) {
    const absl::Status usable = sluice::CheckWritable(setting, path, sluice::HowWritten::kReplaced);
    if (!usable.ok()) return Fail(usable);
  }
  auto signals = sluice::Signals::Create();
  if (!signals.ok()) return Fail(signals.status());
  auto daemon = sluice::server::Daemon::Create(loaded->config);
  if (!daemon.ok()) return Fail(daemon.status());
  if (absl::Status status = (*daemon)->Run(signals->get()); !status.ok()) return Fail(status);
  return 0;
}
