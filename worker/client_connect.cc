// How a client comes into being: configuration, and the scheduler's stream over gRPC.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/cpu_check.h"
#include "base/log.h"
#include "transport/control/grpc_session.h"
#include "worker/client.h"
#include "worker/client_internal.h"
#include "worker/client_runtime.h"
#include "worker/client_status.h"

namespace sluice {
namespace {

class GrpcStream final : public worker::ControlStream {
 public:
  GrpcStream(const std::string& scheduler, transport::Loop* loop, worker::ControlStream::Callbacks callbacks) {
    control::GrpcSession::Callbacks out;
    out.up = std::move(callbacks.up);
    out.down = std::move(callbacks.down);
    out.message = std::move(callbacks.message);
    session_ = control::GrpcSession::Create(scheduler, loop, std::move(out));
  }
  void Open(TimeNs delay) override { session_->Open(delay); }
  void Send(const proto::MemberMessage& message) override { session_->Send(message); }

 private:
  std::unique_ptr<control::GrpcSession> session_;
};

std::unique_ptr<worker::ControlStream> MakeStream(const std::string& scheduler, transport::Loop* loop,
                                                  worker::ControlStream::Callbacks callbacks) {
  return std::make_unique<GrpcStream>(scheduler, loop, std::move(callbacks));
}

// What is not ours stays in argv, in its order, and argv ends with a null pointer as before.
void KeepInArgv(const std::vector<std::string>& arguments, int* argc, char** argv) {
  int kept = std::min(*argc, 1);
  size_t next = 0;
  for (int i = kept; i < *argc && next < arguments.size(); ++i) {
    if (argv[i] != arguments[next]) continue;
    argv[kept++] = argv[i];
    ++next;
  }
  if (kept < *argc) argv[kept] = nullptr;
  *argc = kept;
}

}  // namespace

Result<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  int argc = 0;
  return ConnectFromFlags(&argc, nullptr, options);
}

Result<std::unique_ptr<Client>> Client::ConnectFromFlags(int* argc, char** argv, ClientOptions options) {
  if (absl::Status usable = CheckCpu(); !usable.ok()) return FromAbsl(usable);
  ConfigOptions wanted;
  wanted.program = *argc > 0 ? argv[0] : "a trainer";
  wanted.role = "worker";
  wanted.settings = std::move(options.settings);
  wanted.config_file = std::move(options.config_file);
  wanted.use_environment = options.use_environment;
  wanted.pass_unknown_flags = true;
  const std::vector<std::string> arguments(argv + std::min(*argc, 1), argv + *argc);
  absl::StatusOr<LoadedConfig> loaded = LoadConfig(wanted, arguments, Environment::FromProcess());
  if (!loaded.ok()) return FromAbsl(loaded.status());
  KeepInArgv(loaded->arguments, argc, argv);
  if (loaded->action == LoadedConfig::Action::kPrintConfig) {
    std::fputs(PrintConfigText(*loaded).c_str(), stdout);
    return Status(Code::kCancelled, "the settings are printed, as --print-config says; nothing was connected");
  }

  if (absl::StatusOr<LogLevel> level = ParseLogLevel(loaded->config.node().log_level()); level.ok()) {
    StderrLog::Get()->set_level(*level);
  }
  const int rank = options.rank >= 0 ? options.rank : loaded->launch.rank.value_or(-1);
  absl::StatusOr<std::unique_ptr<worker::Runtime>> runtime = worker::Runtime::Start(loaded->config, rank, MakeStream);
  if (!runtime.ok()) return FromAbsl(runtime.status());
  return ClientAccess::Make(*std::move(runtime));
}

}  // namespace sluice
