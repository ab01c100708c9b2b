#include "ctl/arguments.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/config_schema.h"
#include "base/status_macros.h"

namespace sluice::ctl {
namespace {

const std::vector<std::string>& Commands() {
  static const auto* const commands = new std::vector<std::string>{
      "status", "shards",      "workers",      "tables", "tensors", "links",  "events",  "plan",         "config", "abort", "move-shard", "rebalance",
      "moves",  "pause-moves", "resume-moves", "cancel-moves", "drain", "undrain", "drain-status", "doctor", "codecs", "topology"};
  return *commands;
}

// sluicectl's own; settings of the daemons are known by base/config_schema.h.
const std::vector<std::string>& Options() {
  static const auto* const options = new std::vector<std::string>{
      "--help", "--version", "--json", "--all", "--follow", "--watch", "--job", "--reason", "--timeout", "--after",
      "--limit", "--probe", "--bytes", "--scheduler", "--config", "--dry-run", "--explain", "--topology", "--job-file", "--output", "--seed"};
  return *options;
}

// An option of our own that `name` may be meant to be: "" if it is a setting, or like none.
std::string MistypedOption(const std::string& name) {
  constexpr size_t kLikely = 2;   // edits
  std::string setting = name.substr(2);
  std::replace(setting.begin(), setting.end(), '-', '_');
  if (FindConfigKey(setting) != nullptr || FindConfigKeyByLastPart(setting) != nullptr) return "";
  const std::string nearest = Nearest(name, Options());
  return nearest != name && EditDistance(name, nearest) <= kLikely ? nearest : "";
}

// What happens once: again and again makes no sense.
bool ChangesSomething(const std::string& command) {
  for (const char* name :
       {"abort", "move-shard", "rebalance", "pause-moves", "resume-moves", "cancel-moves", "drain", "undrain"})
    if (command == name) return true;
  return false;
}

bool TakesServer(const std::string& command) {
  return command == "move-shard" || command == "drain" || command == "undrain" || command == "drain-status";
}

// At commas outside of brackets: "n[1,2]=inside.xml,cluster.conf" are two.
std::vector<std::string> SplitFiles(const std::string& text) {
  std::vector<std::string> files(1);
  int depth = 0;
  for (const char c : text) {
    depth += (c == '[') - (c == ']');
    if (c == ',' && depth <= 0) files.emplace_back();
    else files.back() += c;
  }
  files.erase(std::remove(files.begin(), files.end(), ""), files.end());
  return files;
}

absl::Status CheckPlan(const Arguments& a) {
  const bool plan = a.command == "plan", dry = plan && a.dry_run;
  if (a.explain && !plan) return absl::InvalidArgumentError("--explain goes with plan only");
  if (!a.output.empty() && !plan) return absl::InvalidArgumentError("--output goes with plan only");
  if ((!a.topology.empty() || !a.job_file.empty()) && !dry)
    return absl::InvalidArgumentError("--topology and --job-file go with plan --dry-run only");
  if (dry && !a.help && (a.topology.empty() || a.job_file.empty()))
    return absl::InvalidArgumentError("plan --dry-run needs --topology=FILE[,FILE] and --job-file=FILE");
  if (dry && a.watch_seconds > 0) return absl::InvalidArgumentError("--watch does not go with plan --dry-run: its files say the same again");
  return absl::OkStatus();
}

// "8MiB", "8388608". False: no such size.
bool ParseSize(absl::string_view text, uint64_t* bytes) {
  uint64_t unit = 1;
  for (const auto& [suffix, size] : {std::pair<absl::string_view, uint64_t>{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"B", 1}}) {
    if (!absl::ConsumeSuffix(&text, suffix)) continue;
    unit = size;
    break;
  }
  if (!absl::SimpleAtoi(text, bytes) || *bytes > UINT64_MAX / unit) return false;
  *bytes *= unit;
  return true;
}

absl::Status CheckLinks(const Arguments& a) {
  if (a.probe && a.command != "links") return absl::InvalidArgumentError("--probe goes with links only");
  if (a.bytes > 0 && !a.probe) return absl::InvalidArgumentError("--bytes goes with links --probe only");
  if (a.all && a.command != "shards" && !a.probe && !(a.command == "plan" && (a.explain || a.dry_run)))
    return absl::InvalidArgumentError("--all goes with shards, plan --explain, plan --dry-run and links --probe only");
  if (a.probe && a.watch_seconds > 0) return absl::InvalidArgumentError("--watch does not go with links --probe, which is done once; `sluicectl links --watch` shows what came of it");
  return absl::OkStatus();
}

bool IsNumber(absl::string_view text) {
  double value;
  return absl::SimpleAtod(text, &value);
}

}  // namespace

absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& words) {
  Arguments out;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const auto value = [&](std::string* text) -> absl::Status {   // --name=value or --name value
      if (equals != std::string::npos) *text = word.substr(equals + 1);
      else if (i + 1 < words.size()) *text = words[++i];
      else return absl::InvalidArgumentError(absl::StrCat(name, " needs a value"));
      return absl::OkStatus();
    };
    std::string text;
    absl::Status status;
    if (name == "--help" || name == "-h" || word == "help") {
      out.help = true;
    } else if (name == "--version") {
      out.version = true;
    } else if (word == "--json") {
      out.json = true;
    } else if (word == "--all") {
      out.all = true;
    } else if (word == "--probe") {
      out.probe = true;
    } else if (name == "--bytes") {
      status = value(&text);
      if (status.ok() && (!ParseSize(text, &out.bytes) || out.bytes == 0))
        status = absl::InvalidArgumentError(absl::StrCat("--bytes: \"", text, "\" is no size (bytes, or with KiB, MiB, GiB)"));
    } else if (word == "--dry-run") {
      out.dry_run = true;
    } else if (word == "--explain") {
      out.explain = true;
    } else if (name == "--topology") {
      status = value(&text);
      for (std::string& file : SplitFiles(text)) out.topology.push_back(std::move(file));
    } else if (name == "--job-file") {
      status = value(&out.job_file);
    } else if (name == "--output") {
      status = value(&out.output);
      if (status.ok() && out.output != "hostlist" && out.output != "rankfile" && out.output != "slurm")
        status = absl::InvalidArgumentError(absl::StrCat("--output: \"", out.output, "\"; hostlist, rankfile and slurm are possible"));
    } else if (name == "--seed") {
      status = value(&text);
      if (status.ok() && !absl::SimpleAtoi(text, &out.seed))
        status = absl::InvalidArgumentError(absl::StrCat("--seed: \"", text, "\" is not a number"));
    } else if (word == "--follow" || word == "-f") {
      out.follow = true;
    } else if (name == "--watch") {
      text = "2";
      if (equals != std::string::npos) text = word.substr(equals + 1);
      else if (i + 1 < words.size() && IsNumber(words[i + 1])) text = words[++i];
      if (!absl::SimpleAtod(text, &out.watch_seconds) || !(out.watch_seconds >= 0.1) || out.watch_seconds > 86400)
        status =
            absl::InvalidArgumentError(absl::StrCat("--watch: \"", text, "\" is not a number of seconds from 0.1 on"));
    } else if (name == "--job") {
      status = value(&out.job);
    } else if (name == "--reason") {
      status = value(&out.reason);
    } else if (name == "--timeout") {
      status = value(&text);
      if (status.ok() && (!absl::SimpleAtod(text, &out.timeout_seconds) || !(out.timeout_seconds > 0) ||
                          out.timeout_seconds > 86400))
        status = absl::InvalidArgumentError(absl::StrCat("--timeout: \"", text, "\" is not a number of seconds"));
    } else if (name == "--after") {
      status = value(&text);
      if (status.ok() && !absl::SimpleAtoi(text, &out.after))
        status = absl::InvalidArgumentError(absl::StrCat("--after: \"", text, "\" is not the number of an event"));
    } else if (name == "--limit") {
      status = value(&text);
      if (status.ok() && !absl::SimpleAtoi(text, &out.limit))
        status = absl::InvalidArgumentError(absl::StrCat("--limit: \"", text, "\" is not a number"));
    } else if (word.rfind("--", 0) == 0) {
      if (const std::string meant = MistypedOption(name); !meant.empty())
        return absl::InvalidArgumentError(absl::StrCat("no option \"", name, "\"; the nearest is ", meant));
      out.config.push_back(word);
      if (equals == std::string::npos && i + 1 < words.size() && words[i + 1].rfind("-", 0) != 0)
        out.config.push_back(words[++i]);
    } else if (out.command.empty()) {
      if (std::find(Commands().begin(), Commands().end(), word) == Commands().end())
        status = absl::InvalidArgumentError(
            absl::StrCat("no command \"", word, "\"; the nearest is ", Nearest(word, Commands())));
      out.command = word;
    } else if (out.command == "doctor" && out.role.empty() &&
               (word == "scheduler" || word == "server" || word == "worker")) {
      out.role = word;
    } else if (out.command == "topology") {
      if (!out.action.empty()) out.files.push_back(word);
      else if (word == "import" || word == "show" || word == "check") out.action = word;
      else status = absl::InvalidArgumentError(absl::StrCat("topology: \"", word, "\" is none of import, show, check"));
    } else if (out.command == "abort" && out.job.empty()) {
      out.job = word;
    } else if (out.command == "move-shard" && !out.has_shard) {
      if (!absl::SimpleAtoi(word, &out.shard))
        status = absl::InvalidArgumentError(
            absl::StrCat("move-shard: \"", word, "\" is not the number of a shard (`sluicectl shards --all`)"));
      out.has_shard = true;
    } else if (TakesServer(out.command) && out.server.empty()) {
      out.server = word;
    } else {
      status = absl::InvalidArgumentError(absl::StrCat("unexpected \"", word, "\" after ", out.command));
    }
    if (!status.ok()) return status;
  }
  if (out.command.empty() && !out.help && !out.version)
    return absl::InvalidArgumentError(absl::StrCat("a command is missing; one of ", absl::StrJoin(Commands(), ", ")));
  if (out.follow && out.command != "events") return absl::InvalidArgumentError("--follow goes with events only");
  SLUICE_RETURN_IF_ERROR(CheckLinks(out));
  if (!out.reason.empty() && out.command != "abort") return absl::InvalidArgumentError("--reason goes with abort only");
  if (out.command == "topology" && out.action.empty() && !out.help)
    return absl::InvalidArgumentError("topology needs import, show or check, and files");
  if (out.command == "abort" && out.job.empty() && !out.help)
    return absl::InvalidArgumentError("abort needs the name or the number of a job (`sluicectl status` shows both)");
  if (TakesServer(out.command) && out.server.empty() && !out.help)
    return absl::InvalidArgumentError(
        absl::StrCat(out.command, " needs ", out.command == "move-shard" ? "the number of a shard and " : "",
                     "the id of a server (`sluicectl status` shows them)"));
  if (out.dry_run && out.command != "rebalance" && out.command != "plan")
    return absl::InvalidArgumentError("--dry-run goes with rebalance and plan only");
  SLUICE_RETURN_IF_ERROR(CheckPlan(out));
  if (out.watch_seconds > 0 && ChangesSomething(out.command))
    return absl::InvalidArgumentError(
        absl::StrCat("--watch does not go with ", out.command, ", which is done once",
                     out.command == "abort" ? ""
                     : out.command == "drain" ? "; `sluicectl drain-status SERVER --watch` shows how far it is"
                                              : "; `sluicectl moves --watch` shows how far moves are"));
  return out;
}

