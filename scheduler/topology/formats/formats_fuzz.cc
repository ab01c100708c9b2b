// libFuzzer: a topology file of any format, for a cluster and for the inside of a host. It may be refused; what is read
// must be written in the plain format and be read again as a graph of the same size, and its hosts' devices have an
// order.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "scheduler/topology/complete.h"
#include "scheduler/topology/formats/affinity.h"
#include "scheduler/topology/formats/format.h"
#include "scheduler/topology/formats/hostlist.h"
#include "scheduler/topology/formats/write.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::topology;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  // Generated fabrics of millions of links, which a few bytes ask for, take memory and seconds and find nothing.
  if (text.find("generate") != absl::string_view::npos)
    for (size_t i = 1; i < size; ++i)
      if (absl::ascii_isdigit(text[i]) && absl::ascii_isdigit(text[i - 1])) return 0;
  const ReadOptions options = {.max_names = 1000};
  if (const auto names = ExpandHostlist(text, 1000); names.ok()) {
    const auto back = ExpandHostlist(CompressHostlist(*names));
    if (!back.ok() || *back != *names) abort();
  }
  for (const char* host : {"", "h"}) {
    Report report;
    absl::StatusOr<Graph> graph = Read({.file = "fuzz", .text = text, .host = host}, options, &report);
    if (!graph.ok()) {
      if (graph.status().message().empty()) abort();
      continue;
    }
    constexpr size_t kLarge = 20000;  // hostlists make much of few bytes; that takes its time and finds nothing more
    if (graph->vertices().size() + graph->links().size() > kLarge) continue;
    const absl::StatusOr<Graph> again = Read({.file = "written", .text = WritePlain(*graph)}, {}, nullptr);
    if (graph->vertices().empty()) continue;
    if (!again.ok() || again->vertices().size() != graph->vertices().size() ||
        again->links().size() != graph->links().size())
      abort();
    Complete(&*graph, {});
    for (const uint32_t v : graph->Hosts()) OrderDevices(*graph, v);
  }
  return 0;
}
