// Events of the data plane: links that come and go, frames, retries.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core_impl.h"

namespace sluice::worker {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;
using transport::Payload;

namespace {

constexpr TimeNs kRetryDelay = 100 * kMillisecond;
constexpr TimeNs kScanEvery = 20 * kMillisecond;

// The owner says that this push or pull can never be taken, whatever is repeated.
bool IsPermanent(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kDataLoss:  // the payload was damaged on the way: it is sent again
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded: return false;
    default: return true;
  }
}

}  // namespace

void CoreImpl::OnUp(LinkId link, const transport::Hello& peer) {
  const std::optional<LaneKey> lane = links_.OnUp(link);
  queue_.LinkUp(link);
  if (!lane.has_value()) {   // between workers, or somebody who has no business here
    if (!collectives_.OnUp(link, peer))
      endpoint_->Close(link, absl::FailedPreconditionError("a worker's listener is for workers of its job"));
    return;
  }
  for (Partition* partition : partitions_) {
    if (partition != nullptr && partition->target() == *lane && partition->link() == 0) Reroute(partition);
  }
}

void CoreImpl::OnDown(LinkId link, const absl::Status& reason) {
  if (collectives_.OnDown(link, reason)) {
    queue_.LinkDown(link);
    return;
  }
  const std::optional<LaneKey> lane = links_.OnDown(link, reason);
  sender_.LinkDown(link);
  row_pulls_.LinkDown(link);
  queue_.LinkDown(link);
  if (lane.has_value() && !leaving_ && failed_.ok()) {
    Report(absl::StrCat("connection to ", links_.Describe(*lane), ": ", reason.message(), "; trying again"));
  }
  for (Partition* partition : partitions_) {
    if (partition != nullptr && partition->LinkDown(link)) Reroute(partition);
  }
}

void CoreImpl::OnFrame(LinkId link, const FrameHeader& header, Payload payload) {
  if (header.type != FrameType::kBatch) {
    Dispatch(link, header, std::move(payload));
    return;
  }
  absl::Status status = transport::ForEachInBatch(
      header, payload.bytes(),
      [&](const FrameHeader& inner, ConstBytes bytes) { Dispatch(link, inner, payload.Slice(bytes)); });
  if (!status.ok()) endpoint_->Close(link, status);
}

void CoreImpl::OnSent(LinkId link, uint64_t cookie) { queue_.OnSent(link, cookie); }

void CoreImpl::OnWritable(LinkId link) { queue_.OnWritable(link); }

void CoreImpl::OnSlotClosed(LinkId link, transport::SlotId slot) {
  (void)link;  // slots are never reused within an endpoint
  row_pulls_.OnSlotClosed(slot);
  collectives_.OnSlotClosed(slot);
  for (Partition* partition : partitions_) {
    if (partition != nullptr) partition->OnSlotClosed(slot);
  }
}

Partition* CoreImpl::FindPartition(const FrameHeader& header) const {
  if (header.job != env_.job || header.rank != env_.rank || header.partition >= partitions_.size()) return nullptr;
  return partitions_[header.partition];
}

void CoreImpl::Dispatch(LinkId link, const FrameHeader& header, Payload payload) {
  if (collectives_.OnFrame(link, header, payload)) return;
  if (!links_.Knows(link)) return;   // a peer that was not let in
  Partition* partition = FindPartition(header);
  absl::Status status;
  switch (header.type) {
    case FrameType::kGrant:
    case FrameType::kState:
      if (partition == nullptr) return;
      if (header.type == FrameType::kState && header.round == partition->round()) {
        partition->NoteState(static_cast<transport::PushState>(header.aux));
      }
      sender_.OnFrame(link, header);
      return;
    case FrameType::kReply:
    case FrameType::kApplied:
      if (partition != nullptr) status = partition->OnReply(header, payload);
      break;
    case FrameType::kValue: {
      if (partition == nullptr) break;
      const absl::StatusOr<bool> rows = row_pulls_.OnValue(header, payload);
      status = !rows.ok() ? rows.status() : *rows ? absl::OkStatus() : partition->OnValue(header, payload);
      break;
    }
    case FrameType::kRetry: OnRetry(header); return;
    case FrameType::kError: OnError(header, payload); return;
    default:
      status = absl::InvalidArgumentError(
          absl::StrCat("a frame that no server sends to a worker: ", transport::DebugString(header)));
  }
  // Links end on what cannot be; the exchange goes on over the next one.
  if (!status.ok()) endpoint_->Close(link, status);
}

