// What plans are made on: a graph and the ways through it. A running job's is that of its Network, with live estimates; a dry run
// has files alone.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/fabric/routes.h"
#include "scheduler/topology/graph.h"

namespace sluice::network {

class Network;

class View {
 public:
  // Of what lives longer. `graph` is complete.
  View(const topology::Graph& graph, const fabric::Routes& routes) : graph_(&graph), routes_(&routes) {}
  View(const Network& network) : network_(&network) {}   // NOLINT: a network is one

  // A network's are others once hosts came.
  const topology::Graph& graph() const;
  const fabric::Routes& routes() const;
  uint32_t Host(const std::string& name) const;          // kNone: there is none of that name
  topology::Source SourceOf(uint32_t arc) const;         // of its bandwidth

 private:
  const topology::Graph* graph_ = nullptr;
  const fabric::Routes* routes_ = nullptr;
  const Network* network_ = nullptr;                     // or the others
};

}  // namespace sluice::network
