// Serves /metrics and /healthz over HTTP.
//
// Not prometheus::Exposer: it serves metrics only, and an orchestrator's health probe belongs on
// the same port. The HTTP server is the one that prometheus-cpp itself uses (civetweb).
//
// **Thread safety**: thread-safe; the callbacks run on the listener's threads.
#ifndef VERBENA_SERVER_METRICS_HTTP_SERVER_H_
#define VERBENA_SERVER_METRICS_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::server {

class HttpServer {
 public:
  // `metrics` returns the text of a scrape. `health`: OK is 200 "ok", anything else 503 with why.
  // UNAVAILABLE names the address and the reason when it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           std::function<std::string()> metrics,
                                                           std::function<absl::Status()> health);
  ~HttpServer();

  const std::string& address() const;  // host:port, with the port that was taken

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_METRICS_HTTP_SERVER_H_
