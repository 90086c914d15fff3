#include "worker/train/channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace verbena::worker {
namespace {

// The rest of the field stays zero, so the text always ends.
template <size_t n>
void Copy(std::string_view from, char (&to)[n]) {
  std::memset(to, 0, n);
  std::memcpy(to, from.data(), std::min(from.size(), n - 1));
}

}  // namespace

void ChannelMessage::SetText(std::string_view value) { Copy(value, text); }
void ChannelMessage::SetTransport(std::string_view value) { Copy(value, transport); }

absl::Status SendMessage(int fd, const ChannelMessage& message) {
  for (;;) {
    const ssize_t n = send(fd, &message, sizeof message, MSG_NOSIGNAL);
    if (n == static_cast<ssize_t>(sizeof message)) return absl::OkStatus();
    if (n < 0 && errno == EINTR) continue;
    return absl::UnavailableError(
        absl::StrCat("the other end of the channel is gone: ", std::strerror(errno)));
  }
}

absl::StatusOr<ChannelMessage> ReceiveMessage(int fd) {
  for (;;) {
    ChannelMessage message;
    const ssize_t n = recv(fd, &message, sizeof message, MSG_TRUNC);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError("the other end of the channel is gone");
    if (n != static_cast<ssize_t>(sizeof message)) {
      return absl::InternalError(absl::StrCat("a message of ", n, " bytes on the channel"));
    }
    // Terminates the texts, whatever the peer sent.
    message.text[sizeof message.text - 1] = '\0';
    message.transport[sizeof message.transport - 1] = '\0';
    return message;
  }
}

}  // namespace verbena::worker
