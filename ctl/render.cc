#include "ctl/render.h"

#include <google/protobuf/util/json_util.h>

#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ctl/table.h"

namespace sluice::ctl {
namespace {

std::string StateText(proto::JobState state) {
  switch (state) {
    case proto::JOB_FORMING: return "forming";
    case proto::JOB_RUNNING: return "running";
    case proto::JOB_FINISHED: return "finished";
    case proto::JOB_FAILED: return "failed";
    default: return absl::StrCat("state ", static_cast<int>(state));
  }
}

// Newest events carry the wall clock in UTC, to the millisecond.
std::string Time(int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm utc{};
  if (gmtime_r(&seconds, &utc) == nullptr) return absl::StrCat(unix_ms);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                         utc.tm_hour, utc.tm_min, utc.tm_sec, unix_ms % 1000);
}

std::string Heard(const proto::MemberStatus& member) {
  if (member.member() == 0) return "-";
  return member.unheard() ? "not yet" : absl::StrCat(Duration(member.since_heartbeat_ms()), " ago");
}

std::string Alive(const proto::MemberStatus& member) {
  if (member.draining() && member.alive()) return "draining";
  return member.finished() && !member.alive() ? "finished" : YesNo(member.alive());
}

std::string Address(const proto::Address& address) {
  return absl::StrCat(address.host(), ":", address.port(), address.unix_socket().empty() ? "" : " (shm)");
}

// "s1 in sync, s2 40 %, moves to s2".
std::string CopiesText(const proto::ShardStatus& shard) {
  std::vector<std::string> parts;
  std::string target;
  for (int i = 0; i < shard.copies_size(); ++i) {
    const proto::CopyStatus& copy = shard.copies(i);
    const uint64_t bytes = copy.bytes_sent() + copy.bytes_left();
    parts.push_back(absl::StrCat(
        copy.server_id(), copy.in_sync() ? " in sync"
                          : bytes == 0   ? " begins"
                                         : absl::StrFormat(" %.0f %%", 100.0 * static_cast<double>(copy.bytes_sent()) /
                                                                           static_cast<double>(bytes))));
    if (i < shard.info().backups_size() && shard.info().backups(i).server() == shard.info().move_to())
      target = copy.server_id();
  }
  if (shard.info().moving()) parts.push_back(absl::StrCat("moves to ", target));
  return parts.empty() ? "none" : absl::StrJoin(parts, ", ");
}

}  // namespace

std::string Render(const proto::Cluster& cluster) {
  std::string text = absl::StrCat("scheduler ", cluster.version(), ", up ", Duration(cluster.uptime_ms()), "\n\n");
  if (cluster.jobs().empty()) {
    absl::StrAppend(&text, "no job yet: the first worker makes it (job.name)\n");
  } else {
    Table jobs({">JOB", "NAME", "STATE", ">WORKERS", ">ROUND", ">TENSORS", "SIZE", ">SHARDS", ">PLAN"});
    for (const proto::JobStatus& job : cluster.jobs())
      jobs.Add({absl::StrCat(job.job()), job.name(), StateText(job.state()),
                absl::StrCat(job.workers_alive(), "/", job.workers_expected()), absl::StrCat(job.round()),
                absl::StrCat(job.tensors()), Bytes(job.parameter_bytes()), absl::StrCat(job.shards()),
                absl::StrCat(job.plan_version())});
    absl::StrAppend(&text, jobs.Text());
    for (const proto::JobStatus& job : cluster.jobs())
      for (const std::string& line : {job.why(), job.protection()})
        if (!line.empty()) absl::StrAppend(&text, "  ", Clean(job.name()), ": ", Clean(line), "\n");
  }
  absl::StrAppend(&text, "\n");
  if (cluster.members().empty()) {
    absl::StrAppend(&text, "no servers and no workers are there\n");
    return text;
  }
  Table members({">NO", "ROLE", "JOB", ">RANK", "ID", "ADDRESS", "ALIVE", "HEARD", ">ROUND", "IN", "OUT"});
  for (const proto::MemberStatus& m : cluster.members())
    members.Add({absl::StrCat(m.member()), m.role() == proto::ROLE_SERVER ? "server" : "worker",
                 m.job().empty() ? "-" : m.job(), m.rank() < 0 ? "-" : absl::StrCat(m.rank()), m.id(), m.address(),
                 Alive(m), Heard(m), absl::StrCat(m.round()), Bytes(m.wire_bytes_in()),
                 Bytes(m.wire_bytes_out())});
  absl::StrAppend(&text, members.Text());
  for (const proto::MemberStatus& m : cluster.members())
    if (!m.waiting_for().empty()) absl::StrAppend(&text, "  ", Clean(m.id()), ": ", Clean(m.waiting_for()), "\n");
  return text;
}

