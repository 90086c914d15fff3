#include "server/metrics/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/threads.h"
#include "rdma/base/unique_fd.h"
#include "server/access/budget.h"
#include "server/control/address.h"

namespace verbena::server {
namespace {

using HttpClock = std::chrono::steady_clock;
using Body = std::shared_ptr<const std::string>;

constexpr std::chrono::seconds kHangUpTime{1};
// Between two scrapes.
constexpr std::chrono::seconds kLongestScrapePause{1};

enum class HttpStage { kRequest, kScrape, kReply, kHangUp };

struct HttpConnection {
  rdma::UniqueFd fd;
  std::string host;
  HttpClock::time_point deadline;
  HttpStage stage = HttpStage::kRequest;
  std::string request = {};
  std::string head = {};  // of the reply
  Body body = {};
  size_t sent = 0;  // of head and body
};

std::string HostOfPeer(const sockaddr_storage& peer, socklen_t size) {
  char host[NI_MAXHOST] = {};
  const int error = getnameinfo(reinterpret_cast<const sockaddr*>(&peer), size, host, sizeof(host),
                                nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? host : "";
}

absl::StatusOr<rdma::UniqueFd> ListenHttp(const std::string& host, uint16_t port, uint16_t* taken) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
      error != 0) {
    return absl::UnavailableError(gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> info(found, freeaddrinfo);
  rdma::UniqueFd fd(socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int one = 1;
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (!fd.valid() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
      bind(fd.get(), info->ai_addr, info->ai_addrlen) != 0 || listen(fd.get(), 128) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return absl::UnavailableError(std::strerror(errno));
  }
  *taken =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                        : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  return fd;
}

}  // namespace

// The serving thread owns `connections`; the scraping thread uses only members guarded by `mutex`.
struct HttpServer::Impl {
  void Serve();
  void Scrape();
  void Accept();
  void EndOldest();
  bool Step(HttpConnection* connection);  // false: it has ended
  bool Read(HttpConnection* connection);
  bool Write(HttpConnection* connection);
  void Answer(HttpConnection* connection);
  void Reply(HttpConnection* connection, const char* status, Body body);
  void Wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t wrote = write(wake.get(), &one, sizeof(one));
  }

  // Set before the threads start.
  std::function<std::string()> metrics;
  std::function<absl::Status()> health;
  std::string address;
  rdma::UniqueFd listener;
  rdma::UniqueFd wake;
  std::list<HttpConnection> connections;  // the oldest first

  std::mutex mutex;
  std::condition_variable wanted, stopped;
  // Guarded by mutex.
  bool stop = false;
  bool scrape = false;  // a request waits for one that has not begun
  Body scraped;         // for everybody in kScrape

  std::thread serving;
  std::thread scraping;
};

void HttpServer::Impl::Scrape() {
  std::unique_lock<std::mutex> lock(mutex);
  while (true) {
    wanted.wait(lock, [this] { return stop || scrape; });
    if (stop) return;
    scrape = false;
    lock.unlock();
    const HttpClock::time_point begin = HttpClock::now();
    Body text = std::make_shared<const std::string>(metrics());
    const HttpClock::duration took = HttpClock::now() - begin;
    lock.lock();
    scraped = std::move(text);
    Wake();
    // Scrapes take at most a tenth of this thread's time, however often they are requested.
    stopped.wait_for(lock, std::min<HttpClock::duration>(9 * took, kLongestScrapePause),
                     [this] { return stop; });
  }
}

void HttpServer::Impl::EndOldest() {
  std::map<std::string_view, size_t> of_host;
  size_t most = 0;
  for (const HttpConnection& connection : connections) {
    most = std::max(most, ++of_host[connection.host]);
  }
  CountExceeded(Budget::kHttpConnections);
  connections.erase(std::find_if(
      connections.begin(), connections.end(),
      [&](const HttpConnection& connection) { return of_host[connection.host] == most; }));
}

void HttpServer::Impl::Accept() {
  // A turn takes a bounded number, so that a flood of connections does not keep out the others.
  for (size_t i = 0; i < kMostConnections; ++i) {
    sockaddr_storage peer = {};
    socklen_t size = sizeof(peer);
    rdma::UniqueFd fd(accept4(listener.get(), reinterpret_cast<sockaddr*>(&peer), &size,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      // Without a free descriptor the listener stays readable: one of ours makes room.
      if (errno != EMFILE && errno != ENFILE) return;
      if (connections.empty()) {
        poll(nullptr, 0, 50);
      } else {
        EndOldest();
      }
      return;
    }
    if (connections.size() >= kMostConnections) EndOldest();
    connections.push_back({.fd = std::move(fd),
                           .host = HostOfPeer(peer, size),
                           .deadline = HttpClock::now() + kRequestTime});
  }
}

void HttpServer::Impl::Reply(HttpConnection* connection, const char* status, Body body) {
  connection->head = absl::StrCat(
      "HTTP/1.1 ", status, "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n",
      "Content-Length: ", body->size(), "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n");
  connection->body = std::move(body);
  connection->stage = HttpStage::kReply;
  connection->deadline = HttpClock::now() + kReplyTime;
}

void HttpServer::Impl::Answer(HttpConnection* connection) {
  const auto text = [](std::string words) {
    return std::make_shared<const std::string>(std::move(words));
  };
  const std::string_view request = connection->request;
  if (request.substr(0, 4) != "GET ") {
    return Reply(connection, "405 Method Not Allowed", text("only GET is served\n"));
  }
  const std::string_view path = request.substr(4, request.find_first_of(" ?\r\n", 4) - 4);
  if (path == "/healthz") {
    const absl::Status status = health();
    if (status.ok()) return Reply(connection, "200 OK", text("ok\n"));
    return Reply(connection, "503 Service Unavailable", text(absl::StrCat(status.message(), "\n")));
  }
  if (path != "/metrics") {
    return Reply(connection, "404 Not Found", text("/metrics and /healthz are served\n"));
  }
  connection->stage = HttpStage::kScrape;
  connection->deadline = HttpClock::now() + kReplyTime;
  const std::lock_guard<std::mutex> lock(mutex);
  scrape = true;
  wanted.notify_one();
}

bool HttpServer::Impl::Read(HttpConnection* connection) {
  char part[4096];
  const ssize_t got = recv(connection->fd.get(), part, sizeof(part), 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  if (connection->stage != HttpStage::kRequest) return true;
  connection->request.append(part, static_cast<size_t>(got));
  if (connection->request.find("\r\n\r\n") != std::string::npos) {
    Answer(connection);
  } else if (connection->request.size() > kMostRequestBytes) {
    CountExceeded(Budget::kHttpRequest);
    Reply(connection, "431 Request Header Fields Too Large",
          std::make_shared<const std::string>(
              absl::StrCat("a request has at most ", kMostRequestBytes, " bytes\n")));
  }
  return true;
}

bool HttpServer::Impl::Write(HttpConnection* connection) {
  const size_t head = connection->head.size();
  while (connection->sent < head + connection->body->size()) {
    std::string_view rest =
        connection->sent < head
            ? std::string_view(connection->head).substr(connection->sent)
            : std::string_view(*connection->body).substr(connection->sent - head);
    const ssize_t got = send(connection->fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    connection->sent += static_cast<size_t>(got);
  }
  // Closing with unread bytes would reset the connection and lose the reply in flight.
  shutdown(connection->fd.get(), SHUT_WR);
  connection->stage = HttpStage::kHangUp;
  connection->deadline = HttpClock::now() + kHangUpTime;
  return true;
}

bool HttpServer::Impl::Step(HttpConnection* connection) {
  if (HttpClock::now() >= connection->deadline) {
    if (connection->stage == HttpStage::kRequest) CountExceeded(Budget::kHttpRequest);
    if (connection->stage == HttpStage::kReply) CountExceeded(Budget::kHttpReply);
    return false;
  }
  // A client may close its sending side while it waits for a reply.
  const bool reads =
      connection->stage == HttpStage::kRequest || connection->stage == HttpStage::kHangUp;
  if (reads && !Read(connection)) return false;
  return connection->stage != HttpStage::kReply || Write(connection);
}

void HttpServer::Impl::Serve() {
  while (true) {
    std::vector<pollfd> waits = {{listener.get(), POLLIN, 0}, {wake.get(), POLLIN, 0}};
    for (const HttpConnection& connection : connections) {
      int events = POLLIN;
      if (connection.stage == HttpStage::kReply) events = POLLOUT;
      if (connection.stage == HttpStage::kScrape) events = 0;
      waits.push_back({connection.fd.get(), static_cast<short>(events), 0});
    }
    poll(waits.data(), waits.size(), connections.empty() ? -1 : 100);
    Body body;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (stop) return;
      body = std::exchange(scraped, nullptr);
    }
    if (waits[1].revents != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = read(wake.get(), &count, sizeof(count));
    }
    size_t i = 2;
    for (auto it = connections.begin(); it != connections.end(); ++i) {
      if (body != nullptr && it->stage == HttpStage::kScrape) Reply(&*it, "200 OK", body);
      const bool gone = it->stage == HttpStage::kScrape && (waits[i].revents & (POLLERR | POLLHUP));
      it = !gone && Step(&*it) ? std::next(it) : connections.erase(it);
    }
    if (waits[0].revents != 0) Accept();
  }
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stop = true;
    impl_->wanted.notify_one();
    impl_->stopped.notify_one();
  }
  impl_->Wake();
  if (impl_->serving.joinable()) impl_->serving.join();
  if (impl_->scraping.joinable()) impl_->scraping.join();
}

const std::string& HttpServer::address() const { return impl_->address; }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const std::string& address) {
  absl::StatusOr<HostAndPort> parsed = SplitHostPort(address);
  if (!parsed.ok()) return parsed.status();
  if (absl::Status status = CheckCanListen(address); !status.ok()) return status;
  absl::StatusOr<std::string> numeric = ResolveNumeric(parsed->host);
  if (!numeric.ok()) return numeric.status();
  auto impl = std::make_unique<Impl>();
  uint16_t port = 0;
  absl::StatusOr<rdma::UniqueFd> listener = ListenHttp(*numeric, parsed->port, &port);
  impl->wake = rdma::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener.ok() || !impl->wake.valid()) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", address, ": ",
        listener.ok() ? "no descriptor is left (ulimit -n)" : listener.status().message()));
  }
  impl->listener = *std::move(listener);
  impl->address = JoinHostPort(parsed->host, port);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

absl::Status HttpServer::Serve(std::function<std::string()> metrics,
                               std::function<absl::Status()> health) {
  Impl* const running = impl_.get();
  running->metrics = std::move(metrics);
  running->health = std::move(health);
  absl::StatusOr<std::thread> serving = StartThread("of /healthz", [running] { running->Serve(); });
  if (!serving.ok()) return serving.status();
  running->serving = *std::move(serving);
  absl::StatusOr<std::thread> scraping =
      StartThread("of /metrics", [running] { running->Scrape(); });
  if (!scraping.ok()) return scraping.status();
  running->scraping = *std::move(scraping);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const std::string& address, std::function<std::string()> metrics,
    std::function<absl::Status()> health) {
  absl::StatusOr<std::unique_ptr<HttpServer>> server = Listen(address);
  if (!server.ok()) return server.status();
  if (absl::Status s = (*server)->Serve(std::move(metrics), std::move(health)); !s.ok()) return s;
  return server;
}

}  // namespace verbena::server
