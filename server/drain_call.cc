#include "server/drain_call.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <thread>
#include <utility>

#include "proto/admin.grpc.pb.h"

namespace sluice::server {
namespace {

class Call final : public DrainCall {
 public:
  Call(const std::string& scheduler, const std::string& server, TimeNs timeout, std::function<void(absl::Status)> done)
      : stub_(proto::Admin::NewStub(grpc::CreateChannel(scheduler, grpc::InsecureChannelCredentials()))),
        done_(std::move(done)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(timeout));
    request_.set_server(server);
    thread_ = std::thread([this] {
      proto::DrainStatus answer;
      const grpc::Status status = stub_->Drain(&context_, request_, &answer);
      done_(absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
    });
  }
  ~Call() override {
    context_.TryCancel();
    thread_.join();
  }

 private:
  const std::unique_ptr<proto::Admin::Stub> stub_;
  const std::function<void(absl::Status)> done_;
  grpc::ClientContext context_;
  proto::ServerRequest request_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<DrainCall> DrainCall::Start(const std::string& scheduler, const std::string& server, TimeNs timeout,
                                            std::function<void(absl::Status)> done) {
  return std::make_unique<Call>(scheduler, server, timeout, std::move(done));
}

}  // namespace sluice::server
