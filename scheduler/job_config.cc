#include "scheduler/job_config.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <bit>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/exchange_rules.h"
#include "base/groups.h"
#include "base/status_macros.h"
#include "compression/policy.h"

namespace sluice::scheduler {
namespace {

absl::Status OneOf(absl::string_view key, const std::string& value, std::initializer_list<absl::string_view> known) {
  for (absl::string_view k : known)
    if (value == k) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(key, " is \"", value, "\"; one of ", absl::StrJoin(known, ", "),
                                                 " is expected"));
}

absl::Status Within(absl::string_view key, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();  // false for NaN
  return absl::InvalidArgumentError(absl::StrCat(key, " is ", value, "; it must lie between ", low, " and ", high));
}

bool IsName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes) return false;
  for (char c : name)
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && !absl::StrContains("._-", absl::string_view(&c, 1)))
      return false;
  return true;
}

absl::Status CheckOptimizer(const proto::OptimizerConfig& o) {
  SLUICE_RETURN_IF_ERROR(OneOf("job.optimizer.kind", o.kind(),
                               {"none", "sgd", "momentum", "nesterov", "adagrad", "adam", "adamw", "lamb"}));
  SLUICE_RETURN_IF_ERROR(OneOf("job.optimizer.schedule", o.schedule(), {"constant", "step", "cosine", "linear"}));
  const double big = 1e30;
  SLUICE_RETURN_IF_ERROR(Within("job.optimizer.rate", o.rate(), 0, big));
  SLUICE_RETURN_IF_ERROR(Within("job.optimizer.momentum", o.momentum(), 0, 1));
  SLUICE_RETURN_IF_ERROR(Within("job.optimizer.beta1", o.beta1(), 0, 1));
  SLUICE_RETURN_IF_ERROR(Within("job.optimizer.beta2", o.beta2(), 0, 1));
  SLUICE_RETURN_IF_ERROR(Within("job.optimizer.epsilon", o.epsilon(), 0, big));
  SLUICE_RETURN_IF_ERROR(Within("job.optimizer.weight_decay", o.weight_decay(), 0, big));
  SLUICE_RETURN_IF_ERROR(Within("job.optimizer.clip_norm", o.clip_norm(), 0, big));
  SLUICE_RETURN_IF_ERROR(Within("job.optimizer.step_factor", o.step_factor(), 0, big));
  SLUICE_RETURN_IF_ERROR(Within("job.optimizer.final_rate", o.final_rate(), 0, big));
  if (o.schedule() == "step" && o.step_rounds() == 0)
    return absl::InvalidArgumentError("job.optimizer.schedule is step, so job.optimizer.step_rounds must be set");
  if ((o.schedule() == "cosine" || o.schedule() == "linear") && o.total_rounds() == 0)
    return absl::InvalidArgumentError(absl::StrCat("job.optimizer.schedule is ", o.schedule(),
                                                   ", so job.optimizer.total_rounds must be set"));
  return absl::OkStatus();
}

// Without rounds that close there is no step, so nothing that is decided for a whole step.
absl::Status CheckAsynchronous(const proto::JobConfig& c) {
  if (c.mode() == proto::MODE_BSP) return absl::OkStatus();
  const std::string mode = c.mode() == proto::MODE_SSP ? "SSP" : "ASP";
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(what, " needs rounds that close for all workers, which ", mode,
                                                   " does not have; use job.mode MODE_BSP or drop it"));
  };
  if (c.reply() == proto::REPLY_CHANGE) return refuse("job.reply REPLY_CHANGE");
  if (c.order() == proto::ORDER_EXACT) return refuse("job.order ORDER_EXACT");
  if (c.on_nonfinite() == proto::NONFINITE_SKIP) return refuse("job.on_nonfinite NONFINITE_SKIP");
  if (c.optimizer().clip_norm() > 0) return refuse("job.optimizer.clip_norm");
  if (c.optimizer().kind() == "lamb") return refuse("job.optimizer.kind lamb");
  return absl::OkStatus();
}

// Rounds that close without those who are late.
absl::Status CheckStragglers(const proto::JobConfig& c) {
  if (c.backup_workers() == 0 && c.round_deadline_ms() == 0) return absl::OkStatus();
  const char* what = c.backup_workers() > 0 ? "job.backup_workers" : "job.round_deadline_ms";
  if (c.mode() != proto::MODE_BSP)
    return absl::InvalidArgumentError(
        absl::StrCat(what, " needs job.mode MODE_BSP: in SSP and ASP nobody waits for stragglers"));
  if (c.backup_workers() >= c.workers())
    return absl::InvalidArgumentError(absl::StrCat("job.backup_workers is ", c.backup_workers(), " and job.workers ",
                                                   c.workers(), "; at least one worker must be waited for"));
  if (c.reply() == proto::REPLY_AGGREGATE)
    return absl::InvalidArgumentError(absl::StrCat(
        what, " does not go with job.reply REPLY_AGGREGATE (the default without job.optimizer.kind): a worker "
        "that is late would miss sums for good; let the servers have the optimizer"));
  return absl::OkStatus();
}

