// One rank of an all-reduce among processes of this machine: collective_rank FOLDER RANK RANKS ELEMENTS ALGORITHM TRANSPORT.
// Ranks find each other by files in FOLDER. Obeys "step N" on its input, like gloo_rank.py, and prints the seconds of each.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/collective/testing/process_node.h"

namespace sluice::collective {
namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "collective_rank: %s\n", status.ToString().c_str());
  return 1;
}

// Written under another name first, so that nobody reads half of it.
void Publish(const std::string& path, const transport::Address& address) {
  std::ofstream(path + ".new") << (address.host.empty() ? "-" : address.host) << ' ' << address.port << ' '
                               << (address.unix_socket.empty() ? "-" : address.unix_socket) << ' '
                               << (address.host_id.empty() ? "-" : address.host_id) << '\n';
  std::rename((path + ".new").c_str(), path.c_str());
}

transport::Address Await(const std::string& path) {
  const auto given = [](const std::string& text) { return text == "-" ? std::string() : text; };
  for (;; usleep(10000)) {
    std::ifstream file(path);
    std::string host, socket, host_id;
    uint32_t port = 0;
    if (file >> host >> port >> socket >> host_id)
      return {.host = given(host), .port = port, .unix_socket = given(socket), .host_id = given(host_id)};
  }
}

int Main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "collective_rank FOLDER RANK RANKS ELEMENTS ALGORITHM TRANSPORT\n");
    return 2;
  }
  const std::string folder = argv[1];
  const uint32_t rank = static_cast<uint32_t>(std::atoi(argv[2])), ranks = static_cast<uint32_t>(std::atoi(argv[3]));
  const size_t elements = static_cast<size_t>(std::atoll(argv[4]));
  const absl::StatusOr<Algorithm> algorithm = ParseAlgorithm(argv[5]);
  if (!algorithm.ok()) return Fail(algorithm.status());
  auto node = ProcessNode::Start(rank, std::string(argv[6]) == "tcp" ? transport::TransportChoice::kTcp : transport::TransportChoice::kAuto);
  if (!node.ok()) return Fail(node.status());
  Publish(absl::StrCat(folder, "/", rank), (*node)->address());
  std::vector<transport::Address> addresses;
  for (uint32_t other = 0; other < ranks; ++other) addresses.push_back(Await(absl::StrCat(folder, "/", other)));
  (*node)->SetPlan(PlanOf(addresses));
  auto memory = (*node)->Allocate(elements * sizeof(float));
  if (!memory.ok()) return Fail(memory.status());
  const std::span<float> values(reinterpret_cast<float*>(memory->get()), elements);
  std::puts("ready");
  std::fflush(stdout);
  for (std::string word; std::cin >> word;) {
    int steps = 0;
    std::cin >> steps;
    std::string line;
    for (int i = 0; i < steps; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const absl::Status status = (*node)->Call({.input = values, .output = values, .algorithm = *algorithm}).get();
      if (!status.ok()) return Fail(status);
      absl::StrAppend(&line, i == 0 ? "" : " ", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::puts(line.c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::collective

int main(int argc, char** argv) { return sluice::collective::Main(argc, argv); }
