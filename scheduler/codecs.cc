// Codecs of tensors: what workers measured of them, and job.codec = auto.
//
// auto, step by step
//   1. Each worker says with its heartbeats how fast it encodes, what its links carry, its loss, and what the codecs do to its
//      tensors.
//   2. A CodecChooser a job takes that and decides now and then (codec_choice.h).
//   3. A decision goes into the plan, with a round ahead of all workers, and into the events, with the numbers. Nothing depends
//      on every worker having it in time: a push names its codec, and one that was late changes in its next round.
//   4. A scheduler that starts again, or could not write the plan, begins with what the plan has.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compression/policy.h"
#include "scheduler/core_impl.h"

namespace sluice::scheduler {
namespace {

constexpr int kMaxReportedCodecs = 256;   // of a heartbeat
constexpr int kKeptChoices = 3;           // of a tensor, for workers that start again a round or two back

std::string ChosenCodec(const proto::Plan& plan, uint32_t tensor) {
  std::string codec = "none";
  for (const proto::CodecChoice& choice : plan.codec_choices())
    if (choice.tensor() == tensor) codec = choice.codec();
  return codec;
}

void AddChoice(uint32_t tensor, uint64_t from_round, const std::string& codec, proto::Plan* plan) {
  const auto of_tensor = [&](const proto::CodecChoice& choice) { return choice.tensor() == tensor; };
  auto* choices = plan->mutable_codec_choices();
  if (std::ranges::count_if(*choices, of_tensor) >= kKeptChoices) choices->erase(std::ranges::find_if(*choices, of_tensor));
  proto::CodecChoice* choice = choices->Add();
  choice->set_tensor(tensor);
  choice->set_from_round(from_round);
  choice->set_codec(codec);
}

}  // namespace

void CoreImpl::TakeCodecs(JobState& job, uint32_t rank, const proto::Heartbeat& heartbeat) {
  for (int i = 0; i < std::min(heartbeat.codecs_size(), kMaxReportedCodecs); ++i) {
    const proto::TensorCodecState& said = heartbeat.codecs(i);
    if (said.tensor() >= static_cast<uint32_t>(job.plan().tensors_size())) continue;
    TensorCodec& known = job.codecs[said.tensor()];
    if (said.round() < known.state.round() ||
        (said.round() == known.state.round() && !(said.residual_ratio() > known.state.residual_ratio())))
      continue;
    known = {rank, said};
    known.state.set_codec(Clip(said.codec()));
  }
  if (job.chooser.has_value()) job.chooser->Take(rank, heartbeat, clock_->Now());
}

void CoreImpl::ChooseCodecs(JobState& job) {
  const proto::JobConfig& config = job.plan().config();
  if (!job.chooser.has_value()) {
    if (job.chooser_unwanted) return;
    const auto codecs = compression::AutoCodecs(config);
    job.chooser_unwanted = !compression::UsesAuto(config) || !codecs.ok();
    if (job.chooser_unwanted) return;
    CodecChooserOptions options;
    options.codecs = *codecs;
    if (config.auto_max_residual() > 0) options.max_residual = config.auto_max_residual();
    options.heartbeat = TimeNs{config_.heartbeat_ms()} * kMillisecond;
    job.chooser.emplace(std::move(options));
    job.chooser_tensors = 0;
  }
  for (; job.chooser_tensors < job.plan().tensors_size(); ++job.chooser_tensors) {
    const proto::TensorInfo& tensor = job.plan().tensors(job.chooser_tensors);
    if (tensor.spec().has_table()) continue;
    const auto policy = compression::PolicyFor(config, tensor.spec());
    if (policy.ok() && policy->codec == compression::kAutoCodec)
      job.chooser->AddTensor(tensor.tensor(), tensor.spec().name(), compression::ElementsOf(tensor.spec()),
                             ChosenCodec(job.plan(), tensor.tensor()));
  }
  for (uint32_t rank = 0; rank < job.workers.size(); ++rank)
    if (!job.workers[rank].Alive() || job.plan().workers(static_cast<int>(rank)).finished()) job.chooser->Forget(rank);
  if (std::exchange(job.chooser_plan, job.plan().version()) != job.plan().version()) job.chooser->Disturb();
  const auto decision = job.chooser->Decide(clock_->Now());
  if (!decision.has_value()) return;
  if (decision->codecs.empty()) {
    Note("codecs", job.name(), decision->why);
    return;
  }
  proto::JobRecord next = job.record;
  for (const auto& [tensor, codec] : decision->codecs)
    AddChoice(tensor, decision->from_round, codec, next.mutable_plan());
  if (!CommitJob(job, std::move(next)).ok()) {
    job.chooser.reset();   // again, from the plan as it is
    return;
  }
  Note("codecs", job.name(), absl::StrCat("from round ", decision->from_round, " on: ", decision->why));
}

absl::StatusOr<proto::TensorList> CoreImpl::ListTensors(const std::string& name) const {
  SLUICE_ASSIGN_OR_RETURN(const JobState* job, FindJob(name));
  proto::TensorList list;
  list.set_job(job->name());
  for (const proto::TensorInfo& tensor : job->plan().tensors()) {
    if (tensor.spec().has_table()) continue;
    proto::TensorStatus* status = list.add_tensors();
    status->set_name(tensor.spec().name());
    *status->mutable_shape() = tensor.spec().shape();
    status->set_kind(tensor.spec().kind());
    status->set_partitions(static_cast<uint32_t>(tensor.partition_shard_size()));
    if (const auto policy = compression::PolicyFor(job->plan().config(), tensor.spec()); policy.ok()) {
      const bool chosen = policy->codec == compression::kAutoCodec;
      status->set_codec(chosen ? ChosenCodec(job->plan(), tensor.tensor()) : policy->codec);
      status->set_note(chosen && policy->why.empty() ? "chosen by auto" : policy->why);
    }
    if (const auto codec = job->codecs.find(tensor.tensor()); codec != job->codecs.end()) {
      const proto::TensorCodecState& state = codec->second.state;
      *status->mutable_measured() = state;
      status->set_rank(codec->second.rank);
      if (state.codec() != "none" && state.wire_bytes() >= state.raw_bytes())
        status->set_note(absl::StrCat("does not shrink this tensor", status->note().empty() ? "" : "; ", status->note()));
    }
  }
  return list;
}

}  // namespace sluice::scheduler
