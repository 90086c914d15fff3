#include "server/log/line_sink.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

}  // namespace

LineSink::LineSink(int fd) : fd_(fd) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) return;
  socket_ = S_ISSOCK(status.st_mode);
  if (!S_ISFIFO(status.st_mode) && isatty(fd) == 0) return;
  const std::string same = absl::StrCat("/proc/self/fd/", fd);
  own_ = rdma::UniqueFd(open(same.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (own_.valid()) fd_ = own_.get();
}

ssize_t LineSink::WriteOnce(std::string_view bytes) const {
  ssize_t written = 0;
  do {
    written = socket_ ? send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                      : write(fd_, bytes.data(), bytes.size());
  } while (written < 0 && errno == EINTR);
  return written;
}

bool LineSink::Write(std::string_view line) {
  bool begun = false;
  while (!line.empty()) {
    const std::string_view piece = line.substr(0, PIPE_BUF);
    const ssize_t bytes = HasRoom(fd_) ? WriteOnce(piece) : 0;
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
