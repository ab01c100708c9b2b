// The checks that ask the operating system.
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/cpu_check.h"
#include "ctl/doctor.h"
#include "ctl/table.h"
#include "rdma/memory.h"

namespace sluice::ctl {
namespace {

constexpr rlim_t kEnoughFiles = 4096;
constexpr rlim_t kFewFiles = 256;
constexpr rlim_t kEnoughLocked = 1 << 30;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Splits "host:port" and "[::1]:port".
bool Split(const std::string& host_port, std::string* host, std::string* port) {
  const size_t colon = host_port.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == host_port.size()) return false;
  *host = host_port.substr(0, colon);
  *port = host_port.substr(colon + 1);
  if (host->front() == '[' && host->back() == ']') *host = host->substr(1, host->size() - 2);
  return true;
}

int Resolve(const std::string& host, const std::string& port, int flags, Addresses* addresses) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  addresses->reset(list);
  return error;
}

std::string Numeric(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST];
  return getnameinfo(address, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0 ? host : "?";
}

socklen_t LengthOf(const sockaddr* address) {
  return address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

// 0, or the reason.
int TryConnect(const addrinfo& address, int timeout_ms) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  int error = connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd wait{fd, POLLOUT, 0};
    socklen_t size = sizeof(error);
    if (poll(&wait, 1, timeout_ms) <= 0) error = ETIMEDOUT;
    else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  }
  close(fd);
  return error;
}

std::string Limit(rlim_t value) { return value == RLIM_INFINITY ? "unlimited" : absl::StrCat(value); }

std::string ReadLine(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

Check CheckName(const std::string& host_port) {
  std::string host, port;
  if (!Split(host_port, &host, &port))
    return {Check::kFail, "scheduler's name", absl::StrCat("\"", host_port, "\" is not host:port"),
            "set node.scheduler"};
  Addresses addresses;
  if (const int error = Resolve(host, port, 0, &addresses); error != 0)
    return {Check::kFail, "scheduler's name", absl::StrCat(host, ": ", gai_strerror(error)),
            "check the name in node.scheduler, /etc/hosts and the resolver (`getent hosts NAME`)"};
  std::vector<std::string> found;
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next)
    found.push_back(Numeric(a->ai_addr, a->ai_addrlen));
  return {Check::kOk, "scheduler's name", absl::StrCat(host, " is ", absl::StrJoin(found, ", ")), ""};
}

Check CheckReachable(const std::string& host_port, int timeout_ms) {
  std::string host, port;
  Addresses addresses;
  if (!Split(host_port, &host, &port) || Resolve(host, port, 0, &addresses) != 0)
    return {Check::kFail, "scheduler's port", absl::StrCat(host_port, " cannot be resolved"), "see above"};
  int error = ENETUNREACH;
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    error = TryConnect(*a, timeout_ms);
    if (error == 0) return {Check::kOk, "scheduler's port", absl::StrCat(host_port, " accepts connections"), ""};
  }
  const std::string text = absl::StrCat(host_port, ": ", std::strerror(error));
  if (error == ECONNREFUSED)
    return {
        Check::kFail, "scheduler's port", text,
        "the machine is there but nobody listens: start sluice-scheduler, or check its node.listen (default: loopback "
        "only) and node.port"};
  return {Check::kFail, "scheduler's port", text, "check routes and firewalls between this machine and that one"};
}

Check CheckPortFree(const std::string& key, const std::string& host, uint32_t port) {
  if (port == 0) return {Check::kOk, key, "any free port is taken", ""};
  if (port > 65535) return {Check::kFail, key, absl::StrCat(port, " is no port"), "choose one below 65536"};
  Addresses addresses;
  if (const int error = Resolve(host, absl::StrCat(port), AI_PASSIVE, &addresses); error != 0)
    return {Check::kFail, key, absl::StrCat(host, ": ", gai_strerror(error)), "check node.listen"};
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    const int error = bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 1) != 0 ? errno : 0;
    close(fd);
    if (error == 0) continue;
    const std::string text = absl::StrCat(host, ":", port, ": ", std::strerror(error));
    if (error == EADDRINUSE)
      return {Check::kFail, key, text, "`ss -ltnp` names who has it; stop that or choose another port"};
    if (error == EACCES) return {Check::kFail, key, text, "ports below 1024 need privileges: choose a larger one"};
    return {Check::kFail, key, text, "node.listen must be an address of this machine"};
  }
  return {Check::kOk, key, absl::StrCat(host, ":", port, " is free"), ""};
}

Check CheckOpenFiles() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string text = absl::StrCat(Limit(limit.rlim_cur), " (at most ", Limit(limit.rlim_max), ")");
  if (limit.rlim_cur >= kEnoughFiles) return {Check::kOk, "open files", text, ""};
  const char* to_do = "ulimit -n 65536, or LimitNOFILE= of the systemd unit: each link of a worker takes a few";
  return {limit.rlim_cur < kFewFiles ? Check::kFail : Check::kWarn, "open files", text, to_do};
}