std::string Render(const proto::ShardList& shards, bool all) {
  if (shards.shards().empty())
    return absl::StrCat("job ", Clean(shards.job()), " has no shards yet: it has not started\n");
  Table table({">SHARD", "OWNER", ">LANE", ">TERM", ">PARTITIONS", "SIZE", ">TREE", "COPIES"});
  int left_out = 0;
  for (const proto::ShardStatus& shard : shards.shards()) {
    if (!all && shard.partitions() == 0 && shard.info().bytes() == 0) {
      ++left_out;
      continue;
    }
    table.Add({absl::StrCat(shard.info().shard()), shard.server_id(), absl::StrCat(shard.info().lane()),
               absl::StrCat(shard.info().term()), absl::StrCat(shard.partitions()), Bytes(shard.info().bytes()),
               shard.info().tree() == 0 ? "-" : absl::StrCat(shard.info().tree()), CopiesText(shard)});
  }
  std::string text = absl::StrCat("job ", Clean(shards.job()), "\n");
  if (left_out == shards.shards_size()) return absl::StrCat(text, "none of its ", left_out, " shards holds anything yet (--all)\n");
  absl::StrAppend(&text, table.Text());
  if (left_out > 0) absl::StrAppend(&text, left_out, " more are empty (--all)\n");
  return text;
}

std::string Render(const proto::WorkerList& workers) {
  Table table({">RANK", "ID", "ADDRESS", ">INCARNATION", "ALIVE", "HEARD", ">ROUND", "IN", "OUT", "WAITS FOR"});
  for (const proto::MemberStatus& m : workers.workers())
    table.Add({absl::StrCat(m.rank()), m.id().empty() ? "-" : m.id(), m.address().empty() ? "-" : m.address(),
               absl::StrCat(m.incarnation()), Alive(m), Heard(m), absl::StrCat(m.round()),
               Bytes(m.wire_bytes_in()), Bytes(m.wire_bytes_out()), m.waiting_for()});
  return table.Text();
}

std::string Render(const proto::TableList& tables) {
  if (tables.tables().empty())
    return absl::StrCat("job ", Clean(tables.job()), " has no tables: none of its workers has registered one\n");
  Table table({"TABLE", ">DIM", "DTYPE", "OPTIMIZER", ">SEGMENTS", ">ROWS", "SIZE", ">HIT RATE", ">UPDATES", ">EVICTED",
               ">NOT ADMITTED", ">NO ROOM", ">NONFINITE", "HOT IDS"});
  std::string notes;
  for (const proto::TableStatus& t : tables.tables()) {
    const proto::TableCounts& c = t.counts();
    table.Add({t.name(), absl::StrCat(t.dim()), t.dtype(), t.optimizer(), absl::StrCat(t.segments()), absl::StrCat(c.rows()),
               Bytes(c.bytes()), c.reads() == 0 ? "-" : absl::StrFormat("%.1f %%", 100 * t.hit_rate()),
               absl::StrCat(c.updates()), absl::StrCat(c.evicted_age() + c.evicted_bound() + c.dropped_zero()),
               absl::StrCat(c.not_admitted()), absl::StrCat(c.no_room()), absl::StrCat(c.nonfinite()),
               absl::StrJoin(t.hot(), " ", [](std::string* out, const proto::HotId& hot) {
                 absl::StrAppend(out, hot.id(), ":", hot.count());
               })});
    if (t.segments_reported() < t.segments())
      absl::StrAppend(&notes, "  ", Clean(t.name()), ": of ", t.segments_reported(), " of its ", t.segments(),
                      " segments; servers have not told of the others\n");
  }
  return absl::StrCat("job ", Clean(tables.job()), "\n", table.Text(), notes);
}

