#include "server/access/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/base/json.h"
#include "proto/base/own_file.h"
#include "proto/base/threads.h"
#include "proto/security/role.h"
#include "server/access/access_control.h"
#include "server/access/budget.h"

namespace verbena::server {
namespace {

// Beyond that many hosts that were refused something, they are counted anew.
constexpr size_t kMostPeers = 4096;

// Fields that a peer can choose have a bounded part of a line.
constexpr size_t kMostFieldBytes = 512;

std::string Cut(const absl::string_view text) {
  if (text.size() <= kMostFieldBytes) return std::string(text);
  return absl::StrCat(text.substr(0, kMostFieldBytes), "... (", text.size(), " bytes)");
}

std::string Line(const AuditEvent& event, absl::Time now, uint64_t unsaid, uint64_t lost) {
  JsonWriter line;
  line.Add("time", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", now, absl::UTCTimeZone()));
  if (!event.peer.empty()) line.Add("peer", event.peer);
  if (!event.certificate.empty()) line.Add("certificate", Cut(event.certificate));
  if (!event.token.empty()) line.Add("token", event.token);
  if (event.role != v1::ROLE_UNSPECIFIED) line.Add("role", RoleName(event.role));
  line.Add("call", Cut(event.method));
  if (!event.about.empty()) line.Add("about", Cut(event.about));
  line.Add("result", absl::StatusCodeToString(event.status.code()));
  if (!event.status.ok()) line.Add("reason", Cut(event.status.message()));
  if (unsaid > 0) line.Add("refusals_without_a_line", unsaid);
  if (lost > 0) line.Add("lines_lost", lost);
  return line.ToString();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(
    const std::string& path, std::function<void(const std::string&)> log) {
  std::unique_ptr<AuditLog> audit(new AuditLog(path, std::move(log)));
  if (!path.empty()) {
    if (absl::Status status = audit->OpenFile(); !status.ok()) return status;
  }
  if (absl::Status status = audit->StartWriter(); !status.ok()) return status;
  return audit;
}

AuditLog::~AuditLog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
  if (fd_ >= 0) close(fd_);
}

absl::Status AuditLog::StartWriter() {
  absl::StatusOr<std::thread> started = StartThread("of the audit log", [this] { Run(); });
  if (!started.ok()) return started.status();
  writer_ = *std::move(started);
  return absl::OkStatus();
}

void AuditLog::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::string line = std::move(waiting_.front());
    waiting_.pop_front();
    writing_ = true;
    lock.unlock();
    if (path_.empty()) {
      log_("audit: " + line);
    } else {
      Append(line);
    }
    lock.lock();
    writing_ = false;
    changed_.notify_all();
  }
}

void AuditLog::Flush() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() && !writing_; });
}

uint64_t AuditLog::left_out() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return left_out_;
}

// Before the writer runs, or by it.
absl::Status AuditLog::OpenFile() {
  if (fd_ >= 0) close(fd_);
  const ErrnoStatus failed = [this](int error) {
    return absl::FailedPreconditionError(
        absl::StrCat("audit log ", path_, ": cannot be written: ", std::strerror(error)));
  };
  // The system's own links, such as /dev/stderr, are no one else's.
  const bool device = absl::StartsWith(path_, "/dev/");
  fd_ = open(path_.c_str(),
             O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | (device ? 0 : O_NOFOLLOW),
             0640);
  if (fd_ < 0 && errno == ELOOP) {
    return absl::FailedPreconditionError(absl::StrCat("audit log: ", RefuseLink(path_).message()));
  }
  if (fd_ < 0) return failed(errno);
  if (device) return absl::OkStatus();
  absl::Status status = CheckOwnFile(path_, fd_, failed);
  if (status.ok()) return status;
  close(std::exchange(fd_, -1));
  return absl::FailedPreconditionError(absl::StrCat("audit log: ", status.message()));
}

void AuditLog::Append(const std::string& line) {
  struct stat named = {}, ours = {};
  const bool moved = fd_ < 0 || stat(path_.c_str(), &named) != 0 || fstat(fd_, &ours) != 0 ||
                     named.st_ino != ours.st_ino || named.st_dev != ours.st_dev;
  std::string wrong;
  if (moved) wrong = std::string(OpenFile().message());
  if (fd_ >= 0) {
    const std::string whole = line + "\n";
    const ssize_t written = write(fd_, whole.data(), whole.size());
    if (written != static_cast<ssize_t>(whole.size())) {
      wrong = absl::StrCat("audit log ", path_, ": ",
                           written < 0 ? std::strerror(errno) : "the disk is full");
    }
  }
  if (wrong.empty()) {
    failing_ = false;
    return;
  }
  // The calls go on: a full disk must not stop training. A line that the file cannot take goes to
  // the log.
  if (!std::exchange(failing_, true)) log_(wrong + "; its lines go to this log instead");
  log_("audit: " + line);
}

// Under the lock.
std::optional<uint64_t> AuditLog::Admit(const std::string& peer, absl::Time now) {
  const std::string host = HostOf(peer);
  if (refused_.size() >= kMostPeers && !refused_.contains(host)) {
    for (const auto& [other, limit] : refused_) unsaid_ += limit.kept_back();
    refused_.clear();
  }
  // Charge the host's own share first: a refusal by it must not use up the share of all hosts.
  RateLimit& own = refused_.try_emplace(host, kRefusalBurst, kRefusalsPerSecond).first->second;
  const std::optional<uint64_t> of_host = own.Take(now);
  if (!of_host.has_value()) return std::nullopt;
  unsaid_ += *of_host;
  // A peer may have many addresses.
  const std::optional<uint64_t> of_all = all_refused_.Take(now);
  if (!of_all.has_value()) return std::nullopt;
  return std::exchange(unsaid_, 0) + *of_all;
}

absl::Status AuditLog::Charge(const std::string& caller, absl::Time now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (charged_.size() >= kMostPeers && !charged_.contains(caller)) charged_.clear();
  if (charged_.try_emplace(caller, kCallBurst, kCallsPerSecond).first->second.Take(now)) {
    return absl::OkStatus();
  }
  CountExceeded(Budget::kAuditedCalls);
  return absl::UnavailableError(absl::StrCat(caller, " has made ", kCallBurst,
                                             " calls that are audited, and more than ",
                                             kCallsPerSecond, " a second since; retry later"));
}

void AuditLog::Refund(const std::string& caller) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = charged_.find(caller);
  if (it != charged_.end()) it->second.Return();
}

void AuditLog::Write(const AuditEvent& event, absl::Time now) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t most = event.status.ok() ? kMostWaiting : kMostRefusalsWaiting;
    if (waiting_.size() >= most) {
      ++lost_;
      ++left_out_;
      return;
    }
    std::optional<uint64_t> unsaid = 0;
    if (!event.status.ok()) unsaid = Admit(event.peer, now);
    if (!unsaid.has_value()) {
      ++left_out_;
      return;
    }
    waiting_.push_back(Line(event, now, *unsaid, std::exchange(lost_, 0)));
  }
  changed_.notify_all();
}

}  // namespace verbena::server