std::string ValueText(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor* field) {
  using Field = google::protobuf::FieldDescriptor;
  const auto* r = message.GetReflection();
  switch (field->cpp_type()) {
    case Field::CPPTYPE_INT32: return absl::StrCat(r->GetInt32(message, field));
    case Field::CPPTYPE_INT64: return absl::StrCat(r->GetInt64(message, field));
    case Field::CPPTYPE_UINT32: return absl::StrCat(r->GetUInt32(message, field));
    case Field::CPPTYPE_UINT64: return absl::StrCat(r->GetUInt64(message, field));
    case Field::CPPTYPE_DOUBLE: {
      const double value = r->GetDouble(message, field);
      return absl::StrCat(value, " (", absl::Hex(std::bit_cast<uint64_t>(value)), ")");  // two may print alike
    }
    case Field::CPPTYPE_BOOL: return r->GetBool(message, field) ? "true" : "false";
    case Field::CPPTYPE_ENUM: return r->GetEnum(message, field)->name();
    case Field::CPPTYPE_STRING: return absl::StrCat("\"", r->GetString(message, field), "\"");
    default: return "?";
  }
}

std::string Difference(const std::string& prefix, const google::protobuf::Message& a,
                       const google::protobuf::Message& b) {
  const auto* descriptor = a.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    const std::string key = absl::StrCat(prefix, ".", field->name());
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      std::string inner =
          Difference(key, a.GetReflection()->GetMessage(a, field), b.GetReflection()->GetMessage(b, field));
      if (!inner.empty()) return inner;
      continue;
    }
    const std::string va = ValueText(a, field), vb = ValueText(b, field);
    if (va == vb) continue;
    const auto text = [&](const std::string& v) {
      return field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE ? v.substr(0, v.find(' ')) : v;
    };
    return absl::StrCat(key, ": ", text(va) == text(vb) ? va : text(va), " and ", text(va) == text(vb) ? vb : text(vb));
  }
  return "";
}

}  // namespace

void NormaliseJobConfig(proto::JobConfig* c) {
  if (c->name().empty()) c->set_name("default");
  if (c->workers() == 0) c->set_workers(1);
  if (c->mode() == proto::MODE_SSP && c->staleness() == 0) c->set_staleness(4);
  if (c->mode() != proto::MODE_SSP) c->set_staleness(0);  // means nothing there
  // What arrives is applied on arrival: the default order means just that.
  if (c->mode() != proto::MODE_BSP && c->order() == proto::ORDER_RANK) c->set_order(proto::ORDER_FAST);
  if (c->codec().empty()) c->set_codec("none");
  if (c->reply_codec().empty()) c->set_reply_codec("fp16");
  if (c->exchange().empty()) c->set_exchange("servers");
  if (c->partition_bytes() == 0) c->set_partition_bytes(4 << 20);
  proto::OptimizerConfig* o = c->mutable_optimizer();
  if (o->kind().empty()) o->set_kind("none");
  if (o->schedule().empty()) o->set_schedule("constant");
  if (c->reply() == proto::REPLY_DEFAULT)
    c->set_reply(o->kind() == "none" ? proto::REPLY_AGGREGATE : proto::REPLY_PARAMETERS);
}

absl::Status CheckJobConfig(const proto::JobConfig& c) {
  if (!IsName(c.name()))
    return absl::InvalidArgumentError(absl::StrCat("job.name must be 1 to ", kMaxNameBytes,
                                                   " letters, digits, dots, dashes or underscores"));
  if (c.workers() < 1 || c.workers() > kMaxWorkers)
    return absl::InvalidArgumentError(
        absl::StrCat("job.workers is ", c.workers(), "; it must lie between 1 and ", kMaxWorkers));
  if (c.partition_bytes() < 16 || c.partition_bytes() > (1u << 30) || c.partition_bytes() % 4 != 0)
    return absl::InvalidArgumentError(absl::StrCat("job.partition_bytes is ", c.partition_bytes(),
                                                   "; it must be a multiple of 4 between 16 and 2^30"));
  if (!proto::Mode_IsValid(c.mode()) || !proto::Order_IsValid(c.order()) || !proto::Reduction_IsValid(c.reduction()) ||
      !proto::Reply_IsValid(c.reply()) || !proto::OnNonfinite_IsValid(c.on_nonfinite()) ||
      !proto::OnWorkerLoss_IsValid(c.on_worker_loss()))
    return absl::InvalidArgumentError(
        "job.mode, order, reduction, reply, on_nonfinite or on_worker_loss has a value that this release does not "
        "know");
  SLUICE_RETURN_IF_ERROR(CheckExchange(c));
  SLUICE_RETURN_IF_ERROR(Groups::Parse(c.groups(), c.workers()).status());
  SLUICE_RETURN_IF_ERROR(CheckOptimizer(c.optimizer()));
  SLUICE_RETURN_IF_ERROR(CheckAsynchronous(c));
  SLUICE_RETURN_IF_ERROR(CheckStragglers(c));
  SLUICE_RETURN_IF_ERROR(compression::CheckCodecConfig(c));
  if (c.optimizer().kind() == "none" && c.reply() != proto::REPLY_AGGREGATE)
    return absl::InvalidArgumentError(
        absl::StrCat("job.reply is ", proto::Reply_Name(c.reply()),
                     ", but job.optimizer.kind is none, so the servers have no parameters that change"));
  return absl::OkStatus();
}

std::string FirstDifference(const proto::JobConfig& a, const proto::JobConfig& b) { return Difference("job", a, b); }

}  // namespace sluice::scheduler