void CoreImpl::OnRetry(const FrameHeader& header) {
  Partition* partition = FindPartition(header);
  if (partition == nullptr) return;
  const bool row_pull = row_pulls_.OnRetry(header);
  const bool pushing = partition->phase() == Partition::Phase::kPushing && header.round == partition->round();
  if (!row_pull && !pushing && partition->phase() != Partition::Phase::kPulling) return;
  const auto reason = static_cast<transport::RetryReason>(header.aux);
  if ((reason == transport::RetryReason::kTerm && header.term > partition->term()) ||
      reason == transport::RetryReason::kPlan) {
    member_.RequestPlan();  // OnPlan routes it, if it has moved
  }
  if (row_pull) return;
  if (reason == transport::RetryReason::kDirect && pushing) {
    partition->GoDirect();
    partition->Route(LinkFor(*partition));
    return;
  }
  partition->RetryAfter(kRetryDelay);
}

void CoreImpl::OnError(const FrameHeader& header, const Payload& payload) {
  const std::string text(reinterpret_cast<const char*>(payload.data()), std::min<size_t>(payload.size(), 1024));
  const auto code = static_cast<absl::StatusCode>(header.status);
  Partition* partition = FindPartition(header);
  if (partition == nullptr || code == absl::StatusCode::kOk) {
    Report(absl::StrCat("a server says: ", text));
    return;
  }
  if (row_pulls_.OnError(header,
                         absl::Status(code, absl::StrCat("table ", TensorName(partition->shape().tensor), ": ",
                                                         DescribePartition(*partition), " says: ", text)),
                         IsPermanent(code))) {
    return;
  }
  const bool pushing = partition->phase() == Partition::Phase::kPushing && header.round == partition->round();
  if (!pushing && partition->phase() != Partition::Phase::kPulling) return;  // about something that is over
  const std::string what =
      absl::StrCat("tensor ", TensorName(partition->shape().tensor), ", partition ", partition->shape().index,
                   ", round ", header.round, ": ", DescribePartition(*partition), " says: ", text);
  if (IsPermanent(code)) {
    Fail(absl::Status(code, what));
    return;
  }
  Report(absl::StrCat(what, "; sending it again"));
  partition->RetryAfter(kRetryDelay);
}

void CoreImpl::Reroute(Partition* partition) {
  if (partition->phase() != Partition::Phase::kPushing && partition->phase() != Partition::Phase::kPulling) return;
  partition->GoByPlan();
  partition->Route(LinkFor(*partition));
}

void CoreImpl::RetryDue() {
  const TimeNs now = clock_->Now();
  if (now - last_scan_ < kScanEvery) return;
  last_scan_ = now;
  for (Partition* partition : partitions_) {
    if (partition == nullptr) continue;
    if (partition->retry_at() != 0 && now >= partition->retry_at()) {
      Reroute(partition);
    } else if (partition->PullIsSilent()) {
      partition->AskLessOften();
      Reroute(partition);
    }
  }
}

std::string CoreImpl::TensorName(uint32_t tensor) const {
  if (const ExchangedTensor* exchanged = exchanges_.Find(tensor); exchanged != nullptr) return exchanged->name();
  auto it = ops_.tensors().find(tensor);
  return it == ops_.tensors().end() ? absl::StrCat(tensor) : it->second->spec.name();
}

std::string CoreImpl::DescribePartition(const Partition& partition) const {
  const LaneKey lane = partition.target();
  const std::string trouble = links_.Trouble(lane);
  return absl::StrCat(links_.Describe(lane), lane == partition.lane() ? "" : ", its node in the tree of aggregators", trouble.empty() ? "" : absl::StrCat(" (", trouble, ")"));
}

}  // namespace sluice::worker
