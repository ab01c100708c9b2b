#include "base/http_page.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Client {
 public:
  explicit Client(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  Client(Client&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Client() {
    if (fd_ >= 0) close(fd_);
  }
  // As much as the other side takes.
  void Send(const std::string& text) const { (void)!send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // Until the other side closes.
  std::string Read() const {
    std::string answer;
    char buffer[4096];
    for (ssize_t n; (n = recv(fd_, buffer, sizeof(buffer), 0)) > 0;) answer.append(buffer, static_cast<size_t>(n));
    return answer;
  }

 private:
  int fd_;
};

std::unique_ptr<HttpPage> Page(HttpPage::Options options = {}) {
  options.host = "127.0.0.1";
  options.path = "/page";
  options.content_type = "text/x-test";
  if (!options.body) options.body = [] { return std::string("the page"); };
  auto page = HttpPage::Start(std::move(options));
  EXPECT_TRUE(page.ok()) << page.status();
  return *std::move(page);
}

std::string Ask(int port, const std::string& request) {
  const Client client(port);
  client.Send(request);
  return client.Read();
}

TEST(HttpPage, AnswersEachKindOfRequest) {
  const auto page = Page();
  const std::string whole =
      "HTTP/1.1 200 OK\r\nContent-Type: text/x-test\r\nContent-Length: 8\r\nConnection: close\r\n\r\nthe page";
  EXPECT_EQ(Ask(page->port(), "GET /page HTTP/1.1\r\nHost: x\r\n\r\n"), whole);
  EXPECT_EQ(Ask(page->port(), "GET /page?name=x HTTP/1.0\n\n"), whole);
  EXPECT_EQ(Ask(page->port(), "HEAD /page HTTP/1.1\r\n\r\n"), whole.substr(0, whole.size() - 8));
  EXPECT_THAT(Ask(page->port(), "GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(page->port(), "GET /pages HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask(page->port(), "POST /page HTTP/1.1\r\n\r\n"), HasSubstr("Allow: GET, HEAD"));
  for (const char* bad : {"\r\n\r\n", "GET\r\n\r\n", "GET /page\r\n\r\n", "\x16\x03\x01 \xff \n\n", "a b c d\n\n"})
    EXPECT_THAT(Ask(page->port(), bad), StartsWith("HTTP/1.1 400 ")) << bad;
}

TEST(HttpPage, ARequestMayComeInPieces) {
  const auto page = Page();
  const Client client(page->port());
  for (const char c : std::string("GET /page HTTP/1.1\r\n\r\n")) client.Send(std::string(1, c));
  EXPECT_THAT(client.Read(), StartsWith("HTTP/1.1 200 "));
}

TEST(HttpPage, AHeaderWithoutEndIsRefused) {
  const auto page = Page();
  EXPECT_THAT(Ask(page->port(), "GET /page HTTP/1.1\r\nX: " + std::string(20000, 'x')), StartsWith("HTTP/1.1 431 "));
}

TEST(HttpPage, APageLargerThanTheSocketsBuffersIsWhole) {
  const std::string large(16 << 20, 'x');
  const auto page = Page({.body = [&] { return large; }});
  const Client slow(page->port());
  slow.Send("GET /page HTTP/1.1\r\n\r\n");   // and does not read yet
  EXPECT_THAT(Ask(page->port(), "HEAD /page HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  const std::string answer = slow.Read();
  EXPECT_EQ(answer.substr(answer.find("\r\n\r\n") + 4), large);
}

TEST(HttpPage, ManyIdleConnectionsKeepNobodyWaiting) {
  for (const size_t most : {size_t{128}, size_t{4}}) {   // with room for all, and with less
    const auto page = Page({.patience = 3600 * kSecond, .most = most});
    std::vector<Client> idle;
    for (int i = 0; i < 50; ++i) idle.emplace_back(page->port());
    for (int i = 0; i < 25; ++i) idle[i].Send("GET /pa");
    EXPECT_THAT(Ask(page->port(), "GET /page HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
    if (most == 4) { EXPECT_EQ(idle[0].Read(), ""); }   // the oldest went first
  }   // and the page ends while they are there
}

TEST(HttpPage, IdleConnectionsAreClosed) {
  const auto page = Page({.patience = kMillisecond});
  const Client silent(page->port()), half(page->port());
  half.Send("GET /pa");
  EXPECT_EQ(silent.Read(), "");
  EXPECT_EQ(half.Read(), "");
}

TEST(HttpPage, SaysWhyItCannotListen) {
  const auto page = Page();
  HttpPage::Options options{.host = "127.0.0.1", .port = page->port(), .path = "/"};
  EXPECT_THAT(std::string(HttpPage::Start(options).status().message()), HasSubstr("Address already in use"));
  options.host = "no..name";
  EXPECT_EQ(HttpPage::Start(options).status().code(), absl::StatusCode::kUnavailable);
  auto six = HttpPage::Start({.host = "[::1]", .path = "/"});
  if (six.ok()) { EXPECT_GT((*six)->port(), 0); }   // where there is IPv6
}

}  // namespace
}  // namespace sluice