std::string Usage() {
  return R"(usage: sluicectl COMMAND [OPTION …]

Commands
  status                 the cluster: jobs and why they wait, servers, workers
  workers                the workers of a job, rank by rank
  shards [--all]         the shards of a job: which server and event loop owns what; --all shows empty ones, too
                         (as --json always does)
  tables                 the sparse tables of a job: rows, hits, updates, evictions, and the ids that are pushed most
                         (ID:COUNT, approximately), as servers said with their last heartbeat
  tensors                the tensors of a job: the codec that each one's gradients travel in and why, and what it was measured to
                         save and to lose (job.codec_stats_rounds), on the worker where its residual was largest
  links                  the ways between members: one row a link and path, with kind, rail, goodput and bytes as the
                         member saw them within the last seconds, and why a link does not use RDMA. Below, what links of
                         the topology were measured to carry
  links --probe [--all] [--bytes=SIZE]
                         lets servers send to each other first, SIZE (8MiB) for each pair, to measure the links of the topology
                         that training has not (--all: every link that servers can reach), and waits for the end. It works
                         without a job; one that runs is slowed down for that long
  plan                   the plan of a job: servers, workers, tensors
  plan --explain [--all] why it is so: what was weighed, the busiest links, by which routes hosts exchange how much, trees, the
                         predicted step and what the runner-up would cost; --all shows all routes that were sent, not 32
  plan --dry-run --topology=FILE[,FILE] --job-file=FILE
                         the same for a job that does not run, on a network that need not be there: where its ranks and servers
                         would go. Files of any known format (`sluicectl topology check`), HOSTS=FILE for the inside of hosts; the job
                         file is proto/topology.proto's JobFile in text format
  events [--follow]      what happened; --follow goes on with what happens
  config                 the scheduler's configuration and where each value came from; with --job that job's
  abort JOB [--reason=TEXT]
                         ends a job, by name or number, that has not ended by itself: it has failed then, and its
                         workers and servers are told. Nothing of it can be had back but workers' snapshots
  move-shard SHARD SERVER
                         gives a shard to another server while training goes on
  rebalance [--dry-run]  moves shards until no server owns much more than the mean; a server that was added gets its
                         share. --dry-run says what would be moved and why
  moves                  the moves that are asked for: how far, how fast, how long still
  pause-moves, resume-moves, cancel-moves
                         no other move begins; they begin again; all are ended but those of drains
  drain SERVER           gives all that a server holds to others, and nothing to it until undrain or its restart;
                         it may be stopped when it is empty
  undrain SERVER, drain-status SERVER
                         ends a drain; says how much is left of it
  doctor [ROLE]          tests this machine before ROLE (scheduler, server, worker) starts on it
  codecs                 the gradient codecs of this build
  topology check [FILE …]
                         reads the files that describe the network, as the scheduler would: format (recognised by content),
                         counts, warnings; a file that is refused ends it with file, line and reason. Without files:
                         those of topology.files. HOST=FILE, or n[01-32]=FILE, for the inside of hosts; FILE#NAME for one
                         of several topologies in a file
  topology show [FILE …] the network as a tree with the speed of each link, and where it comes from; of hosts, GPUs in the
                         order of ranks and the NIC of each
  topology import FILE … what was read, in the plain format (docs/topology/formats.md), to be edited and read again

Options
  --scheduler=HOST:PORT  where the scheduler is (also SLUICE_NODE_SCHEDULER; default 127.0.0.1:7700)
  --reason=TEXT          abort: why, for the plan, the events and the workers' own last words
  --job=NAME             which job; not needed where there is one
  --dry-run              rebalance: move nothing; plan: without a cluster
  --output=FORMAT        plan with --explain or --dry-run: hosts in the order of ranks for launchers: hostlist (a line a rank), rankfile
                         (Open MPI), slurm (for srun --nodelist and --distribution=arbitrary)
  --seed=N               plan --dry-run: of the search; default 1
  --json                 JSON instead of tables (events --follow: one object a line)
  --watch[=SECONDS]      again and again, every 2 seconds by default
  --timeout=SECONDS      how long a call may take; default 10
  --after=N, --limit=N   events: only those after number N; at most N (default 1000)
  --config=FILE, --node.KEY=VALUE, …   settings as of the daemons, for doctor
  --version, --help

Exit codes
  0  done
  1  the scheduler refused the request (no such job, it has ended already, …)
  2  wrong command line or configuration
  3  the scheduler could not be reached or did not answer in time
  4  doctor: at least one check failed
)";
}

}  // namespace sluice::ctl
