#include "scheduler/network/view.h"

#include "scheduler/network/network.h"

namespace sluice::network {

const topology::Graph& View::graph() const { return network_ != nullptr ? network_->graph() : *graph_; }

const fabric::Routes& View::routes() const { return network_ != nullptr ? network_->routes() : *routes_; }

uint32_t View::Host(const std::string& name) const {
  const uint32_t vertex = name.empty() ? topology::kNone : graph().Find(name);
  return vertex == topology::kNone || graph().vertex(vertex).kind != topology::VertexKind::kHost ? topology::kNone : vertex;
}

topology::Source View::SourceOf(uint32_t arc) const {
  return network_ != nullptr ? network_->SourceOf(arc) : graph_->link(arc / 2).source;
}

}  // namespace sluice::network
