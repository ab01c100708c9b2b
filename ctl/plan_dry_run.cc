#include "ctl/plan_dry_run.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "scheduler/fabric/routes.h"
#include "scheduler/job_config.h"
#include "scheduler/placement/plan_job.h"
#include "scheduler/topology/complete.h"
#include "scheduler/topology/formats/files.h"

namespace sluice::ctl {
namespace {

// The first error of a text-format file, by line.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat(line + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// A plan for a job that no scheduler would take is of no use. (Larger ones than one takes may be planned.)
absl::Status CheckAsASchedulerDoes(const std::string& file, proto::JobConfig job) {
  if (job.workers() > scheduler::kMaxWorkers) return absl::OkStatus();
  if (job.name().empty()) job.set_name("dry-run");
  scheduler::NormaliseJobConfig(&job);
  const absl::Status status = scheduler::CheckJobConfig(job);
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat("job file ", file, ": ", status.message()));
}

absl::StatusOr<proto::JobFile> ReadJobFile(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("job file ", file, ": it cannot be read"));
  std::string text(kMaxJobFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxJobFileBytes) return absl::ResourceExhaustedError(absl::StrCat("job file ", file, ": more than ", kMaxJobFileBytes, " bytes"));
  google::protobuf::TextFormat::Parser parser;
  FirstError error;
  parser.RecordErrorsTo(&error);
  proto::JobFile job;
  if (!parser.ParseFromString(text, &job))
    return absl::InvalidArgumentError(absl::StrCat(file, ":", error.text(), " (proto/topology.proto, JobFile, has the fields)"));
  return job;
}

}  // namespace

absl::StatusOr<proto::Explanation> PlanDryRun(const Arguments& arguments, const proto::TopologyConfig& config) {
  SLUICE_ASSIGN_OR_RETURN(const proto::JobFile job, ReadJobFile(arguments.job_file));
  SLUICE_RETURN_IF_ERROR(CheckAsASchedulerDoes(arguments.job_file, job.job()));
  topology::ReadOptions read;
  for (const absl::string_view label : absl::StrSplit(config.node_labels(), ',', absl::SkipEmpty())) read.node_labels.emplace_back(label);
  std::vector<topology::Report> reports;
  SLUICE_ASSIGN_OR_RETURN(topology::Graph graph, topology::ReadFiles(arguments.topology, read, &reports));
  topology::Assumptions assumptions;
  if (config.link_bytes() > 0) assumptions.host_link_bytes_per_second = static_cast<double>(config.link_bytes());
  if (config.oversubscription() > 0) assumptions.oversubscription = config.oversubscription();
  topology::Complete(&graph, assumptions);
  const auto routes = fabric::Routes::Create(&graph);
  placement::PlanJobOptions options{.seed = arguments.seed};
  if (!config.trees().empty()) options.trees = config.trees();
  SLUICE_ASSIGN_OR_RETURN(proto::Explanation explanation, placement::PlanJob(job, graph, *routes, options));
  explanation.set_topology(absl::StrCat(explanation.topology(), " (", absl::StrJoin(reports, ", ", [](std::string* out, const topology::Report& report) {
                                          absl::StrAppend(out, report.file, ": ", report.title);
                                        }), ")"));
  for (const topology::Report& report : reports)
    for (const std::string& warning : report.warnings) explanation.add_notes(warning);
  return explanation;
}

}  // namespace sluice::ctl
