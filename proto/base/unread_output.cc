#include "proto/base/unread_output.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "absl/time/clock.h"

namespace verbena {
namespace {

// A descriptor to write to without blocking.
class Output {
 public:
  explicit Output(int fd) : fd_(fd) {
    struct stat status = {};
    if (fstat(fd, &status) != 0) return;
    socket_ = S_ISSOCK(status.st_mode);
    if (!S_ISFIFO(status.st_mode) && isatty(fd) == 0) return;
    std::array<char, 32> same;
    std::snprintf(same.data(), same.size(), "/proc/self/fd/%d", fd);
    own_ = open(same.data(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (own_ >= 0) fd_ = own_;
  }
  ~Output() {
    if (own_ >= 0) close(own_);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  int fd() const { return fd_; }
  ssize_t Write(std::string_view text) const {
    return socket_ ? send(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                   : write(fd_, text.data(), text.size());
  }

 private:
  int fd_;
  int own_ = -1;
  bool socket_ = false;
};

}  // namespace

bool WriteUnlessFull(int fd, std::string_view text, absl::Duration patience) {
  const Output output(fd);
  const absl::Time end = absl::Now() + patience;
  while (!text.empty()) {
    pollfd room = {output.fd(), POLLOUT, 0};
    const int wait =
        static_cast<int>(std::max<int64_t>(absl::ToInt64Milliseconds(end - absl::Now()), 0));
    const int ready = poll(&room, 1, wait);
    if (ready < 0 && errno == EINTR) continue;
    if (ready != 1 || (room.revents & POLLOUT) == 0) return false;
    // A pipe that poll(2) reports as writable accepts at least PIPE_BUF bytes, unless another
    // writer uses that room first.
    const ssize_t written = output.Write(text.substr(0, PIPE_BUF));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace verbena
