#include "worker/links.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace sluice::worker {
namespace {

constexpr TimeNs kFirstBackoff = 50 * kMillisecond;
constexpr TimeNs kMaxBackoff = 2 * kSecond;

transport::Address FromProto(const proto::Address& address) {
  transport::Address out;
  out.host = address.host();
  out.port = address.port();
  out.unix_socket = address.unix_socket();
  out.host_id = address.host_id();
  return out;
}

bool Same(const transport::Address& a, const transport::Address& b) {
  return a.host == b.host && a.port == b.port && a.unix_socket == b.unix_socket && a.host_id == b.host_id;
}

}  // namespace

Links::Links(transport::Endpoint* endpoint, const Clock* clock, uint32_t connections)
    : endpoint_(endpoint), clock_(clock), connections_(std::clamp<uint32_t>(connections, 1, 64)) {}

void Links::UpdatePlan(const proto::Plan& plan) {
  for (const proto::ServerInfo& server : plan.servers()) {
    for (int i = 0; i < server.lanes_size(); ++i) {
      Lane& lane = lanes_[{server.server(), static_cast<uint32_t>(i)}];
      const transport::Address address = FromProto(server.lanes(i));
      lane.server_id = server.id();
      if (Same(lane.address, address) && lane.incarnation == server.incarnation()) continue;
      lane.address = address;
      lane.incarnation = server.incarnation();
      for (Connection& connection : lane.connections) {
        connection.retry_at = 0;
        connection.backoff = 0;
        if (connection.link != 0) {
          endpoint_->Close(connection.link,
                           absl::AbortedError(absl::StrCat("the plan has a newer address of server ", server.id())));
        }
      }
    }
  }
}

transport::LinkId Links::Pick(LaneKey key, uint32_t partition) {
  auto it = lanes_.find(key);
  if (it == lanes_.end() || closed_) return 0;
  Lane& lane = it->second;
  if (!lane.wanted) {
    lane.wanted = true;
    lane.down_since = clock_->Now();
    lane.connections.resize(connections_);
    for (size_t i = 0; i < lane.connections.size(); ++i) Connect(key, lane, i);
  }
  // The partition's own connection, so that equal partitions spread evenly; any other while that one is down.
  for (uint32_t i = 0; i < connections_; ++i) {
    const Connection& connection = lane.connections[(partition + i) % connections_];
    if (connection.up) return connection.link;
  }
  return 0;
}

void Links::Connect(LaneKey key, Lane& lane, size_t index) {
  transport::Hello hello = hello_;
  hello.connection = static_cast<uint32_t>(index);
  Connection& connection = lane.connections[index];
  connection.stats = {};
  connection.link = endpoint_->Connect(lane.address, hello);
  by_link_[connection.link] = {key, index};
}

std::optional<LaneKey> Links::OnUp(transport::LinkId link) {
  auto it = by_link_.find(link);
  if (it == by_link_.end()) return std::nullopt;
  Lane& lane = lanes_[it->second.first];
  Connection& connection = lane.connections[it->second.second];
  connection.up = true;
  connection.backoff = 0;
  if (connection.was_up) ++reconnects_;
  connection.was_up = true;
  lane.last_error = absl::OkStatus();
  return it->second.first;
}

std::optional<LaneKey> Links::OnDown(transport::LinkId link, const absl::Status& reason) {
  auto it = by_link_.find(link);
  if (it == by_link_.end()) return std::nullopt;
  const LaneKey key = it->second.first;
  Lane& lane = lanes_[key];
  Connection& connection = lane.connections[it->second.second];
  by_link_.erase(it);
  Poll(connection);
  gone_in_ += connection.stats.bytes_in;
  gone_out_ += connection.stats.bytes_out;
  connection.stats = {};
  connection.link = 0;
  connection.up = false;
  connection.backoff = std::min(kMaxBackoff, connection.backoff == 0 ? kFirstBackoff : connection.backoff * 2);
  connection.retry_at = clock_->Now() + connection.backoff;
  lane.last_error = reason;
  if (std::none_of(lane.connections.begin(), lane.connections.end(), [](const Connection& c) { return c.up; }) &&
      connection.backoff == kFirstBackoff) {
    lane.down_since = clock_->Now();
  }
  return key;
}

void Links::OnTick() {
  const TimeNs now = clock_->Now();
  for (auto& [key, lane] : lanes_) {
    for (size_t i = 0; i < lane.connections.size(); ++i) {
      Connection& connection = lane.connections[i];
      if (connection.link != 0) {
        Poll(connection);
      } else if (!closed_ && now >= connection.retry_at) {
        Connect(key, lane, i);
      }
    }
  }
}

// Counters are kept here too, since those of a link that went down are gone with it.
void Links::Poll(Connection& connection) {
  if (connection.link == 0) return;
  transport::LinkStats stats = endpoint_->Stats(connection.link);
  if (stats.bytes_in + stats.bytes_out >= connection.stats.bytes_in + connection.stats.bytes_out) {
    connection.stats = std::move(stats);
  }
}

void Links::CloseAll(const absl::Status& reason) {
  closed_ = true;
  for (auto& [key, lane] : lanes_) {
    for (Connection& connection : lane.connections) {
      if (connection.link != 0) endpoint_->Close(connection.link, reason);
    }
  }
}

std::string Links::Describe(LaneKey key) const {
  auto it = lanes_.find(key);
  if (it == lanes_.end()) return absl::StrCat("server ", key.first, " lane ", key.second, " (not in the plan)");
  return absl::StrCat("server ", it->second.server_id, " lane ", key.second, " at ", it->second.address.ToString());
}

std::string Links::Trouble(LaneKey key) const {
  auto it = lanes_.find(key);
  if (it == lanes_.end()) return "the plan names no such server lane";
  const Lane& lane = it->second;
  for (const Connection& connection : lane.connections) {
    if (connection.up) return "";
  }
  return absl::StrFormat(
      "no connection for %.1f s (%s); is sluice-server %s running, and its port reachable from here?",
      static_cast<double>(clock_->Now() - lane.down_since) / kSecond,
      lane.last_error.ok() ? "connecting" : std::string(lane.last_error.message()), lane.server_id);
}

uint64_t Links::bytes_in() const {
  uint64_t sum = gone_in_;
  for (const auto& [link, where] : by_link_) sum += endpoint_->Stats(link).bytes_in;
  return sum;
}

uint64_t Links::bytes_out() const {
  uint64_t sum = gone_out_;
  for (const auto& [link, where] : by_link_) sum += endpoint_->Stats(link).bytes_out;
  return sum;
}

std::vector<UpLink> Links::Up() const {
  std::vector<UpLink> up;
  for (const auto& [key, lane] : lanes_) {
    for (const Connection& connection : lane.connections) {
      if (connection.up)
        up.push_back({connection.link, absl::StrCat("server ", lane.server_id, " loop ", key.second), lane.server_id});
    }
  }
  return up;
}

std::string Links::Kinds() const {
  std::set<std::string> kinds;
  for (const auto& [link, where] : by_link_) {
    if (lanes_.at(where.first).connections[where.second].up) kinds.insert(endpoint_->Stats(link).kind);
  }
  return absl::StrJoin(kinds, "+");
}

}  // namespace sluice::worker
