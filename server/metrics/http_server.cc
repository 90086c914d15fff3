#include "server/metrics/http_server.h"

#include <CivetServer.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/control/address.h"

namespace verbena::server {
namespace {

void Respond(mg_connection* connection, int code, const char* reason, const char* type,
             const std::string& body) {
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n",
            code, reason, type, body.size());
  mg_write(connection, body.data(), body.size());
}

class MetricsHandler final : public CivetHandler {
 public:
  explicit MetricsHandler(std::function<std::string()> text) : text_(std::move(text)) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    Respond(connection, 200, "OK", "text/plain; version=0.0.4; charset=utf-8", text_());
    return true;
  }

 private:
  const std::function<std::string()> text_;
};

class HealthHandler final : public CivetHandler {
 public:
  explicit HealthHandler(std::function<absl::Status()> health) : health_(std::move(health)) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    const absl::Status status = health_();
    if (status.ok()) {
      Respond(connection, 200, "OK", "text/plain; charset=utf-8", "ok\n");
    } else {
      Respond(connection, 503, "Service Unavailable", "text/plain; charset=utf-8",
              absl::StrCat(status.message(), "\n"));
    }
    return true;
  }

 private:
  const std::function<absl::Status()> health_;
};

}  // namespace

struct HttpServer::Impl {
  Impl(std::function<std::string()> m, std::function<absl::Status()> h)
      : metrics(std::move(m)), health(std::move(h)) {}
  std::string address;
  MetricsHandler metrics;
  HealthHandler health;
  std::unique_ptr<CivetServer> server;  // last: its threads use the handlers
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() {
  // civetweb's listener looks whether to stop only every two seconds, or when a client comes.
  std::atomic<bool> ended{false};
  std::thread end([&] {
    impl_->server.reset();
    ended.store(true);
  });
  while (!ended.load()) {
    TouchListener(impl_->address);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  end.join();
}
const std::string& HttpServer::address() const { return impl_->address; }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const std::string& address, std::function<std::string()> metrics,
    std::function<absl::Status()> health) {
  absl::StatusOr<HostAndPort> parsed = SplitHostPort(address);
  if (!parsed.ok()) return parsed.status();
  // civetweb only says that it failed; the reason comes from trying ourselves.
  if (absl::Status status = CheckCanListen(address); !status.ok()) return status;
  auto impl = std::make_unique<Impl>(std::move(metrics), std::move(health));
  absl::StatusOr<std::string> numeric = ResolveNumeric(parsed->host);
  if (!numeric.ok()) return numeric.status();
  if (numeric->find(':') != std::string::npos && mg_check_feature(MG_FEATURES_IPV6) == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": the civetweb of this system has no IPv6; ",
                     "name an IPv4 address, such as 127.0.0.1:", parsed->port));
  }
  const std::vector<std::string> options = {
      "listening_ports",    JoinHostPort(*numeric, parsed->port),
      "num_threads",        "2",
      "request_timeout_ms", "10000"};
  try {
    impl->server = std::make_unique<CivetServer>(options);
    const std::vector<int> ports = impl->server->getListeningPorts();
    if (ports.empty()) return absl::UnavailableError(absl::StrCat("cannot listen on ", address));
    impl->address = JoinHostPort(parsed->host, static_cast<uint16_t>(ports.front()));
    impl->server->addHandler("/metrics", impl->metrics);
    impl->server->addHandler("/healthz", impl->health);
  } catch (const CivetException& error) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", error.what()));
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace verbena::server
