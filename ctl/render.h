// The admin service's answers as text for people and as JSON for programs. Pure functions.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "proto/admin.pb.h"

namespace sluice::ctl {

std::string Render(const proto::Cluster& cluster);
std::string Render(const proto::ShardList& shards, bool all = false);   // without those that are empty unless `all`
std::string Render(const proto::WorkerList& workers);
std::string Render(const proto::TableList& tables);
std::string Render(const proto::TensorList& tensors);
std::string Render(const proto::LinkList& links);
std::string Render(const proto::Plan& plan);
std::string Render(const proto::Explanation& explanation, bool all = false);   // the most loaded routes, or `all` that there are
// Hosts in the order of ranks: "hostlist" (a line a rank), "rankfile" (Open MPI), "slurm" (one line).
std::string RenderForLauncher(const proto::Explanation& explanation, const std::string& format);
std::string Render(const proto::EffectiveConfig& config);
std::string Render(const proto::MoveList& moves);
std::string Render(const proto::RebalanceAnswer& answer);
std::string Render(const proto::DrainStatus& drain);
std::string Render(const proto::JobStatus& job);   // of a job that was aborted
std::string Render(const proto::EventList& events);
std::string Render(const proto::Event& event);   // one line

// One object; names as in the .proto files, fields of value zero included, so that scripts need no defaults. Without
// line breaks if `one_line`.
std::string Json(const google::protobuf::Message& message, bool one_line = false);

}  // namespace sluice::ctl
