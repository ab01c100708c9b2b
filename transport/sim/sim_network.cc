#include "transport/sim/sim_network.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "transport/sim/sim_endpoint.h"

namespace sluice::transport {
namespace {

std::pair<std::string, std::string> Nodes(const std::string& a, const std::string& b) {
  std::string x = SimNetwork::NodeOf(a), y = SimNetwork::NodeOf(b);
  if (y < x) std::swap(x, y);
  return {x, y};
}

}  // namespace

// Side 0 has dialled, side 1 serves. End ids: 2 * n and 2 * n + 1.
struct SimNetwork::Channel {
  uint64_t id = 0;
  std::string name[2];
  ChannelHandler* handler[2] = {nullptr, nullptr};  // null: that side is dead or has heard of the end
  bool up = false;
  bool broken = false;
  int closed_by = -1;
  int ended = 0;  // sides that have heard of it
  TimeNs last_arrival[2] = {0, 0};

  // Messages and the channel's coming up reach this side: not after a break, nor at the side that has closed it.
  bool Reaches(int side) const {
    return handler[side] != nullptr && (!broken || (closed_by >= 0 && closed_by != side));
  }
};

SimNetwork::SimNetwork(uint64_t seed, SimFaults faults, ManualClock* clock)
    : random_(seed, /*stream=*/0x6e6574), faults_(faults), clock_(clock), memory_(std::make_shared<Memory>()) {}

SimNetwork::~SimNetwork() = default;

std::unique_ptr<SimEndpoint> SimNetwork::CreateEndpoint(const std::string& name, EndpointLimits limits) {
  std::unique_ptr<SimEndpoint> endpoint(new SimEndpoint(this, name, limits));
  endpoints_[name] = endpoint.get();
  return endpoint;
}

void SimNetwork::Schedule(TimeNs delay, std::function<void()> fn) {
  events_.push_back({clock_->Now() + std::max<TimeNs>(delay, 0), next_order_++, std::move(fn)});
  std::push_heap(events_.begin(), events_.end(), Later());
}

bool SimNetwork::Step() {
  if (events_.empty()) return false;
  std::pop_heap(events_.begin(), events_.end(), Later());
  const Event event = std::move(events_.back());
  events_.pop_back();
  clock_->Set(std::max(clock_->Now(), event.time));
  ++stats_.events;
  event.fn();
  return true;
}

void SimNetwork::RunUntil(TimeNs time) {
  while (!events_.empty() && events_.front().time <= time) Step();
  clock_->Set(std::max(clock_->Now(), time));
}

TimeNs SimNetwork::RandomDelay() {
  const double spread = static_cast<double>(faults_.max_delay - faults_.min_delay);
  return faults_.min_delay + static_cast<TimeNs>(spread * random_.Uniform());
}

void SimNetwork::Trace(const std::string& line) {
  if (trace_) trace_(line);
}

void SimNetwork::Cut(const std::string& a, const std::string& b, TimeNs duration) {
  Trace(absl::StrCat("cut between ", a, " and ", b, " for ", duration / kMicrosecond, " us"));
  TimeNs& until = cuts_[Nodes(a, b)];
  until = std::max(until, Now() + duration);
  ResetLinks(a, b);
  const auto channels = channels_;
  for (const auto& [id, channel] : channels)
    if (Nodes(channel->name[0], channel->name[1]) == Nodes(a, b))
      BreakChannel(channel, absl::UnavailableError("the network is cut"));
}

bool SimNetwork::IsCut(const std::string& a, const std::string& b) const {
  const auto it = cuts_.find(Nodes(a, b));
  return it != cuts_.end() && Now() < it->second;
}

void SimNetwork::CutOneWay(const std::string& from, const std::string& to, TimeNs duration) {
  const std::string a = NodeOf(from), b = NodeOf(to);
  Trace(absl::StrCat("cut from ", a, " to ", b, " for ", duration / kMicrosecond, " us"));
  TimeNs& until = one_way_[{a, b}];
  until = std::max(until, Now() + duration);
  if (duration < kDeafAfter) return;
  Schedule(kDeafAfter, [this, a, b] { ResetLinks(a, b); });
}

bool SimNetwork::IsCutOneWay(const std::string& from, const std::string& to) const {
  const auto it = one_way_.find({NodeOf(from), NodeOf(to)});
  return it != one_way_.end() && Now() < it->second;
}

void SimNetwork::Crash(const std::string& node) {
  Trace(absl::StrCat("crash of ", node));
  const auto endpoints = endpoints_;
  for (const auto& [name, endpoint] : endpoints)
    if (NodeOf(name) == node) endpoint->Die();
  for (auto it = servers_.begin(); it != servers_.end();) it = NodeOf(it->first) == node ? servers_.erase(it) : ++it;
  const auto channels = channels_;
  for (const auto& [id, channel] : channels) {
    bool concerned = false;
    for (int side = 0; side < 2; ++side) {
      if (NodeOf(channel->name[side]) != node) continue;
      channel->handler[side] = nullptr;
      concerned = true;
    }
    if (concerned) BreakChannel(channel, absl::UnavailableError(absl::StrCat(node, " is gone")));
  }
}

// --- channels

void SimNetwork::Serve(const std::string& name, ChannelHandler* handler) {
  if (handler == nullptr) {
    servers_.erase(name);
  } else {
    servers_[name] = handler;
  }
}

ChannelEnd SimNetwork::Dial(const std::string& from, const std::string& to, ChannelHandler* handler) {
  auto channel = std::make_shared<Channel>();
  channel->id = next_channel_++;
  channel->name[0] = from, channel->name[1] = to;
  channel->handler[0] = handler;
  channels_[channel->id] = channel;
  Schedule(RandomDelay(), [this, channel] {
    if (channel->broken) return;
    const auto server = servers_.find(channel->name[1]);
    if (server == servers_.end() || IsCut(channel->name[0], channel->name[1])) {
      BreakChannel(channel, absl::UnavailableError(absl::StrCat(channel->name[1], ": nobody answers")));
      return;
    }
    channel->up = true;
    channel->handler[1] = server->second;
    const TimeNs delay = RandomDelay();
    channel->last_arrival[0] = Now() + delay;
    Schedule(delay, [channel] {
      if (channel->Reaches(0)) channel->handler[0]->OnChannelUp(2 * channel->id, channel->name[1]);
    });
    channel->handler[1]->OnChannelUp(2 * channel->id + 1, channel->name[0]);
  });
  return 2 * channel->id;
}

std::shared_ptr<SimNetwork::Channel> SimNetwork::FindChannel(ChannelEnd end) const {
  const auto it = channels_.find(end / 2);
  return it == channels_.end() ? nullptr : it->second;
}

void SimNetwork::SendMessage(ChannelEnd end, std::string message) {
  const auto channel = FindChannel(end);
  if (channel == nullptr || !channel->up || channel->broken) return;
  const int to = end % 2 == 0 ? 1 : 0;
  TimeNs& arrival = channel->last_arrival[to];
  arrival = std::max(arrival, Now() + RandomDelay());
  ++stats_.messages;
  Schedule(arrival - Now(), [channel, to, message = std::move(message)] {
    if (channel->Reaches(to))
      channel->handler[to]->OnChannelMessage(2 * channel->id + static_cast<uint64_t>(to), message);
  });
}

void SimNetwork::CloseChannel(ChannelEnd end, const absl::Status& status) {
  const auto channel = FindChannel(end);
  if (channel == nullptr || channel->broken) return;
  channel->closed_by = static_cast<int>(end % 2);
  BreakChannel(channel, status);
}

void SimNetwork::BreakChannel(const std::shared_ptr<Channel>& channel, const absl::Status& status) {
  if (std::exchange(channel->broken, true)) return;
  for (int side = 0; side < 2; ++side) {
    TimeNs time = Now() + RandomDelay();
    if (channel->closed_by == 1 - side) time = std::max(time, channel->last_arrival[side]);
    Schedule(time - Now(), [this, channel, side, status] {
      if (++channel->ended == 2) channels_.erase(channel->id);  // until then a crash must find it
      if (ChannelHandler* handler = std::exchange(channel->handler[side], nullptr); handler != nullptr)
        handler->OnChannelDown(2 * channel->id + static_cast<uint64_t>(side), status);
    });
  }
}

}  // namespace sluice::transport
