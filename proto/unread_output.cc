#include "proto/unread_output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/time/clock.h"

namespace verbena {

bool WriteUnlessFull(int fd, std::string_view text, absl::Duration patience) {
  const absl::Time end = absl::Now() + patience;
  while (!text.empty()) {
    pollfd room = {fd, POLLOUT, 0};
    const int wait =
        static_cast<int>(std::max<int64_t>(absl::ToInt64Milliseconds(end - absl::Now()), 0));
    const int ready = poll(&room, 1, wait);
    if (ready < 0 && errno == EINTR) continue;
    if (ready != 1 || (room.revents & POLLOUT) == 0) return false;
    // A pipe that poll(2) finds writable has room for so much at least.
    const ssize_t written = write(fd, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace verbena