std::string Render(const proto::TensorList& tensors) {
  if (tensors.tensors().empty())
    return absl::StrCat("job ", Clean(tensors.job()), " has no tensors: none of its workers has registered one\n");
  Table table({"TENSOR", "SHAPE", ">PARTITIONS", "CODEC", ">MEASURED IN ROUND", ">OF FP32", ">ERROR", ">RESIDUAL", ">RANK", "NOTE"});
  for (const proto::TensorStatus& t : tensors.tensors()) {
    const proto::TensorCodecState& m = t.measured();
    const bool known = t.has_measured() && m.raw_bytes() > 0;
    const std::string none = "-";
    table.Add({t.name(), absl::StrJoin(t.shape(), "x"), absl::StrCat(t.partitions()), t.codec(),
               known ? absl::StrCat(m.round()) : none,
               known ? absl::StrFormat("%.2f %%", 100.0 * static_cast<double>(m.wire_bytes()) / static_cast<double>(m.raw_bytes()))
                     : none,
               known ? absl::StrFormat("%.3g", m.relative_error()) : none,
               known ? absl::StrFormat("%.3g", m.residual_ratio()) : none, known ? absl::StrCat(t.rank()) : none,
               known && m.codec() != t.codec() ? absl::StrCat("measured in ", m.codec(), t.note().empty() ? "" : "; ", t.note())
                                               : t.note()});
  }
  return absl::StrCat("job ", Clean(tensors.job()), "\n", table.Text());
}

namespace {

std::string RateText(double bytes_per_second) {
  return bytes_per_second > 0 ? absl::StrCat(Bytes(static_cast<uint64_t>(std::min(bytes_per_second, 1e18))), "/s") : "-";
}

// The topology's links: those that were measured, and how many were not.
std::string RenderEstimates(const proto::LinkList& links) {
  Table table({"FROM", "TO", "MEDIUM", ">COUNTED ON", ">NOMINAL", "SOURCE", ">AGE", ">CONFIDENCE", ">RTT", ">RETRANS"});
  size_t measured = 0;
  for (const proto::LinkEstimate& link : links.estimates()) {
    if (link.source() != "measured") continue;
    ++measured;
    table.Add({link.from(), link.to(), link.medium(), RateText(link.bytes_per_second()), RateText(link.nominal()), link.source(),
               absl::StrFormat("%.1f s", 1e-3 * static_cast<double>(link.age_ms())), absl::StrFormat("%.2f", link.confidence()),
               link.rtt_us() > 0 ? absl::StrFormat("%.2f ms", link.rtt_us() / 1e3) : "-", absl::StrCat(link.retransmits())});
  }
  if (links.estimates().empty()) return "";
  return absl::StrCat("\nlinks of the topology, each direction: ", measured, " of ", links.estimates_size(), " measured\n",
                      measured > 0 ? table.Text() : "");
}

}  // namespace

std::string Render(const proto::LinkList& links) {
  if (links.members().empty()) return "no member has told of its links yet: it does so every few seconds\n" + RenderEstimates(links);
  Table table({"MEMBER", "PEER", ">LINK", "KIND", "RAIL", "ADDRESS", ">GOODPUT", ">RTT", ">OUT", ">IN", ">CHUNKS", ">RESENT", ">RETRANS",
               "NOTE"});
  uint64_t rows = 0, left_out = 0;
  for (const proto::MemberLinks& member : links.members()) {
    const std::string who = member.role() == proto::ROLE_SERVER ? absl::StrCat("server ", member.id())
                                                                : absl::StrCat(member.job(), " rank ", member.rank());
    for (const proto::LinkPath& path : member.report().paths()) {
      ++rows;
      table.Add({who, path.peer(), absl::StrCat(path.link()), path.kind(), path.rail().empty() ? "-" : path.rail(), path.address(),
                 RateText(path.goodput()),
                 path.rtt_us() > 0 ? absl::StrFormat("%.2f ms", path.rtt_us() / 1e3) : "-", Bytes(path.bytes_out()),
                 Bytes(path.bytes_in()), absl::StrCat(path.chunks()), absl::StrCat(path.resent()), absl::StrCat(path.retransmits()),
                 path.note()});
    }
    left_out += member.report().left_out();
  }
  std::string text = rows == 0 ? "no member has a link\n" : table.Text();
  if (left_out > 0) absl::StrAppend(&text, left_out, " more paths are not reported: a member names its first 128\n");
  return text + RenderEstimates(links);
}

