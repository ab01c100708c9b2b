#include "ctl/doctor.h"

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/version.h"
#include "ctl/admin_client.h"
#include "ctl/table.h"
#include "nlohmann/json.hpp"

namespace sluice::ctl {
namespace {

constexpr int kConnectTimeoutMs = 3000;
constexpr TimeNs kCallTimeout = 5 * kSecond;
constexpr int64_t kSkewWarnMs = 1000;

const char* LevelText(Check::Level level) {
  return level == Check::kOk ? "OK" : level == Check::kWarn ? "WARN" : "FAIL";
}

bool IsLoopback(const std::string& host) {
  return absl::StartsWith(host, "127.") || host == "localhost" || host == "::1";
}

std::string HostOf(const std::string& host_port) { return host_port.substr(0, host_port.rfind(':')); }

void ExamineScheduler(const std::string& scheduler, std::vector<Check>* checks) {
  checks->push_back(CheckName(scheduler));
  if (checks->back().level == Check::kFail) return;
  checks->push_back(CheckReachable(scheduler, kConnectTimeoutMs));
  if (checks->back().level == Check::kFail) return;
  auto client = AdminClient::Create(scheduler, kCallTimeout);
  const absl::StatusOr<proto::Cluster> cluster = client->GetCluster();
  if (!cluster.ok()) {
    checks->push_back({Check::kFail, "scheduler answers", std::string(cluster.status().message()),
                       "make sure that sluice-scheduler and nothing else listens there"});
    return;
  }
  checks->push_back(CheckRelease(cluster->version()));
  const absl::StatusOr<proto::EventList> events = client->ListEvents(0, 2000);
  const int64_t now =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  // Asked again so that uptime and clock belong to one moment.
  const absl::StatusOr<proto::Cluster> again = client->GetCluster();
  checks->push_back(CheckTime(again.ok() ? *again : *cluster, events.ok() ? *events : proto::EventList(), now));
}

}  // namespace

Check CheckRelease(const std::string& release) {
  if (release == kVersion)
    return {Check::kOk, "release", absl::StrCat("scheduler and this program are ", kVersion), ""};
  return {Check::kWarn, "release", absl::StrCat("the scheduler is ", release, ", this program is ", kVersion),
          "install the same release everywhere; members of another protocol version are refused"};
}

Check CheckTime(const proto::Cluster& cluster, const proto::EventList& events, int64_t local_ms) {
  int64_t started = 0;
  for (const proto::Event& event : events.events())
    if (event.kind() == "scheduler_started") started = event.unix_ms();
  if (started == 0)
    return {Check::kWarn, "time", "the scheduler's clock cannot be told: its start is no longer among its events",
            "compare `date` on both machines; traces line up by the wall clock"};
  const int64_t skew = local_ms - (started + static_cast<int64_t>(cluster.uptime_ms()));
  const std::string text = absl::StrFormat("this clock is %.1f s %s the scheduler's", std::abs(skew) / 1000.0,
                                           skew >= 0 ? "ahead of" : "behind");
  if (std::abs(skew) <= kSkewWarnMs) return {Check::kOk, "time", text, ""};
  return {Check::kWarn, "time", text, "run chrony or ntpd on both: nothing breaks, but logs and traces do not line up"};
}

Check CheckListen(const proto::NodeConfig& node) {
  const std::string host = node.advertise().empty() ? node.listen() : node.advertise();
  if (IsLoopback(host) && !IsLoopback(HostOf(node.scheduler())))
    return {Check::kFail, "address", absl::StrCat("this process would tell others to find it at ", host,
                                                  ", but the scheduler is at ", node.scheduler()),
            "set node.listen to an address of this machine (0.0.0.0 for all) and, if need be, node.advertise"};
  return {Check::kOk, "address",
          absl::StrCat("listens on ", node.listen(), host != node.listen() ? ", advertised as " : "",
                       host != node.listen() ? host : ""),
          ""};
}

std::vector<Check> Examine(const proto::Config& config, const std::string& role) {
  const proto::NodeConfig& node = config.node();
  std::vector<Check> checks = {CheckProcessor()};
  if (role == "scheduler") {
    checks.push_back(CheckPortFree("node.port", node.listen(), node.port()));
    if (!node.state_file().empty()) checks.push_back(CheckStateFile(node.state_file()));
  } else {
    ExamineScheduler(node.scheduler(), &checks);
  }
  if (role == "server") {
    checks.push_back(CheckListen(node));
    if (node.port() != 0) checks.push_back(CheckPortFree("node.port", node.listen(), node.port()));
    for (uint32_t i = 0; node.data_port() != 0 && i < std::max(1u, node.loops()); ++i)
      checks.push_back(CheckPortFree(i == 0 ? "node.data_port" : absl::StrCat("node.data_port + ", i), node.listen(),
                                     node.data_port() + i));
  }
  if (node.metrics_port() > 0) checks.push_back(CheckPortFree("node.metrics_port", node.listen(), node.metrics_port()));
  checks.push_back(CheckOpenFiles());
  if (role != "scheduler") {
    checks.push_back(CheckSharedMemory());
    for (Check& check : ExamineRdma(config)) checks.push_back(std::move(check));
  }
  for (Check& check : CheckInterfaces()) checks.push_back(std::move(check));
  return checks;
}

std::string Render(const std::vector<Check>& checks) {
  std::string text;
  size_t width = 0;
  for (const Check& check : checks) width = std::max(width, check.name.size());
  int failed = 0, warned = 0;
  for (const Check& check : checks) {
    absl::StrAppend(&text, absl::StrFormat("%-4s  %-*s  %s\n", LevelText(check.level), static_cast<int>(width),
                                           check.name, Clean(check.text)));
    if (!check.to_do.empty()) absl::StrAppend(&text, "      ", std::string(width, ' '), "  -> ", check.to_do, "\n");
    failed += check.level == Check::kFail;
    warned += check.level == Check::kWarn;
  }
  return absl::StrCat(text, checks.size(), " checks, ", warned, " warnings, ", failed, " failed\n");
}

std::string Json(const std::vector<Check>& checks) {
  nlohmann::json list = nlohmann::json::array();
  for (const Check& check : checks)
    list.push_back({{"level", LevelText(check.level)}, {"name", check.name}, {"text", Clean(check.text)},
                    {"to_do", check.to_do}});
  return nlohmann::json{{"checks", list}, {"failed", AnyFailed(checks)}}.dump(
             2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

bool AnyFailed(const std::vector<Check>& checks) {
  for (const Check& check : checks)
    if (check.level == Check::kFail) return true;
  return false;
}

}  // namespace sluice::ctl
