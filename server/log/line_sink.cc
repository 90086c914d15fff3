#include "server/log/line_sink.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"

namespace verbena::server {
namespace {

bool HasRoom(int fd) {
  pollfd room = {fd, POLLOUT, 0};
  int ready = 0;
  while ((ready = poll(&room, 1, 0)) < 0 && errno == EINTR) {
  }
  return ready == 1 && (room.revents & POLLOUT) != 0;
}

ssize_t WriteOnce(int fd, std::string_view bytes) {
  ssize_t written = 0;
  while ((written = write(fd, bytes.data(), bytes.size())) < 0 && errno == EINTR) {
  }
  return written;
}

}  // namespace

bool LineSink::Write(std::string_view line) {
  bool begun = false;
  while (!line.empty()) {
    const std::string_view piece = line.substr(0, PIPE_BUF);
    const ssize_t bytes = HasRoom(fd_) ? WriteOnce(fd_, piece) : 0;
    if (bytes <= 0) {
      broken_line_ |= begun;
      return begun;
    }
    begun = true;
    line.remove_prefix(static_cast<size_t>(bytes));
  }
  return true;
}

void LineSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t formatted;
  formatter_->format(message, formatted);
  std::string text;
  const bool was_broken = broken_line_;
  if (was_broken) text = "\n";
  const uint64_t dropped = dropped_.load(std::memory_order_relaxed);  // a statistic
  if (dropped > reported_) {
    absl::StrAppend(&text, dropped - reported_,
                    " log lines were dropped (nobody reads this output)\n");
  }
  text.append(formatted.data(), formatted.size());
  broken_line_ = false;
  if (Write(text)) {
    reported_ = dropped;
  } else {
    broken_line_ = was_broken;
    dropped_.fetch_add(1, std::memory_order_relaxed);  // a statistic
  }
}

}  // namespace verbena::server
