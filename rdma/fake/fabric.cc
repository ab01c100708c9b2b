// Topology and faults.
#include "rdma/fake/fabric.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>

#include "rdma/fake/objects.h"

namespace sluice::rdma::fake {

EventDescriptor::EventDescriptor() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
EventDescriptor::~EventDescriptor() { close(fd_); }

void EventDescriptor::Set(bool readable) {
  if (readable == readable_) return;
  readable_ = readable;
  uint64_t value = 1;
  const ssize_t done = readable ? write(fd_, &value, sizeof(value)) : read(fd_, &value, sizeof(value));
  (void)done;  // an eventfd that is not full takes it, and one that is set gives it
}

Gid MappedGid(const std::string& ipv4) {
  Gid gid{};
  gid[10] = gid[11] = 0xff;
  inet_pton(AF_INET, ipv4.c_str(), gid.data() + 12);
  return gid;
}

namespace {

std::string CountUp(const std::string& ipv4, unsigned by) {
  Gid gid = MappedGid(ipv4);
  gid[15] = static_cast<uint8_t>(gid[15] + by);
  char text[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, gid.data() + 12, text, sizeof(text));
  return text;
}

void SetGids(Port* port) {
  const Gid mapped = MappedGid(port->address);
  Gid local{};
  local[0] = 0xfe;
  local[1] = 0x80;
  std::memcpy(local.data() + 12, mapped.data() + 12, 4);
  if (port->device->options.infiniband) {
    port->gids = {local};
    port->types = {GidType::kInfiniBand};
    port->lid = static_cast<uint16_t>(mapped[14] << 8 | mapped[15]);
  } else {
    port->gids = {local, mapped, mapped};
    port->types = {GidType::kRoceV2, GidType::kRoceV1, GidType::kRoceV2};
  }
}

}  // namespace

// --- State ---

FakeDevice* State::DeviceOf(const Host* host, const std::string& name) const {
  for (const auto& device : devices) {
    if (device->host == host && device->options.name == name) return device.get();
  }
  return nullptr;
}

Port* State::PortOf(const PortName& name) const {
  FakeDevice* device = DeviceOf(name.host, name.device);
  if (device == nullptr || name.port < 1 || name.port > device->port_list.size()) return nullptr;
  return device->port_list[name.port - 1].get();
}

void State::AddEvent(FakeContext* context, const ibv_async_event& event) {
  context->events.push_back(event);
  context->event.Set(true);
}

void State::PortEvent(const Port& port, ibv_event_type type) {
  ibv_async_event event{};
  event.element.port_num = port.number;
  event.event_type = type;
  for (const auto& [key, context] : contexts) {
    if (context->on == port.device) AddEvent(context.get(), event);
  }
}

// --- Fabric ---

Fabric::Fabric(const FabricOptions& options) : state_(std::make_unique<State>(options)) {}
Fabric::~Fabric() = default;

Host& Fabric::AddHost(const std::string& name) {
  std::lock_guard lock(state_->mutex);
  state_->hosts.push_back(std::unique_ptr<Host>(new Host(state_.get(), name)));
  return *state_->hosts.back();
}

void Fabric::SetMode(Mode mode) {
  std::lock_guard lock(state_->mutex);
  state_->options.mode = mode;
  state_->Pump();
}

size_t Fabric::Step(size_t n) {
  std::lock_guard lock(state_->mutex);
  size_t done = 0;
  for (; done < n; ++done) {
    std::vector<FakeQp*> candidates;
    for (const auto& [id, qp] : state_->by_id) {
      if (qp->state == IBV_QPS_RTS && !qp->sends.empty()) candidates.push_back(qp);
    }
    bool ran = false;
    while (!ran && !candidates.empty()) {
      const size_t pick = state_->random() % candidates.size();
      ran = state_->RunOne(candidates[pick]) == Ran::kSome;
      candidates.erase(candidates.begin() + static_cast<ptrdiff_t>(pick));
    }
    if (!ran) break;
  }
  return done;
}

void Fabric::Run() {
  std::lock_guard lock(state_->mutex);
  state_->RunAll();
}

void Fabric::CutOneWay(const PortName& from, const PortName& to, Cut cut) {
  std::lock_guard lock(state_->mutex);
  state_->cuts[{state_->PortOf(from), state_->PortOf(to)}] = cut;
}

void Fabric::CutPath(const PortName& a, const PortName& b, Cut cut) {
  CutOneWay(a, b, cut);
  CutOneWay(b, a, cut);
}

void Fabric::MendPath(const PortName& a, const PortName& b) {
  std::lock_guard lock(state_->mutex);
  state_->cuts.erase({state_->PortOf(a), state_->PortOf(b)});
  state_->cuts.erase({state_->PortOf(b), state_->PortOf(a)});
  state_->Pump();
}

void Fabric::ExpireRetries() {
  std::lock_guard lock(state_->mutex);
  state_->expiring = true;
  for (const auto& [id, qp] : state_->by_id) state_->RunOne(qp);
  state_->expiring = false;
  state_->Pump();
}

void Fabric::PortDown(const PortName& name) {
  std::lock_guard lock(state_->mutex);
  Port* port = state_->PortOf(name);
  if (port == nullptr || !port->up) return;
  port->up = false;
  state_->PortEvent(*port, IBV_EVENT_PORT_ERR);
  state_->Pump();
}

void Fabric::PortUp(const PortName& name, const std::string& address) {
  std::lock_guard lock(state_->mutex);
  Port* port = state_->PortOf(name);
  if (port == nullptr) return;
  if (!address.empty() && address != port->address) {
    port->address = address;
    SetGids(port);
    state_->PortEvent(*port, IBV_EVENT_GID_CHANGE);
  }
  if (!port->up) {
    port->up = true;
    state_->PortEvent(*port, IBV_EVENT_PORT_ACTIVE);
  }
  state_->Pump();
}

Live Fabric::live() const {
  std::lock_guard lock(state_->mutex);
  return {state_->contexts.size(), state_->domains.size(), state_->regions.size(),
          state_->channels.size(), state_->queues.size(),  state_->queue_pairs.size()};
}

std::vector<std::string> Fabric::misuses() const {
  std::lock_guard lock(state_->mutex);
  return state_->misuses;
}

// --- Host ---

Host::~Host() = default;

void Host::AddDevice(const DeviceOptions& options) {
  std::lock_guard lock(state_->mutex);
  auto device = std::make_unique<FakeDevice>();
  static_cast<ibv_device&>(*device) = {};
  device->node_type = IBV_NODE_CA;
  device->transport_type = IBV_TRANSPORT_IB;
  std::strncpy(device->name, options.name.c_str(), sizeof(device->name) - 1);
  device->host = this;
  device->options = options;
  if (options.netdev.empty()) device->options.netdev = "eth" + options.name;
  for (uint8_t number = 1; number <= options.ports; ++number) {
    auto port = std::make_unique<Port>();
    port->device = device.get();
    port->number = number;
    port->address = CountUp(options.address, number - 1u);
    SetGids(port.get());
    device->port_list.push_back(std::move(port));
  }
  state_->devices.push_back(std::move(device));
}

Rail Host::RailOf(const std::string& name, uint8_t number) const {
  std::lock_guard lock(state_->mutex);
  const Port* port = state_->PortOf({const_cast<Host*>(this), name, number});
  Rail rail;
  rail.device = name;
  rail.port = number;
  if (port == nullptr) return rail;
  const bool infiniband = port->device->options.infiniband;
  rail.link_layer = infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  rail.gid_index = infiniband ? 0 : 2;
  rail.gid = port->gids.back();
  rail.gid_type = port->types.back();
  rail.lid = port->lid;
  rail.netdev = infiniband ? "" : port->device->options.netdev;
  rail.megabits = 100000;
  return rail;
}

void Host::LimitRegistrations(std::optional<size_t> n) {
  std::lock_guard lock(state_->mutex);
  state_->faults[this].registrations = n;
}

void Host::FailDmabuf(bool fail) {
  std::lock_guard lock(state_->mutex);
  state_->faults[this].dmabuf = fail;
}

void Host::FailReqNotify(bool fail) {
  std::lock_guard lock(state_->mutex);
  state_->faults[this].req_notify = fail;
}

void Host::FailPostSendAfter(std::optional<size_t> n) {
  std::lock_guard lock(state_->mutex);
  state_->faults[this].post_sends = n;
}

void Host::FailOpen(const std::string& name, int error) {
  std::lock_guard lock(state_->mutex);
  if (FakeDevice* device = state_->DeviceOf(this, name)) device->open_errno = error;
}

void Host::SetInline(const std::string& name, uint32_t max, bool refuse) {
  std::lock_guard lock(state_->mutex);
  FakeDevice* device = state_->DeviceOf(this, name);
  if (device == nullptr) return;
  device->options.max_inline = max;
  device->options.refuse_inline = refuse;
}

void Host::SetBytesPerStep(const std::string& name, size_t bytes) {
  std::lock_guard lock(state_->mutex);
  if (FakeDevice* device = state_->DeviceOf(this, name)) device->options.bytes_per_step = bytes == 0 ? 1 : bytes;
}

void Host::Hang(const std::string& name, uint32_t qp_number, bool hang) {
  std::lock_guard lock(state_->mutex);
  FakeDevice* device = state_->DeviceOf(this, name);
  if (device == nullptr) return;
  if (qp_number == 0) {
    device->all_hang = hang;
  } else if (FakeQp* qp = state_->FindQp(device, qp_number)) {
    qp->hang = hang;
  }
  state_->Pump();
}

void Host::LoseCompletions(const std::string& name, uint32_t qp_number, bool lose) {
  std::lock_guard lock(state_->mutex);
  FakeDevice* device = state_->DeviceOf(this, name);
  if (device == nullptr) return;
  if (qp_number == 0) {
    device->all_lose = lose;
  } else if (FakeQp* qp = state_->FindQp(device, qp_number)) {
    qp->lose = lose;
  }
}

}  // namespace sluice::rdma::fake