std::string Render(const proto::Plan& plan) {
  std::string text =
      absl::StrCat("job ", plan.job(), " \"", Clean(plan.config().name()), "\", plan version ", plan.version(), ", ",
                   StateText(plan.state()), plan.why().empty() ? "" : ": ", Clean(plan.why()), "\n");
  absl::StrAppend(&text, "uid ", absl::Hex(plan.uid(), absl::kZeroPad16), ", ", plan.shards_size(),
                  " shards, step coordinator: server ", plan.coordinator_server(), "\n\n");
  Table servers({">SERVER", "ID", "HOST", ">INCARNATION", "ALIVE", "CONTROL", "LANES"});
  for (const proto::ServerInfo& s : plan.servers()) {
    std::vector<std::string> lanes;
    for (const proto::Address& lane : s.lanes()) lanes.push_back(Address(lane));
    servers.Add({absl::StrCat(s.server()), s.id(), s.host().empty() ? "-" : s.host(), absl::StrCat(s.incarnation()), YesNo(s.alive()), s.control(),
                 absl::StrJoin(lanes, ", ")});
  }
  Table workers({">RANK", "PROCESS", "HOST", ">INCARNATION", "STATE"});
  for (const proto::WorkerInfo& w : plan.workers()) {
    const std::string state = w.finished()                   ? "finished"
                              : w.out_from_round_size() > 0 && w.joining() == 0 ? "out"
                              : w.alive()                    ? "alive"
                                                             : "missing";
    workers.Add(
        {absl::StrCat(w.rank()), w.address().empty() ? "-" : w.address(), w.host().empty() ? "-" : w.host(), absl::StrCat(w.incarnation()), state});
  }
  absl::StrAppend(&text, servers.Text(), "\n", workers.Text(), "\n");
  Table tensors({">TENSOR", "NAME", "SHAPE", "KIND", ">PRIORITY", "EXCHANGE", ">PARTITIONS", ">FIRST"});
  for (const proto::TensorInfo& t : plan.tensors()) {
    const char* kind = t.spec().kind() == proto::TENSOR_BIAS   ? "bias"
                       : t.spec().kind() == proto::TENSOR_NORM ? "norm"
                                                               : "weight";
    const char* exchange = t.exchange() == proto::EXCHANGE_ALLREDUCE ? "allreduce" : t.exchange() == proto::EXCHANGE_SHARDED ? "sharded" : "servers";
    tensors.Add({absl::StrCat(t.tensor()), t.spec().name(),
                 t.spec().shape().empty() ? "scalar" : absl::StrJoin(t.spec().shape(), "x"), kind,
                 absl::StrCat(t.spec().priority()), exchange, absl::StrCat(t.partition_elements_size()),
                 absl::StrCat(t.first_partition())});
  }
  return absl::StrCat(text, plan.tensors().empty() ? "no tensors yet\n" : tensors.Text());
}

std::string Render(const proto::EffectiveConfig& config) {
  Table table({"KEY", "VALUE", "SOURCE"});
  for (const auto& value : config.values()) table.Add({value.key(), value.value(), value.source()});
  return table.Text();
}

std::string Render(const proto::MoveList& list) {
  const std::string paused =
      list.paused() ? "moves are paused: no other begins (sluicectl resume-moves)\n" : "";
  if (list.moves().empty()) return absl::StrCat("job ", Clean(list.job()), ": no shard is to move\n", paused);
  Table table({">SHARD", "FROM", "TO", "STATE", "SIZE", "SENT", "LEFT", "RATE", "ETA", "REASON"});
  for (const proto::MoveStatus& m : list.moves())
    table.Add({absl::StrCat(m.shard()), m.from(), m.to(), m.state(), Bytes(m.bytes()), Bytes(m.bytes_sent()),
               Bytes(m.bytes_left()), m.bytes_per_second() == 0 ? "-" : absl::StrCat(Bytes(m.bytes_per_second()), "/s"),
               m.eta_ms() == 0 ? "-" : Duration(m.eta_ms()), m.reason()});
  return absl::StrCat("job ", Clean(list.job()), "\n", table.Text(), paused);
}

