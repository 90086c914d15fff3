// Serves /metrics and /healthz over HTTP.
//
// Not prometheus::Exposer: it serves metrics only, and an orchestrator's health probe should use
// the same port. Not civetweb: with a thread per connection, a few half-open requests block both.
//
// **Thread safety**: thread-safe; `health` runs on the thread that serves all connections, so it
// must not wait; `metrics` runs on a thread of its own.
//
// Invariants:
//  1. No peer, and no scrape that takes long, delays the answer to /healthz.
//  2. There are at most kMostConnections; a new one ends the oldest of the host that has most.
//  3. A connection has kRequestTime to send a request of at most kMostRequestBytes, and kReplyTime
//     to take the reply.
#ifndef VERBENA_SERVER_METRICS_HTTP_SERVER_H_
#define VERBENA_SERVER_METRICS_HTTP_SERVER_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::server {

inline constexpr size_t kMostConnections = 64;
inline constexpr size_t kMostRequestBytes = 8192;
inline constexpr std::chrono::seconds kRequestTime{5};
inline constexpr std::chrono::seconds kReplyTime{30};

class HttpServer {
 public:
  // Takes the port; connections wait until Serve(). UNAVAILABLE names the address and the reason
  // when it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const std::string& address);
  // `metrics` returns the text of a scrape. `health`: OK is 200 "ok", anything else 503 with the
  // reason.
  absl::Status Serve(std::function<std::string()> metrics, std::function<absl::Status()> health);
  // Both.
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
