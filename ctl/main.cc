// sluicectl: asks a scheduler's admin service, examines this machine. Exit codes: ctl/arguments.h.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/version.h"
#include "compression/codec.h"
#include "ctl/admin_client.h"
#include "ctl/arguments.h"
#include "ctl/doctor.h"
#include "ctl/plan_dry_run.h"
#include "ctl/probe.h"
#include "ctl/render.h"
#include "ctl/topology.h"
#include "nlohmann/json.hpp"
#include "scheduler/topology/formats/write.h"
#include "transport/control/grpc_quiet.h"

namespace sluice::ctl {
namespace {

bool Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0;   // false: nobody reads any more
}

int Complain(const absl::Status& status) {
  std::fprintf(stderr, "sluicectl: %s: %s\n", absl::StatusCodeToString(status.code()).c_str(),
               std::string(status.message()).c_str());
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ? kExitUnreachable : kExitFailed;
}

template <typename Message, typename Text>
int Show(const absl::StatusOr<Message>& message, const Arguments& arguments, Text text) {
  if (!message.ok()) return Complain(message.status());
  Print(arguments.json ? Json(*message, arguments.watch_seconds > 0) : text(*message));
  return kExitOk;
}

template <typename Message>
int Show(const absl::StatusOr<Message>& message, const Arguments& arguments) {
  return Show(message, arguments, [](const Message& m) { return Render(m); });
}

int ShowPlan(const absl::StatusOr<proto::Explanation>& explanation, const Arguments& a) {
  return Show(explanation, a, [&](const proto::Explanation& e) { return a.output.empty() ? Render(e, a.all) : RenderForLauncher(e, a.output); });
}

int Probe(const Arguments& a, AdminClient* client) {
  proto::ProbeLinksRequest request;
  request.set_all(a.all);
  request.set_bytes(a.bytes);
  const SteadyClock clock;
  const absl::StatusOr<Probing> probing =
      ProbeAndWait(request, client, &clock, [](TimeNs time) { std::this_thread::sleep_for(std::chrono::nanoseconds(time)); });
  if (!probing.ok()) return Complain(probing.status());
  Print(a.json ? ProbingJson(*probing) : RenderProbing(*probing));
  return probing->failures.size() < probing->answer.pairs() || probing->answer.pairs() == 0 ? kExitOk : kExitFailed;
}

int Once(const Arguments& a, AdminClient* client) {
  if (a.command == "status") return Show(client->GetCluster(), a);
  if (a.command == "workers") return Show(client->ListWorkers(a.job), a);
  if (a.command == "shards")
    return Show(client->ListShards(a.job), a, [&](const proto::ShardList& shards) { return Render(shards, a.all); });
  if (a.command == "tensors") return Show(client->ListTensors(a.job), a);
  if (a.command == "tables") return Show(client->ListTables(a.job), a);
  if (a.command == "links" && a.probe) return Probe(a, client);
  if (a.command == "links") return Show(client->ListLinks(), a);
  if (a.command == "plan" && (a.explain || !a.output.empty())) return ShowPlan(client->ExplainPlan(a.job), a);
  if (a.command == "plan") return Show(client->GetPlan(a.job), a);
  if (a.command == "config") return Show(client->GetConfig(a.job), a);
  if (a.command == "abort") return Show(client->AbortJob(a.job, a.reason), a);
  if (a.command == "move-shard") return Show(client->MoveShard(a.job, a.shard, a.server), a);
  if (a.command == "rebalance") return Show(client->Rebalance(a.job, a.dry_run), a);
  if (a.command == "moves") return Show(client->ListMoves(a.job), a);
  if (a.command == "pause-moves") return Show(client->PauseMoves(a.job), a);
  if (a.command == "resume-moves") return Show(client->ResumeMoves(a.job), a);
  if (a.command == "cancel-moves") return Show(client->CancelMoves(a.job), a);
  if (a.command == "drain") return Show(client->Drain(a.server), a);
  if (a.command == "undrain") return Show(client->Undrain(a.server), a);
  if (a.command == "drain-status") return Show(client->GetDrain(a.server), a);
  return Show(client->ListEvents(a.after, a.limit), a);
}

int Follow(const Arguments& a, AdminClient* client) {
  const absl::Status status = client->WatchEvents(a.after, [&](const proto::Event& event) {
    return Print(a.json ? Json(event, /*one_line=*/true) : Render(event));
  });
  return status.ok() ? kExitOk : Complain(status);
}

int Codecs(const Arguments& a) {
  const std::vector<std::string> codecs = compression::KnownCodecs();
  if (a.json) {
    Print(nlohmann::json{{"codecs", codecs}}.dump(2) + "\n");
    return kExitOk;
  }
  for (const std::string& codec : codecs) Print(codec + "\n");
  return kExitOk;
}

int Topology(const Arguments& a, const proto::TopologyConfig& config) {
  const auto begin = std::chrono::steady_clock::now();
  const absl::StatusOr<LoadedTopology> loaded = LoadTopologyFiles(a.files, config);
  if (!loaded.ok()) return Complain(loaded.status()), kExitFailed;
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  if (a.action == "import") Print(topology::WritePlain(loaded->graph));
  else if (a.json) Print(TopologyJson(*loaded, /*with_graph=*/a.action == "show"));
  else Print(a.action == "check" ? RenderCheck(*loaded, took.count()) : RenderTopology(*loaded, config));
  return kExitOk;
}

int Run(const Arguments& a, const proto::Config& config) {
  if (a.command == "topology") return Topology(a, config.topology());
  if (a.command == "codecs") return Codecs(a);
  if (a.command == "doctor") {
    const std::vector<Check> checks = Examine(config, a.role);
    Print(a.json ? Json(checks) : Render(checks));
    return AnyFailed(checks) ? kExitUnhealthy : kExitOk;
  }
  if (a.command == "plan" && a.dry_run) return ShowPlan(PlanDryRun(a, config.topology()), a);
  auto client = AdminClient::Create(config.node().scheduler(), static_cast<TimeNs>(a.timeout_seconds * kSecond));
  if (a.follow) return Follow(a, client.get());
  if (a.watch_seconds == 0) return Once(a, client.get());
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  for (;;) {   // an unreachable scheduler may come back: said, and tried again
    if (terminal && !a.json) Print("\033[H\033[2J");
    const int code = Once(a, client.get());
    if (code == kExitFailed) return code;
    if (!Print("")) return kExitOk;
    std::this_thread::sleep_for(std::chrono::duration<double>(a.watch_seconds));
  }
}

int Main(int argc, char** argv) {
  const absl::StatusOr<Arguments> arguments = ParseArguments({argv + 1, argv + argc});
  if (!arguments.ok()) {
    std::fprintf(stderr, "sluicectl: %s\n`sluicectl --help` shows all.\n",
                 std::string(arguments.status().message()).c_str());
    return kExitUsage;
  }
  if (arguments->help) return Print(Usage()) ? kExitOk : kExitFailed;
  if (arguments->version) return Print(absl::StrCat("sluicectl ", kVersion, "\n")) ? kExitOk : kExitFailed;
  ConfigOptions options;
  options.program = "sluicectl";
  if (arguments->role == "scheduler") options.defaults = "node { port: 7700 }";
  const absl::StatusOr<LoadedConfig> loaded = LoadConfig(options, arguments->config, Environment::FromProcess());
  if (!loaded.ok()) {
    std::fprintf(stderr, "sluicectl: %s\n", std::string(loaded.status().message()).c_str());
    return kExitUsage;
  }
  return Run(*arguments, loaded->config);
}

}  // namespace
}  // namespace sluice::ctl

int main(int argc, char** argv) {
  sluice::control::SilenceGrpcLog();
  return sluice::ctl::Main(argc, argv);
}