Check CheckLockedMemory(bool for_rdma) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string text = limit.rlim_cur == RLIM_INFINITY ? "unlimited" : Bytes(limit.rlim_cur);
  if (!for_rdma) return {Check::kOk, "locked memory", absl::StrCat(text, "; only RDMA needs it"), ""};
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= kEnoughLocked) return {Check::kOk, "locked memory", text, ""};
  return {Check::kWarn, "locked memory", absl::StrCat(text, ": memory beyond it goes without RDMA"), rdma::MemlockMend()};
}

Check CheckSharedMemory() {
  const int fd = memfd_create("sluice-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0)
    return {Check::kWarn, "shared memory", absl::StrCat("memfd_create: ", std::strerror(errno)),
            "processes of this host will use TCP between them; a seccomp profile of the container may forbid it"};
  const bool sealed = ftruncate(fd, 1 << 20) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
  const int error = errno;
  close(fd);
  if (!sealed)
    return {Check::kWarn, "shared memory", absl::StrCat("a memfd cannot be sized and sealed: ", std::strerror(error)),
            "processes of this host will use TCP between them"};
  struct statvfs shm{};
  std::string room;
  if (statvfs("/dev/shm", &shm) == 0)
    room = absl::StrCat("; /dev/shm has ", Bytes(uint64_t{shm.f_bavail} * shm.f_frsize), " free");
  return {Check::kOk, "shared memory", absl::StrCat("memfd with seals works", room), ""};
}

Check CheckStateFile(const std::string& path) {
  std::filesystem::path directory = std::filesystem::path(path).parent_path();
  if (directory.empty()) directory = ".";
  if (access(directory.c_str(), W_OK | X_OK) != 0)
    return {Check::kFail, "node.state_file", absl::StrCat(directory.string(), ": ", std::strerror(errno)),
            "create the directory and make it writable for the user of sluice-scheduler"};
  struct statvfs disk{};
  const uint64_t room = statvfs(directory.c_str(), &disk) == 0 ? uint64_t{disk.f_bavail} * disk.f_frsize : 0;
  if (room < (64 << 20))
    return {Check::kWarn, "node.state_file", absl::StrCat(directory.string(), " has ", Bytes(room), " left"),
            "free space: with a full disk membership cannot change"};
  return {Check::kOk, "node.state_file", absl::StrCat(directory.string(), " can be written, ", Bytes(room), " free"),
          ""};
}

std::vector<Check> CheckInterfaces(const std::string& sys_class_net) {
  std::map<std::string, std::vector<std::string>> addresses;
  if (ifaddrs* list = nullptr; getifaddrs(&list) == 0) {
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next)
      if (i->ifa_addr != nullptr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6))
        addresses[i->ifa_name].push_back(Numeric(i->ifa_addr, LengthOf(i->ifa_addr)));
    freeifaddrs(list);
  }
  std::vector<std::filesystem::path> interfaces;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(sys_class_net, error))
    interfaces.push_back(entry.path());
  std::sort(interfaces.begin(), interfaces.end());

  std::vector<Check> checks;
  bool any_up = false;
  for (const std::filesystem::path& path : interfaces) {
    const std::string name = path.filename().string();
    if (name == "lo") continue;
    const std::string state = ReadLine(path / "operstate");
    int64_t speed = 0;
    const bool has_speed = absl::SimpleAtoi(ReadLine(path / "speed"), &speed) && speed > 0;
    const std::string text =
        absl::StrCat(state.empty() ? "state unknown" : state, ", ",
                     has_speed ? absl::StrCat(speed, " Mb/s") : "speed unknown", ", MTU ", ReadLine(path / "mtu"), ", ",
                     addresses[name].empty() ? "no address" : absl::StrJoin(addresses[name], " "));
    // "unknown" is what virtual interfaces say when they work.
    const bool up = (state == "up" || state == "unknown") && !addresses[name].empty();
    any_up |= up;
    if (up) checks.push_back({Check::kOk, absl::StrCat("interface ", name), text, ""});
    else checks.push_back({Check::kOk, absl::StrCat("interface ", name), absl::StrCat(text, " (not usable)"), ""});
  }
  if (!any_up)
    checks.push_back({Check::kWarn, "interfaces", "none but loopback is up and has an address",
                      "only processes of this machine can take part; check cables, `ip link`, `ip addr`"});
  return checks;
}

Check CheckProcessor() {
  const absl::Status status = CheckCpu();
  if (status.ok()) return {Check::kOk, "processor", "has what this build needs (x86-64-v3)", ""};
  return {Check::kFail, "processor", std::string(status.message()), "use a newer machine, or build for this one"};
}

}  // namespace sluice::ctl
