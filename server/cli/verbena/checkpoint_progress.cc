#include "server/cli/verbena/checkpoint_progress.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

constexpr double kInterval = 0.5;  // often enough to see it move

double Clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Progress::Progress(bool shown, const char* verb, uint64_t all, int signal_fd)
    : terminal_(isatty(STDERR_FILENO) != 0),
      shown_(terminal_ || shown),
      verb_(verb),
      all_(all),
      signal_fd_(signal_fd),
      begin_(Clock()),
      next_(begin_ + kInterval) {}

Progress::~Progress() {
  if (any_ && terminal_) std::fputs("\r\x1b[K", stderr);
}

double Progress::seconds() const { return Clock() - begin_; }

absl::Status Progress::Add(uint64_t bytes) {
  done_ += bytes;
  pollfd signal = {signal_fd_, POLLIN, 0};
  if (signal_fd_ >= 0 && poll(&signal, 1, 0) > 0) return absl::CancelledError("a signal came");
  const double now = Clock();
  const bool last = done_ >= all_ && !ended_;
  ended_ |= last;
  if (!shown_ || (now < next_ && !(last && !terminal_))) return absl::OkStatus();
  next_ = now + kInterval;
  any_ = true;
  const double speed = static_cast<double>(done_) / std::max(now - begin_, 1e-9);
  const uint64_t left = all_ - std::min(all_, done_);
  std::fprintf(stderr, "%s%s: %s of %s, %.0f %%, %s/s, %s left%s", terminal_ ? "\r\x1b[K" : "",
               verb_, Bytes(done_).c_str(), Bytes(all_).c_str(),
               100 * static_cast<double>(done_) / static_cast<double>(std::max<uint64_t>(1, all_)),
               Bytes(static_cast<uint64_t>(speed)).c_str(),
               Seconds(static_cast<double>(left) / std::max(speed, 1.0)).c_str(),
               terminal_ ? "" : "\n");
  std::fflush(stderr);
  return absl::OkStatus();
}

}  // namespace verbena::cli
