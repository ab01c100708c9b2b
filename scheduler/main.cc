// sluice-scheduler: reads its configuration, opens its state, listens, and runs until a signal or the end of all jobs.
//
// Threads: main() waits; one thread runs the loop with the core; gRPC's carry messages to it and back.
// Exit codes: 0 ended in order (signal, or node.exit_when_done and every job has ended), 1 cannot start, 2 bad
// configuration.
#include <signal.h>
#include <sys/epoll.h>

#include <cstdio>
#include <fstream>
#include <future>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/config.h"
#include "base/cpu_check.h"
#include "base/log.h"
#include "base/metrics_http.h"
#include "base/signals.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "base/writable.h"
#include "scheduler/memory_store.h"
#include "scheduler/service.h"
#include "scheduler/sqlite_store.h"
#include "scheduler/topology/formats/files.h"
#include "transport/control/grpc_quiet.h"

namespace sluice::scheduler {
namespace {

// Servers and workers hang up when they heard that all is over; those that do not are not waited for longer than this.
constexpr TimeNs kGoodbye = 3 * kSecond;

// A reader sees the whole file or none.
absl::Status WritePortFile(const std::string& path, int port) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  {
    std::ofstream file(temporary);
    file << port << "\n";
    file.close();
    if (!file) return absl::UnavailableError(absl::StrCat("node.port_file: cannot write ", temporary));
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0)
    return absl::UnavailableError(absl::StrCat("node.port_file: cannot rename ", temporary, " to ", path));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Store>> OpenStore(const proto::NodeConfig& node, const Logger& log) {
  if (!node.state_file().empty()) {
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, SqliteStore::Open(node.state_file()));
    return store;
  }
  log.Warn("no node.state_file: after a restart of this scheduler running jobs cannot go on");
  return std::unique_ptr<Store>(std::make_unique<MemoryStore>());
}

absl::StatusOr<std::unique_ptr<network::Network>> ReadNetwork(const proto::TopologyConfig& config, const Logger& log) {
  const auto list = [](const std::string& text) -> std::vector<std::string> { return absl::StrSplit(text, ',', absl::SkipEmpty()); };
  std::vector<topology::Report> reports;
  absl::StatusOr<topology::Graph> graph = topology::ReadFiles(topology::SplitFileSpecs(config.files()), {.node_labels = list(config.node_labels())}, &reports);
  if (!graph.ok())
    return absl::Status(graph.status().code(), absl::StrCat("topology.files: ", graph.status().message(),
                                                            "; `sluicectl topology check FILE` says more"));
  for (const topology::Report& report : reports) {
    log.Info("topology from ", report.file, ": ", report.title, ", ", report.hosts, " hosts, ", report.switches, " switches, ",
             report.links, " links");
    for (const std::string& warning : report.warnings) log.Warn(warning);
  }
  return network::Network::Create(*std::move(graph), config);
}

proto::EffectiveConfig Effective(const LoadedConfig& loaded) {
  proto::EffectiveConfig config;
  for (const EffectiveValue& value : EffectiveValues(loaded)) {
    if (value.key.rfind("node.", 0) != 0 && value.key.rfind("topology.", 0) != 0) continue;   // a job's configuration is its workers'
    proto::EffectiveConfig::Value* out = config.add_values();
    out->set_key(value.key);
    out->set_value(value.value);
    out->set_source(value.source);
  }
  return config;
}

absl::Status Run(const LoadedConfig& loaded, Signals* signals) {
  const proto::NodeConfig& node = loaded.config.node();
  const Logger log("scheduler");
  SLUICE_RETURN_IF_ERROR(CheckWritable("--node.port_file", node.port_file(), HowWritten::kReplaced));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<network::Network> network, ReadNetwork(loaded.config.topology(), log));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, OpenStore(node, log));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<transport::Loop> loop, transport::Loop::Create());
  const SteadyClock clock;
  SchedulerMetrics metrics;
  MetricsRegistry registry(MetricLabels{{"role", "scheduler"}});
  metrics.Register(&registry);
  std::random_device entropy;
  const uint64_t random = (uint64_t{entropy()} << 32) | entropy();
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<SchedulerHost> host,
                          SchedulerHost::Create(node, store.get(), &clock, random, loop.get(), &metrics, std::move(network)));
  host->core().set_rack_trees(loaded.config.topology().trees() == "on");

  // Why to end; set once, on the loop's thread.
  std::promise<std::string> ended;
  std::future<std::string> why = ended.get_future();
  bool told = false;
  const auto end = [&](const std::string& text) {
    if (!std::exchange(told, true)) ended.set_value(text);
  };
  SLUICE_RETURN_IF_ERROR(loop->Watch(signals->fd(), EPOLLIN, [&](uint32_t) {
    while (const std::optional<int> signal = signals->Next())
      if (*signal == SIGTERM || *signal == SIGINT) end(*signal == SIGTERM ? "SIGTERM" : "SIGINT");
  }));
  TimeNs all_ended = 0;
  if (node.exit_when_done()) {
    host->set_on_tick([&] {
      if (!host->core().AllJobsEnded()) {
        all_ended = 0;
        return;
      }
      if (all_ended == 0) all_ended = clock.Now();
      if (host->Idle() || clock.Now() - all_ended >= kGoodbye) end("every job has ended");
    });
  }

  std::unique_ptr<MetricsHttp> http;
  if (node.metrics_port() >= 0) {
    SLUICE_ASSIGN_OR_RETURN(http, MetricsHttp::Start(node.listen(), node.metrics_port(), &registry));
    log.Info("metrics on http://", node.listen(), ":", http->port(), "/metrics");
  }
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<SchedulerService> service,
                          SchedulerService::Start(node.listen(), node.port(), host.get(), Effective(loaded)));
  std::thread thread([&] { loop->Run(); });
  absl::Status status;
  if (!node.port_file().empty()) status = WritePortFile(node.port_file(), service->port());
  if (status.ok()) {
    log.Info("sluice-scheduler ", kVersion, " listens on ", node.listen(), ":", service->port(), ", state in ",
             node.state_file().empty() ? "memory" : node.state_file());
    log.Info("ending: ", why.get());
  }
  service->Shutdown();
  loop->Stop();
  thread.join();
  return status;
}

}  // namespace
}  // namespace sluice::scheduler

int main(int argc, char** argv) {
  sluice::control::SilenceGrpcLog();
  if (absl::Status status = sluice::CheckCpu(); !status.ok()) {
    std::fprintf(stderr, "sluice-scheduler: %s\n", status.ToString().c_str());
    return 1;
  }
  sluice::ConfigOptions options;
  options.program = "sluice-scheduler";
  options.role = "scheduler";
  options.summary =
      "Forms jobs of servers and workers, plans which server owns what, watches over them. One for any number of "
      "jobs.\n"
      "Exit codes: 0 ended in order, 1 cannot start, 2 bad configuration.";
  options.defaults = "node { port: 7700 }";
  int exit_code = 0;
  const auto loaded = sluice::LoadConfigForMain(options, argc, argv, &exit_code);
  if (!loaded) return exit_code;
  absl::StatusOr<std::unique_ptr<sluice::Signals>> signals = sluice::Signals::Create();
  if (absl::StatusOr<sluice::LogLevel> level = sluice::ParseLogLevel(loaded->config.node().log_level()); level.ok())
    sluice::StderrLog::Get()->set_level(*level);
  const absl::Status status = signals.ok() ? sluice::scheduler::Run(*loaded, signals->get()) : signals.status();
  if (status.ok()) return 0;
  std::fprintf(stderr, "sluice-scheduler: %s\n", status.ToString().c_str());
  return 1;
}
