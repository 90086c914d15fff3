// Log lines that a peer can cause: bounded in length and number, so that peers cannot fill the
// disk.
//
// **Thread safety**: every function from any thread.
//
// Invariants:
//  1. At most kBurst lines at once, and then kPerSecond a second; the next line has the number of
//     dropped ones.
//  2. A line has at most kMostBytes of its text.
#ifndef VERBENA_SERVER_ACCESS_PEER_LOG_H_
#define VERBENA_SERVER_ACCESS_PEER_LOG_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/access/rate_limit.h"

namespace verbena::server {

class PeerLog {
 public:
  static constexpr double kBurst = 200;
  static constexpr double kPerSecond = 5;
  static constexpr size_t kMostBytes = 1024;

  explicit PeerLog(std::function<void(const std::string&)> sink)
      : sink_(std::move(sink)), limit_(kBurst, kPerSecond) {}

  void Write(const std::string& line) { Write(line, absl::Now()); }
  void Write(const std::string& line, absl::Time now);

  // Lines dropped by all logs of this process, since its start.
  static uint64_t left_out();

 private:
  const std::function<void(const std::string&)> sink_;
  std::mutex mutex_;
  RateLimit limit_;  // guarded by mutex_
};

// Wraps `sink` with a PeerLog.
inline std::function<void(const std::string&)> Bounded(
    std::function<void(const std::string&)> sink) {
  return [log = std::make_shared<PeerLog>(std::move(sink))](const std::string& line) {
    log->Write(line);
  };
}

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_PEER_LOG_H_
