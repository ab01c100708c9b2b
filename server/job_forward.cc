// Pushes to what this lane forwards, and the answers to what it has forwarded (docs/wire.md, "A push through a tree").
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/job.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;
using transport::RetryReason;
using Admission = transport::StreamReceiver::Admission;

// Who forwards must be this way's node, in the life that the plan has. False: answered.
bool Job::KnowsForwarder(LinkId link, const FrameHeader& push, uint32_t term) {
  const uint32_t server = push.rank & ~kForwardRank;
  if (plan_.has_value() && server < static_cast<uint32_t>(plan_->servers_size()) &&
      plan_->servers(static_cast<int>(server)).incarnation() == push.incarnation) {
    return true;
  }
  env_.host->RequestPlan(number_);
  env_.replier->SendRetry(link, push, RetryReason::kPlan, term);
  return false;
}

bool Job::KnowsLife(LinkId link, const FrameHeader& request, uint32_t term) {
  if (request.rank >= context_.workers.size()) {
    env_.host->EndLink(link, request,
                       absl::InvalidArgumentError(absl::StrCat("rank ", request.rank, " in a job of ",
                                                               context_.workers.size(), " workers")));
    return false;
  }
  const WorkerView& worker = context_.workers[request.rank];
  if (request.incarnation < worker.incarnation) {
    env_.replier->SendError(
        link, request,
        absl::AbortedError(absl::StrCat("rank ", request.rank, " was taken over by incarnation ", worker.incarnation,
                                        " (", worker.address, "); this is incarnation ", request.incarnation)));
    return false;
  }
  if (request.incarnation > worker.incarnation) {
    env_.host->RequestPlan(number_);
    env_.replier->SendRetry(link, request, RetryReason::kIncarnation, term);
    return false;
  }
  return true;
}

// A push by another way than this plan's. False: answered.
bool Job::IsOfThisWay(LinkId link, const FrameHeader& push, uint64_t stamp, uint32_t term) {
  if (push.aux64 == stamp) return true;
  if (push.plan_version >= context_.plan_version) env_.host->RequestPlan(number_);
  env_.replier->SendRetry(link, push, RetryReason::kPlan, term);
  return false;
}

bool Job::RecogniseMember(LinkId link, const FrameHeader& push, const ForwardedPartition& partition) {
  if (push.plan_version > context_.plan_version) env_.host->RequestPlan(number_);
  if (!error_.ok()) {
    env_.replier->SendError(link, push, error_);
    return false;
  }
  const bool forward = push.has(transport::kFlagForward);
  if (forward ? !KnowsForwarder(link, push, partition.term()) : !KnowsLife(link, push, partition.term())) return false;
  if (push.term != partition.term()) {
    if (push.term > partition.term()) env_.host->RequestPlan(number_);
    env_.replier->SendRetry(link, push, RetryReason::kPlan, partition.term());
    return false;
  }
  if (!IsOfThisWay(link, push, partition.stamp(), partition.term())) return false;
  if (!partition.IsMember(push.rank)) {
    env_.host->EndLink(link, push,
                       absl::InvalidArgumentError(absl::StrCat(
                           forward ? "server " : "rank ", push.rank & ~kForwardRank, " pushes to partition ", push.partition,
                           ", which this server forwards, and the plan's tree does not let it")));
    return false;
  }
  return true;
}

Admission Job::AdmitForwarded(LinkId link, const FrameHeader& push, ForwardedPartition* partition) {
  if (!RecogniseMember(link, push, *partition)) {
    ++env_.counters->refused;
    return Admission::kAnswered;
  }
  const auto workers = static_cast<uint32_t>(context_.workers.size());
  const absl::Status status =
      push.has(transport::kFlagForward)
          ? CheckForward(partition->shape(), workers, context_.semantics->order, push, env_.max_message_bytes)
          : CheckDensePush(partition->shape(), push, env_.max_message_bytes);
  if (!status.ok()) {
    ++env_.counters->refused;
    env_.host->EndLink(link, push, status);
    return Admission::kAnswered;
  }
  return partition->Admit(link, push);
}

absl::Status Job::ContributeForwarded(LinkId link, const FrameHeader& push, transport::Payload payload,
                                      ForwardedPartition* partition) {
  if (!RecogniseMember(link, push, *partition)) return absl::OkStatus();
  return partition->Contribute(link, push, std::move(payload));
}

void Job::OnForwardAnswer(LinkId link, const FrameHeader& header, const transport::Payload& payload) {
  if (const absl::Status status = forwarding_.OnFrame(link, header, payload); !status.ok()) {
    ++env_.counters->refused;
    env_.host->EndLink(link, header, status);
  }
}

}  // namespace sluice::server
