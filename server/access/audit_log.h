// The audit log: who asked the control plane to change something, and who was refused.
//
// A line of JSON an event, appended to a file (or to the daemon's log): time, peer, certificate,
// token (its id), role, method, what it was about, and how it ended. Successful calls that change
// nothing (heartbeats, views) are left out; what was refused never is.
//
// **Thread safety**: every function from any thread.
//
// Invariants:
//  1. A file that was moved away (logrotate) is followed by a new one of the same name.
//  2. Of one peer host kRefusalBurst refusals get a line, and then kRefusalsPerSecond a second; the
//     next line says how many had none. So nobody fills the disk by being refused.
//  3. A line is whole: one write. A field that a peer chooses has at most 512 bytes of its text.
#ifndef VERBENA_SERVER_ACCESS_AUDIT_LOG_H_
#define VERBENA_SERVER_ACCESS_AUDIT_LOG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/verbena/v1/access.pb.h"

namespace verbena::server {

struct AuditEvent {
  std::string peer = {};         // "ipv4:10.0.0.7:51234"; empty: not known
  std::string certificate = {};  // whom the peer's is for; empty: it showed none
  std::string token = {};        // id, as the caller claims it; empty: none
  v1::Role role = v1::ROLE_UNSPECIFIED;
  std::string method = {};  // "/verbena.v1.Cluster/DropTable", or what else was tried
  std::string about = {};   // "table 'w'"; empty: nothing more to say
  absl::Status status = {};
};

inline constexpr double kRefusalBurst = 1000;
inline constexpr double kRefusalsPerSecond = 10;

// "ipv4:10.0.0.7" of "ipv4:10.0.0.7:51234".
inline std::string HostOf(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

class AuditLog {
 public:
  // `path` empty: lines go to `log`, which may be called from any thread. Otherwise also what goes
  // wrong with the file does. FAILED_PRECONDITION: it cannot be written.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(
      const std::string& path, std::function<void(const std::string&)> log);
  ~AuditLog();

  void Write(const AuditEvent& event) { Write(event, absl::Now()); }
  void Write(const AuditEvent& event, absl::Time now);

 private:
  // A bucket that fills with time; a line takes one out.
  struct Refused {
    absl::Time at = absl::InfinitePast();
    double left = kRefusalBurst;
    uint64_t unsaid = 0;
  };

  AuditLog(std::string path, std::function<void(const std::string&)> log)
      : path_(std::move(path)), log_(std::move(log)) {}
  absl::Status OpenFile();
  void Append(const std::string& line);
  // How many went unsaid before this one; -1: this one does, too.
  int64_t Admit(const std::string& peer, absl::Time now);

  const std::string path_;
  const std::function<void(const std::string&)> log_;
  std::mutex mutex_;
  // Guarded by mutex_.
  int fd_ = -1;
  bool failing_ = false;  // said so
  std::map<std::string, Refused> refused_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_AUDIT_LOG_H_