namespace {

std::string BytesTable(const proto::RebalanceAnswer& answer) {
  Table servers({"SERVER", "OWNS", "WILL OWN"});
  for (const proto::ServerLoad& load : answer.servers())
    servers.Add({load.server(), Bytes(load.bytes_before()), Bytes(load.bytes_after())});
  return absl::StrCat(servers.Text(), "weighed by bytes: loads are not measured yet, or nobody has any\n");
}

std::string LoadTable(const proto::RebalanceAnswer& answer) {
  const auto percent = [](double share) { return absl::StrFormat("%.0f %%", 100 * share); };
  const auto cpu = [](double seconds) { return absl::StrFormat("%.2f s/s", seconds); };
  const auto rate = [](uint64_t bytes) { return absl::StrCat(Bytes(bytes), "/s"); };
  Table servers({"SERVER", ">LOAD", ">CPU", ">IN", ">OUT", ">OWNS", ">WILL HAVE", ">CPU", ">IN", ">OUT", ">OWN"});
  for (const proto::ServerLoad& load : answer.servers())
    servers.Add({load.server(), percent(load.load_before()), cpu(load.cpu_before()), rate(load.in_before()),
                 rate(load.out_before()), Bytes(load.bytes_before()), percent(load.load_after()), cpu(load.cpu_after()),
                 rate(load.in_after()), rate(load.out_after()), Bytes(load.bytes_after())});
  return servers.Text();
}

}  // namespace

std::string Render(const proto::RebalanceAnswer& answer) {
  std::string text = absl::StrCat("job ", Clean(answer.job()), "\n", answer.by_load() ? LoadTable(answer) : BytesTable(answer));
  if (answer.moves().empty()) return absl::StrCat(text, "no move is needed, or none helps\n");
  Table moves({">SHARD", "FROM", "TO", "SIZE", "REASON"});
  for (const proto::MoveStatus& m : answer.moves())
    moves.Add({absl::StrCat(m.shard()), m.from(), m.to(), Bytes(m.bytes()), m.reason()});
  return absl::StrCat(text, "\n", moves.Text(),
                      answer.dry_run() ? "nothing was moved (--dry-run)\n" : "`sluicectl moves` shows how far they are\n");
}

std::string Render(const proto::DrainStatus& drain) {
  return absl::StrCat("server ", Clean(drain.server()), drain.draining() ? " is being drained: " : " ", Clean(drain.text()),
                      drain.bytes() == 0 ? "" : absl::StrCat(" (", Bytes(drain.bytes()), ")"), "\n");
}

std::string Render(const proto::JobStatus& job) {
  return absl::StrCat("job ", job.job(), " \"", Clean(job.name()), "\" has ", StateText(job.state()), ": ",
                      Clean(job.why()), "\n",
                      job.workers_alive() == 0 ? "none of its workers was connected\n"
                                               : absl::StrCat(job.workers_alive(), " of its ", job.workers_expected(),
                                                              " workers are connected and were told\n"));
}

std::string Render(const proto::EventList& events) {
  if (events.events().empty()) return "no events\n";
  Table table({">NO", "TIME", "KIND", "JOB", "TEXT"});
  for (const proto::Event& e : events.events())
    table.Add({absl::StrCat(e.number()), Time(e.unix_ms()), e.kind(), e.job().empty() ? "-" : e.job(), e.text()});
  return table.Text();
}

std::string Render(const proto::Event& e) {
  return absl::StrFormat("%6d  %s  %-18s  %s  %s\n", e.number(), Time(e.unix_ms()), Clean(e.kind()),
                         e.job().empty() ? "-" : Clean(e.job()), Clean(e.text()));
}

std::string Json(const google::protobuf::Message& message, bool one_line) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = !one_line;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (const auto status = google::protobuf::util::MessageToJsonString(message, &text, options); !status.ok())
    return "{}\n";   // only for messages with Any, of which there are none
  if (text.empty() || text.back() != '\n') text.push_back('\n');
  return text;
}

}  // namespace sluice::ctl
