#include "server/grpc_service.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/control.grpc.pb.h"
#include "transport/control/grpc_options.h"

namespace sluice::server {
namespace {

constexpr auto kShutdownGrace = std::chrono::seconds(1);
constexpr int kMaxRequestBytes = 64 << 10;   // of a GetPlan

class ControlService final : public proto::Control::CallbackService {
 public:
  explicit ControlService(const PlanStore* plans) : plans_(plans) {}

  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext* context, const proto::GetPlanRequest* request,
                                    proto::Plan* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const auto plan = plans_->Get(request->job(), request->newer_than());
    if (plan.ok()) *response = **plan;
    reactor->Finish(grpc::Status(static_cast<grpc::StatusCode>(plan.status().code()),
                                 std::string(plan.status().message())));
    return reactor;
  }

 private:
  const PlanStore* const plans_;
};

// gRPC only says that it cannot; the system's own reason is had by trying.
std::string WhyNotListen(const std::string& host, uint32_t port) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list); error != 0) {
    return absl::StrCat(gai_strerror(error), "; check node.listen");
  }
  std::string why = "the system gives no reason";
  for (const addrinfo* address = list; address != nullptr; address = address->ai_next) {
    const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, address->ai_addr, address->ai_addrlen) != 0 || listen(fd, 1) != 0) {
      const char* todo = "; check node.listen and node.port";
      if (errno == EADDRINUSE) {
        todo = "; `ss -ltnp` names who has the port, or choose another node.port (0 = any)";
      } else if (errno == EADDRNOTAVAIL) {
        todo = "; node.listen must be an address of this machine (`ip address` shows them), or 0.0.0.0 for all; others "
               "reach it by node.advertise";
      }
      why = absl::StrCat(std::strerror(errno), todo);
    }
    close(fd);
  }
  freeaddrinfo(list);
  return why;
}

class Service final : public GrpcService {
 public:
  explicit Service(const PlanStore* plans) : control_(plans) {}
  ~Service() override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    server_->Wait();
  }

  absl::Status Listen(const std::string& host, uint32_t port) {
    // What gRPC would print of its own (a bind that failed, garbage on the port) is said by statuses, or is no news.
    gpr_set_log_function([](gpr_log_func_args*) {});
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    const bool ipv6 = absl::StrContains(host, ":") && !absl::StartsWith(host, "[");
    const std::string address = absl::StrCat(ipv6 ? "[" : "", host, ipv6 ? "]" : "", ":", port);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);   // or a second server would share the port unnoticed
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    builder.SetMaxSendMessageSize(control::kMaxMessageBytes);
    builder.RegisterService(&control_);
    server_ = builder.BuildAndStart();
    if (server_ != nullptr && port_ > 0) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, " (control port): ", WhyNotListen(host, port)));
  }

  int port() const override { return port_; }

 private:
  ControlService control_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcService>> GrpcService::Start(const std::string& host, uint32_t port,
                                                                const PlanStore* plans) {
  auto service = std::make_unique<Service>(plans);
  if (absl::Status status = service->Listen(host, port); !status.ok()) return status;
  return service;
}

}  // namespace sluice::server
