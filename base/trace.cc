#include "base/trace.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice {
namespace {

std::string Quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 32 ? '?' : c;
  }
  return result + "\"";
}

int64_t RealTimeNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Nanoseconds as microseconds with three decimals, exactly.
std::string Microseconds(int64_t ns) { return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000); }

}  // namespace

TraceTrack::TraceTrack(std::string name, uint32_t number, size_t capacity)
    : name_(std::move(name)), number_(number), slots_(capacity == 0 ? 1 : capacity) {}

void TraceTrack::Add(const char* name, TimeNs begin, TimeNs end, const TraceArgs& args, bool wait) {
  const uint64_t index = finished_.load(std::memory_order_relaxed);
  // A reader that sees any of the stores below also sees that this slot's old event is gone.
  started_.store(index + 1, std::memory_order_relaxed);
  Slot& slot = slots_[index % slots_.size()];
  slot.name.store(name, std::memory_order_release);
  slot.begin.store(begin, std::memory_order_release);
  slot.end.store(end, std::memory_order_release);
  slot.round.store(args.round, std::memory_order_release);
  slot.tensor.store(args.tensor, std::memory_order_release);
  slot.partition.store(args.partition, std::memory_order_release);
  slot.rank.store(args.rank, std::memory_order_release);
  slot.wait.store(wait, std::memory_order_release);
  finished_.store(index + 1, std::memory_order_release);
}

Tracer::Tracer(Options options)
    : options_(std::move(options)),
      offset_ns_((options_.unix_ns != 0 ? options_.unix_ns : RealTimeNs()) - options_.clock->Now()) {}

TraceTrack* Tracer::AddTrack(std::string name) {
  std::lock_guard<std::mutex> lock(mutex_);
  tracks_.push_back(std::make_unique<TraceTrack>(std::move(name), static_cast<uint32_t>(tracks_.size() + 1),
                                                 options_.events_per_track));
  return tracks_.back().get();
}

std::string Tracer::ToJson() const {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint32_t pid = options_.pid != 0 ? options_.pid : static_cast<uint32_t>(getpid());
  std::string json = absl::StrCat(
      "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":", pid,
      ",\"tid\":0,\"args\":{\"name\":", Quoted(options_.process), "}}");
  for (const auto& track : tracks_) {
    absl::StrAppend(&json, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":", pid, ",\"tid\":", track->number_,
                    ",\"args\":{\"name\":", Quoted(track->name_), "}}");
    const uint64_t size = track->slots_.size();
    const uint64_t finished = track->finished_.load(std::memory_order_acquire);
    for (uint64_t i = finished > size ? finished - size : 0; i < finished; ++i) {
      const TraceTrack::Slot& slot = track->slots_[i % size];
      const char* name = slot.name.load(std::memory_order_acquire);
      const TimeNs begin = slot.begin.load(std::memory_order_acquire), end = slot.end.load(std::memory_order_acquire);
      const TraceArgs args = {slot.tensor.load(std::memory_order_acquire),
                              slot.partition.load(std::memory_order_acquire),
                              slot.round.load(std::memory_order_acquire), slot.rank.load(std::memory_order_acquire)};
      const bool wait = slot.wait.load(std::memory_order_acquire);
      if (track->started_.load(std::memory_order_relaxed) > i + size) continue;  // overtaken while it was read

      std::string about;
      const auto add = [&about](const char* key, uint64_t value) {
        absl::StrAppend(&about, about.empty() ? "" : ",", "\"", key, "\":", value);
      };
      if (args.tensor != kTraceNone) add("tensor", args.tensor);
      if (args.partition != kTraceNone) add("partition", args.partition), add("round", args.round);
      if (args.rank != kTraceNone) add("rank", args.rank);
      const std::string head =
          absl::StrCat("\"name\":", Quoted(name), ",\"cat\":\"sluice\",\"pid\":", pid, ",\"tid\":", track->number_);
      if (wait) {
        // Overlapping spans are asynchronous events; the id pairs begin and end.
        const std::string id = absl::StrCat(",\"id2\":{\"local\":\"", track->number_, ".", i, "\"}");
        absl::StrAppend(&json, ",\n{\"ph\":\"b\",", head, id, ",\"ts\":", Microseconds(begin + offset_ns_),
                        ",\"args\":{", about, "}}", ",\n{\"ph\":\"e\",", head, id,
                        ",\"ts\":", Microseconds(end + offset_ns_), "}");
      } else {
        absl::StrAppend(&json, ",\n{\"ph\":\"X\",", head, ",\"ts\":", Microseconds(begin + offset_ns_),
                        ",\"dur\":", Microseconds(end - begin), ",\"args\":{", about, "}}");
      }
    }
  }
  return json + "\n]}\n";
}

absl::Status Tracer::Write(const std::string& path) const {
  const std::string json = ToJson();
  const std::string temporary = absl::StrCat(path, ".tmp", getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "w");
  if (file == nullptr) return absl::UnavailableError(absl::StrCat("trace ", path, ": ", std::strerror(errno)));
  const bool written = std::fwrite(json.data(), 1, json.size(), file) == json.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const absl::Status status = absl::UnavailableError(absl::StrCat("trace ", path, ": ", std::strerror(errno)));
    std::remove(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace sluice
