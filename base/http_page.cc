#include "base/http_page.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kMaxHeader = 8192;
constexpr TimeNs kRest = 100 * kMillisecond;   // after an accept that failed for want of descriptors or memory

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Connection {
  Fd fd;
  TimeNs deadline = 0;
  std::string in;         // the request's header, until it is whole
  std::string out;        // the answer; empty = not asked yet
  size_t written = 0;     // of `out`

  bool Drains() const { return !out.empty() && written == out.size(); }
};

struct Listener {
  Fd fd;
  int port = 0;
};

absl::StatusOr<Listener> Listen(const std::string& host, int port) {
  const auto error = [&](const char* why) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", host, " port ", port, ": ", why));
  };
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string name = bracketed ? host.substr(1, host.size() - 2) : host;
  if (const int code = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found); code != 0)
    return error(gai_strerror(code));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  Listener listener{Fd(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
  const int one = 1;
  if (listener.fd.get() < 0 ||
      setsockopt(listener.fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
      bind(listener.fd.get(), list->ai_addr, list->ai_addrlen) != 0 || listen(listener.fd.get(), SOMAXCONN) != 0)
    return error(std::strerror(errno));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(listener.fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    return error(std::strerror(errno));
  listener.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                                    : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return listener;
}

}  // namespace

struct HttpPage::Impl {
  Options options;        // constant after Start, as are the next two
  Fd stop;                // an eventfd
  Listener listener;
  std::thread thread;
  // The thread's own.
  SteadyClock clock;
  std::vector<Connection> connections;   // in order of their coming, so of their deadlines
  TimeNs rests_until = 0;                // the listener

  void Run() {
    std::vector<pollfd> polled;
    for (;;) {
      const TimeNs now = clock.Now();
      TimeNs next = INT64_MAX;
      polled.assign({{stop.get(), POLLIN, 0}});
      const bool rests = now < rests_until;
      if (rests) next = rests_until;
      polled.push_back({rests ? -1 : listener.fd.get(), POLLIN, 0});
      for (const Connection& c : connections) {
        polled.push_back({c.fd.get(), static_cast<short>(c.out.empty() || c.Drains() ? POLLIN : POLLOUT), 0});
      }
      if (!connections.empty()) next = std::min(next, connections.front().deadline);
      // Rounded up, or it would turn without a pause in the last millisecond.
      const TimeNs left = std::max<TimeNs>(next - now, 0);
      const int timeout = next == INT64_MAX ? -1 : static_cast<int>(std::min<TimeNs>(left / kMillisecond + 1, 60000));
      if (poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) rests_until = clock.Now() + kRest;
      if (polled[0].revents != 0) return;
      size_t i = 2;
      std::erase_if(connections, [&](Connection& c) { return polled[i++].revents != 0 && !Advance(c); });
      const TimeNs after = clock.Now();
      std::erase_if(connections, [&](const Connection& c) { return c.deadline <= after; });
      if (polled[1].revents != 0) Accept(after);
    }
  }

  void Accept(TimeNs now) {
    for (;;) {
      Fd fd(accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (fd.get() < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) rests_until = now + kRest;
        return;
      }
      if (connections.size() >= options.most) {
        const auto idle = std::find_if(connections.begin(), connections.end(),
                                       [](const Connection& c) { return c.out.empty(); });
        connections.erase(idle != connections.end() ? idle : connections.begin());
      }
      connections.push_back({.fd = std::move(fd), .deadline = now + options.patience});
    }
  }

  // Goes on with it as far as it can now. False: it is over.
  bool Advance(Connection& c) {
    char buffer[4096];
    while (c.out.empty() || c.Drains()) {
      const ssize_t got = recv(c.fd.get(), buffer, sizeof(buffer), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
      if (got == 0) return false;
      if (c.Drains()) return true;   // a little a turn: it may send without end
      c.in.append(buffer, static_cast<size_t>(got));
      const bool whole = absl::string_view(c.in).find("\r\n\r\n") != absl::string_view::npos ||
                         absl::string_view(c.in).find("\n\n") != absl::string_view::npos;
      if (whole) {
        c.out = AnswerTo(c.in.substr(0, c.in.find_first_of("\r\n")));
      } else if (c.in.size() > kMaxHeader) {
        c.out = Answer("431 Request Header Fields Too Large", "the request's header is too long\n", true);
      }
    }
    while (c.written < c.out.size()) {
      const ssize_t put = send(c.fd.get(), c.out.data() + c.written, c.out.size() - c.written, MSG_NOSIGNAL);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
      c.written += static_cast<size_t>(put);
    }
    // Closing at once could throw away what the client has not read yet, if it sent more than we read.
    return shutdown(c.fd.get(), SHUT_WR) == 0;
  }

  std::string AnswerTo(const std::string& line) const {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    if (words.size() != 3 || words[2].substr(0, 5) != "HTTP/")
      return Answer("400 Bad Request", "this is not an HTTP request\n", true);
    if (words[0] != "GET" && words[0] != "HEAD")
      return Answer("405 Method Not Allowed", "only GET and HEAD\n", true, "Allow: GET, HEAD\r\n");
    const bool with_body = words[0] == "GET";
    if (words[1].substr(0, words[1].find('?')) != options.path)
      return Answer("404 Not Found", absl::StrCat("there is ", options.path, " only\n"), with_body);
    return Answer("200 OK", options.body(), with_body, "", options.content_type);
  }

  static std::string Answer(absl::string_view status, absl::string_view body, bool with_body,
                            absl::string_view more = "", absl::string_view type = "text/plain; charset=utf-8") {
    return absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(), "\r\n",
                        more, "Connection: close\r\n\r\n", with_body ? body : absl::string_view());
  }
};

absl::StatusOr<std::unique_ptr<HttpPage>> HttpPage::Start(Options options) {
  auto impl = std::make_unique<Impl>();
  SLUICE_ASSIGN_OR_RETURN(impl->listener, Listen(options.host, options.port));
  impl->options = std::move(options);
  impl->options.most = std::max<size_t>(impl->options.most, 1);
  impl->stop = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (impl->stop.get() < 0) return absl::UnavailableError(absl::StrCat("eventfd: ", std::strerror(errno)));
  // Signals are for the threads of whoever embeds this.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  impl->thread = std::thread([page = impl.get()] { page->Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  const int port = impl->listener.port;
  return std::unique_ptr<HttpPage>(new HttpPage(std::move(impl), port));
}

HttpPage::HttpPage(std::unique_ptr<Impl> impl, int port) : impl_(std::move(impl)), port_(port) {}

HttpPage::~HttpPage() {
  const uint64_t one = 1;
  (void)!write(impl_->stop.get(), &one, sizeof(one));
  impl_->thread.join();
}

}  // namespace sluice
