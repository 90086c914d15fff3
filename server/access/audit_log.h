// The audit log: requests to change something through the control plane, and refused calls, with
// their callers.
//
// Each event is one line of JSON, appended to a file (or to the daemon's log): time, peer,
// certificate, token (its id), role, method, the object, and the result. Successful calls that
// change nothing (heartbeats, views) are left out; refused calls never are.
//
// **Thread safety**: every function from any thread. Lines are written by a thread of the log's
// own, so that a slow disk or an unread pipe holds up no caller; a killed process loses those that
// wait.
//
// Invariants:
//  1. A file that was moved away (logrotate) is followed by a new one of the same name.
//  2. Each peer host gets kRefusalBurst lines about refusals at once, and then kRefusalsPerSecond a
//     second; the next line counts those without a line. All hosts together get ten times that, and
//     no host takes more than its own share. So refused calls neither fill the disk nor use up the
//     lines of other hosts.
//  3. At most kMostWaiting lines wait to be written, and refusals only up to kMostRefusalsWaiting,
//  so
//     that they take no line of a change; the next line counts those that were lost.
//  4. Each caller may make kCallBurst audited calls at once, and then kCallsPerSecond a second. A
//     call beyond that does not begin, so every change has its line.
//  5. A line is whole: one write. A field that a peer chooses has at most 512 bytes of its text.
#ifndef VERBENA_SERVER_ACCESS_AUDIT_LOG_H_
#define VERBENA_SERVER_ACCESS_AUDIT_LOG_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/access/rate_limit.h"
#include "verbena/v1/access.pb.h"

namespace verbena::server {

struct AuditEvent {
  std::string peer = {};         // "ipv4:10.0.0.7:51234"; empty: not known
  std::string certificate = {};  // name in the peer's certificate; empty: it showed none
  std::string token = {};        // id, as the caller claims it; empty: none
  v1::Role role = v1::ROLE_UNSPECIFIED;
  std::string method = {};  // "/verbena.v1.Cluster/DropTable", or the name of an unknown method
  std::string about = {};   // the object: "table 'w'"; empty: none
  absl::Status status = {};
};

inline constexpr double kRefusalBurst = 1000;
inline constexpr double kRefusalsPerSecond = 10;
inline constexpr size_t kMostWaiting = 8192;
inline constexpr size_t kMostRefusalsWaiting = kMostWaiting / 2;
inline constexpr double kCallBurst = 20'000;
inline constexpr double kCallsPerSecond = 200;

// "ipv4:10.0.0.7" of "ipv4:10.0.0.7:51234".
inline std::string HostOf(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

class AuditLog {
 public:
  // With an empty `path`, lines go to `log`, which is called from any thread. Otherwise `log` gets
  // only errors of the file. FAILED_PRECONDITION: the file cannot be written.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(
      const std::string& path, std::function<void(const std::string&)> log);
  ~AuditLog();  // writes the lines that wait

  void Write(const AuditEvent& event) { Write(event, absl::Now()); }
  void Write(const AuditEvent& event, absl::Time now);
  // Before a call that will have a line. UNAVAILABLE: `caller` (a token's id, or a host) has used
  // up its lines.
  absl::Status Charge(const std::string& caller, absl::Time now);
  // The call that was charged has changed nothing, and has no line.
  void Refund(const std::string& caller);
  // Waits until all that waits is written.
  void Flush();
  // Lines that no place was left for, and refusals without one.
  uint64_t left_out() const;

 private:
  AuditLog(std::string path, std::function<void(const std::string&)> log)
      : path_(std::move(path)), log_(std::move(log)) {}
  absl::Status StartWriter();
  void Run();
  absl::Status OpenFile();
  void Append(const std::string& line);
  // How many refusals of the host had no line before this one; nullopt: this one has none, too.
  std::optional<uint64_t> Admit(const std::string& peer, absl::Time now);

  const std::string path_;
  const std::function<void(const std::string&)> log_;
  // The writer's.
  int fd_ = -1;
  bool failing_ = false;  // reported

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<std::string> waiting_;
  bool writing_ = false;
  bool stop_ = false;
  uint64_t lost_ = 0;      // since the last line
  uint64_t left_out_ = 0;  // in all
  RateLimit all_refused_{10 * kRefusalBurst, 10 * kRefusalsPerSecond};
  uint64_t unsaid_ = 0;                       // of hosts whose next line was left out, too
  std::map<std::string, RateLimit> refused_;  // by host
  std::map<std::string, RateLimit> charged_;  // by caller

  std::thread writer_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_AUDIT_LOG_H_
