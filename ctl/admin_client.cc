#include "ctl/admin_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/admin.grpc.pb.h"
#include "transport/control/grpc_options.h"

namespace sluice::ctl {
namespace {

class Client final : public AdminClient {
 public:
  Client(std::string scheduler, TimeNs timeout) : scheduler_(std::move(scheduler)), timeout_(timeout) {
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(control::kMaxMessageBytes);
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    stub_ = proto::Admin::NewStub(grpc::CreateCustomChannel(scheduler_, grpc::InsecureChannelCredentials(), args));
  }

  absl::StatusOr<proto::Cluster> GetCluster() override {
    return Call<proto::Cluster>(&proto::Admin::Stub::GetCluster, proto::GetClusterRequest());
  }
  absl::StatusOr<proto::ShardList> ListShards(const std::string& job) override {
    return Call<proto::ShardList>(&proto::Admin::Stub::ListShards, Job(job));
  }
  absl::StatusOr<proto::WorkerList> ListWorkers(const std::string& job) override {
    return Call<proto::WorkerList>(&proto::Admin::Stub::ListWorkers, Job(job));
  }
  absl::StatusOr<proto::TensorList> ListTensors(const std::string& job) override {
    return Call<proto::TensorList>(&proto::Admin::Stub::ListTensors, Job(job));
  }
  absl::StatusOr<proto::TableList> ListTables(const std::string& job) override {
    return Call<proto::TableList>(&proto::Admin::Stub::ListTables, Job(job));
  }
  absl::StatusOr<proto::LinkList> ListLinks() override {
    return Call<proto::LinkList>(&proto::Admin::Stub::ListLinks, proto::LinksRequest());
  }
  absl::StatusOr<proto::ProbeLinksAnswer> ProbeLinks(const proto::ProbeLinksRequest& request) override {
    return Call<proto::ProbeLinksAnswer>(&proto::Admin::Stub::ProbeLinks, request);
  }
  absl::StatusOr<proto::Plan> GetPlan(const std::string& job) override {
    return Call<proto::Plan>(&proto::Admin::Stub::GetPlan, Job(job));
  }
  absl::StatusOr<proto::Explanation> ExplainPlan(const std::string& job) override {
    return Call<proto::Explanation>(&proto::Admin::Stub::ExplainPlan, Job(job));
  }
  absl::StatusOr<proto::EffectiveConfig> GetConfig(const std::string& job) override {
    proto::GetConfigRequest request;
    request.set_job(job);
    return Call<proto::EffectiveConfig>(&proto::Admin::Stub::GetConfig, request);
  }
  absl::StatusOr<proto::EventList> ListEvents(uint64_t after, uint32_t limit) override {
    proto::EventsRequest request;
    request.set_after(after);
    request.set_limit(limit);
    return Call<proto::EventList>(&proto::Admin::Stub::ListEvents, request);
  }

  absl::StatusOr<proto::JobStatus> AbortJob(const std::string& job, const std::string& reason) override {
    proto::AbortJobRequest request;
    request.set_job(job);
    request.set_reason(reason);
    return Call<proto::JobStatus>(&proto::Admin::Stub::AbortJob, request);
  }

  absl::StatusOr<proto::MoveList> MoveShard(const std::string& job, uint32_t shard,
                                            const std::string& server) override {
    proto::MoveShardRequest request;
    request.set_job(job);
    request.set_shard(shard);
    request.set_server(server);
    return Call<proto::MoveList>(&proto::Admin::Stub::MoveShard, request);
  }
  absl::StatusOr<proto::RebalanceAnswer> Rebalance(const std::string& job, bool dry_run) override {
    proto::RebalanceRequest request;
    request.set_job(job);
    request.set_dry_run(dry_run);
    return Call<proto::RebalanceAnswer>(&proto::Admin::Stub::Rebalance, request);
  }
  absl::StatusOr<proto::MoveList> ListMoves(const std::string& job) override {
    return Call<proto::MoveList>(&proto::Admin::Stub::ListMoves, Job(job));
  }
  absl::StatusOr<proto::MoveList> PauseMoves(const std::string& job) override {
    return Call<proto::MoveList>(&proto::Admin::Stub::PauseMoves, Job(job));
  }
  absl::StatusOr<proto::MoveList> ResumeMoves(const std::string& job) override {
    return Call<proto::MoveList>(&proto::Admin::Stub::ResumeMoves, Job(job));
  }
  absl::StatusOr<proto::MoveList> CancelMoves(const std::string& job) override {
    return Call<proto::MoveList>(&proto::Admin::Stub::CancelMoves, Job(job));
  }
  absl::StatusOr<proto::DrainStatus> Drain(const std::string& server) override {
    return Call<proto::DrainStatus>(&proto::Admin::Stub::Drain, Server(server));
  }
  absl::StatusOr<proto::DrainStatus> Undrain(const std::string& server) override {
    return Call<proto::DrainStatus>(&proto::Admin::Stub::Undrain, Server(server));
  }
  absl::StatusOr<proto::DrainStatus> GetDrain(const std::string& server) override {
    return Call<proto::DrainStatus>(&proto::Admin::Stub::GetDrain, Server(server));
  }

  absl::Status WatchEvents(uint64_t after, const std::function<bool(const proto::Event&)>& each) override {
    grpc::ClientContext context;   // no deadline: it lasts as long as somebody looks
    proto::EventsRequest request;
    request.set_after(after);
    auto reader = stub_->WatchEvents(&context, request);
    proto::Event event;
    while (reader->Read(&event)) {
      if (each(event)) continue;
      context.TryCancel();
      (void)reader->Finish();
      return absl::OkStatus();
    }
    return Explain(reader->Finish());
  }

 private:
  static proto::JobRequest Job(const std::string& job) {
    proto::JobRequest request;
    request.set_job(job);
    return request;
  }

  static proto::ServerRequest Server(const std::string& server) {
    proto::ServerRequest request;
    request.set_server(server);
    return request;
  }

  template <typename Response, typename Method, typename Request>
  absl::StatusOr<Response> Call(Method method, const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(timeout_));
    Response response;
    const absl::Status status = Explain((stub_.get()->*method)(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }

  absl::Status Explain(const grpc::Status& status) const {
    if (status.ok()) return absl::OkStatus();
    std::string text = absl::StrCat("scheduler ", scheduler_, ": ", status.error_message());
    switch (status.error_code()) {
      case grpc::StatusCode::UNAVAILABLE:
        absl::StrAppend(&text, "\nIs sluice-scheduler running there? `sluicectl doctor --scheduler ", scheduler_,
                        "` tests name, port and network.");
        break;
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        text = absl::StrCat("scheduler ", scheduler_, ": no answer within ",
                            absl::StrFormat("%.1f s", static_cast<double>(timeout_) / kSecond),
                            "\nIt is there but does not answer: look at its log, or allow more time with --timeout.");
        break;
      case grpc::StatusCode::UNIMPLEMENTED:
        absl::StrAppend(&text,
                        "\nSomething else than sluice-scheduler, or another release of it, answers at this address.");
        break;
      default:
        break;
    }
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), text);
  }

  const std::string scheduler_;
  const TimeNs timeout_;
  std::unique_ptr<proto::Admin::Stub> stub_;
};

}  // namespace

std::unique_ptr<AdminClient> AdminClient::Create(const std::string& scheduler, TimeNs timeout) {
  return std::make_unique<Client>(scheduler, timeout);
}

}  // namespace sluice::ctl
