// WorkerCore as it is: the parts, and who tells whom. Private to worker/.
//
//   core.cc       life: start, plan, registration, barriers, leaving, failure, waits
//   dispatch.cc   events of the data plane: links, frames, retries
//   exchange/     tensors that go among the workers instead of over servers
//   op.h, partition.h, admission.h, links.h, snapshot.h: the parts, each with its own protocol at its head
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "transport/stream/link_queue.h"
#include "transport/stream/stream_sender.h"
#include "worker/admission.h"
#include "worker/collective/collectives.h"
#include "worker/core.h"
#include "worker/exchange/exchanges.h"
#include "worker/links.h"
#include "worker/op.h"
#include "worker/partition.h"
#include "worker/row_pulls.h"
#include "worker/slab.h"

namespace sluice::worker {

class CoreImpl final : public WorkerCore {
 public:
  CoreImpl(WorkerCoreOptions options, transport::Endpoint* endpoint, const Clock* clock,
           control::MemberCore::Output control);
  ~CoreImpl() override;

  control::MemberCore& member() override { return member_; }
  void Start(std::function<void(absl::Status)> ready) override;
  void OnTick() override;
  void OnTurnEnd() override;
  bool HasWork() const override { 
    return ops_.has_work() || row_pulls_.has_work() || collectives_.has_work() || exchanges_.has_work();
  }
  TimeNs NextDeadline() const override { return queue_.NextDeadline(); }
  uint32_t rank() const override { return env_.rank; }
  uint32_t world_size() const override { return plan_.config().workers(); }
  uint32_t servers() const override { return static_cast<uint32_t>(plan_.servers_size()); }
  uint64_t job_uid() const override { return plan_.uid(); }
  float rate() const override { return ops_.next_rate(); }
  void RegisterTensors(std::vector<proto::TensorSpec> specs,
                       std::function<void(absl::StatusOr<std::vector<uint32_t>>)> done) override;
  uint64_t NextRound(uint32_t tensor) const override;
  absl::StatusOr<TableShape> DescribeTable(uint32_t tensor) const override;
  uint64_t Submit(const OpRequest& request, std::function<void(const OpResult&)> done,
                  std::function<void()> released) override;
  uint64_t PullRows(RowPullRequest request, std::function<void(const OpResult&)> done,
                    std::function<void()> released) override;
  uint64_t SubmitCollective(collective::Request request, std::function<void(const OpResult&)> done,
                            std::function<void()> released) override;
  absl::StatusOr<RankGroup> FindGroup(const std::string& name) const override { return collectives_.FindGroup(name); }
  void Cancel(uint64_t op) override;
  void Barrier(std::string name, std::function<void(absl::Status)> done) override;
  void Leave(bool failed, std::string why, std::function<void(absl::Status)> done) override;
  absl::StatusOr<std::vector<std::byte>> Snapshot() const override;
  absl::Status Restore(ConstBytes snapshot) override;
  WorkerStats stats() const override;
  std::vector<UpLink> links() const override;
  const CodecStats& codec_stats() const override { return env_.codec_stats; }
  void ReportLoss(double loss) override;
  std::string CalibratedRules() const override;
  std::string TensorName(uint32_t tensor) const override;
  std::string Waiting() const override;

  // transport::Handler
  void OnUp(transport::LinkId link, const transport::Hello& peer) override;
  void OnDown(transport::LinkId link, const absl::Status& reason) override;
  void OnFrame(transport::LinkId link, const transport::FrameHeader& header, transport::Payload payload) override;
  void OnSent(transport::LinkId link, uint64_t cookie) override;
  void OnSlotClosed(transport::LinkId link, transport::SlotId slot) override;
  void OnWritable(transport::LinkId link) override;

  // control::MemberCore::Listener
  void OnWelcome(const proto::Welcome& welcome) override;
  void OnPlan(const proto::Plan& plan) override;
  void OnRefused(const absl::Status& status) override;
  void OnReport(const proto::ReportState&) override {}
  void OnShutdown(const std::string& why) override;
  void FillHeartbeat(proto::Heartbeat* heartbeat) override;

 private:
  // Barriers that were entered, and leaving: answered by the scheduler.
  struct Asked {
    TimeNs since = 0;
    std::function<void(absl::Status)> done;
  };

  void Dispatch(transport::LinkId link, const transport::FrameHeader& header, transport::Payload payload);
  void OnRetry(const transport::FrameHeader& header);
  void OnError(const transport::FrameHeader& header, const transport::Payload& payload);
  void Reroute(Partition* partition);
  void RetryDue();
  transport::LinkId LinkFor(const Partition& partition) { return links_.Pick(partition.target(), partition.shape().index); }
  transport::LinkId LinkFor(const Partition& partition, bool push) {
    return links_.Pick(partition.target(push), partition.shape().index);
  }
  Partition* FindPartition(const transport::FrameHeader& header) const;
  std::string DescribePartition(const Partition& partition) const;

  void UpdateOwners(const proto::Plan& plan);
  void TakeCodecChoices(const proto::Plan& plan);
  void WarnOfResidual(const proto::TensorCodecState& state);   // once a tensor
  void Index(TensorState& tensor);
  absl::Status TakeExchanged(const proto::TensorInfo& info);
  void OnIdle(Partition* partition);
  void Ready(absl::Status status);
  void Fail(absl::Status why);
  void EndLeave(absl::Status status);
  void ReportStall();
  void Report(const std::string& what);
  std::string MissingWorkers() const;

  const WorkerCoreOptions options_;
  transport::Endpoint* const endpoint_;
  const Clock* const clock_;
  const TimeNs connect_timeout_;
  const TimeNs stall_report_;
  WorkerStats stats_;
  Links links_;
  SlabAllocator slab_;
  transport::LinkQueue queue_;
  transport::StreamSender sender_;
  PartitionEnv env_;
  OpQueue ops_;
  RowPulls row_pulls_;
  collective::Collectives collectives_;
  Exchanges exchanges_;
  control::MemberCore member_;
  Admission admission_;

  // Numbers of collectives in Cancel, which all operations share.
  static constexpr uint64_t kCollectiveBit = uint64_t{1} << 63;   // row pulls count from 2^62 on
  static constexpr uint64_t kExchangeBit = uint64_t{1} << 61;

  bool planned_ = false;  // plan_ is of our job
  proto::Plan plan_;
  std::vector<Partition*> partitions_;  // by job-wide index; null = not ours
  std::function<void(absl::Status)> ready_;
  std::optional<TimeNs> started_;
  TimeNs last_scan_ = 0;
  std::optional<double> loss_;  // smoothed
  std::set<uint32_t> warned_;   // tensors
  std::map<std::string, uint64_t> barrier_counts_;
  uint64_t next_barrier_ = 1;
  std::map<uint64_t, Asked> barriers_;
  bool leaving_ = false;
  std::optional<Asked> leave_;
  absl::Status failed_;
  bool refused_ = false;                       // by the scheduler, for good
  bool over_ = false;                          // the scheduler said so: the job failed, another process has the rank, …
  TimeNs last_stall_report_ = 0;
  TimeNs next_stall_check_ = 0;
  TimeNs report_window_ = 0;  // Report: at most kReportsPerWindow a second
  uint32_t reports_in_window_ = 0;
};

}  // namespace sluice::worker
