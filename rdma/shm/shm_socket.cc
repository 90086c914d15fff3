#include "rdma/shm/shm_socket.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace verbena::rdma {
namespace {

constexpr std::string_view kPrefix = "verbena-shm-";
constexpr size_t kMaxFds = 4;

// The name follows a zero byte and is not terminated: unix(7), "Abstract sockets".
socklen_t FillAddress(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

absl::StatusOr<UniqueFd> NewSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ShmErrno(absl::StatusCode::kResourceExhausted, "socket");
  return fd;
}

// Distinguishes a message of zero bytes from the end of the connection; both read as 0.
bool Ended(int fd) {
  pollfd p = {fd, POLLRDHUP, 0};
  return poll(&p, 1, 0) == 1 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void TakeFds(msghdr* header, std::vector<UniqueFd>* fds) {
  for (cmsghdr* c = CMSG_FIRSTHDR(header); c != nullptr; c = CMSG_NXTHDR(header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds->emplace_back(fd);
    }
  }
}

}  // namespace

absl::Status ShmErrno(absl::StatusCode code, absl::string_view what) {
  const int error = errno;
  return absl::Status(code,
                      absl::StrCat("shm: ", what, ": ", strerror(error), " (errno ", error, ")"));
}

void ShmMessage::set_text(std::string_view text) {
  text_bytes = static_cast<uint32_t>(std::min(text.size(), sizeof(text_data)));
  std::memcpy(text_data, text.data(), text_bytes);
}

std::string ShmMessage::text() const {
  return std::string(text_data, std::min<size_t>(text_bytes, sizeof(text_data)));
}

absl::StatusOr<UniqueFd> ShmListen(std::string* address) {
  absl::StatusOr<UniqueFd> fd = NewSocket();
  if (!fd.ok()) return fd.status();
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) {
    return ShmErrno(absl::StatusCode::kInternal, "getrandom");
  }
  *address = absl::StrCat(std::string(kPrefix), getpid(), "-", absl::Hex(random, absl::kZeroPad16));
  sockaddr_un name;
  const socklen_t length = FillAddress(*address, &name);
  if (bind(fd->get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    return ShmErrno(absl::StatusCode::kResourceExhausted, absl::StrCat("bind @", *address));
  }
  if (listen(fd->get(), SOMAXCONN) != 0) {
    return ShmErrno(absl::StatusCode::kResourceExhausted, "listen");
  }
  return fd;
}

absl::StatusOr<UniqueFd> ShmConnect(const std::string& address) {
  if (address.compare(0, kPrefix.size(), kPrefix) != 0 ||
      address.size() >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm: '", address.substr(0, 100), "' is not an address of this transport"));
  }
  absl::StatusOr<UniqueFd> fd = NewSocket();
  if (!fd.ok()) return fd.status();
  sockaddr_un name;
  const socklen_t length = FillAddress(address, &name);
  if (connect(fd->get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    return ShmErrno(
        errno == EAGAIN ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
        absl::StrCat("connect @", address));
  }
  return fd;
}

absl::Status ShmCheckPeer(int fd) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ShmErrno(absl::StatusCode::kUnavailable, "SO_PEERCRED");
  }
  if (credentials.uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat("shm: process ", credentials.pid,
                                                    " runs as user ", credentials.uid,
                                                    ", this one as ", geteuid()));
  }
  return absl::OkStatus();
}

absl::Status ShmSend(int fd, const ShmMessage& message, absl::Span<const int> fds) {
  iovec piece = {const_cast<ShmMessage*>(&message), sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  if (sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return absl::OkStatus();
  switch (errno) {
    case EAGAIN:
      return ShmErrno(absl::StatusCode::kResourceExhausted, "sendmsg");
    case ENOBUFS:
    case ENOMEM:
    case ETOOMANYREFS:
      return ShmErrno(absl::StatusCode::kAborted, "sendmsg");
    default:
      return ShmErrno(absl::StatusCode::kUnavailable, "sendmsg");
  }
}

ShmReceived ShmReceive(int fd, ShmMessage* message, std::vector<UniqueFd>* fds) {
  fds->clear();
  iovec piece = {message, sizeof(*message)};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t bytes = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (bytes < 0) {
    return errno == EAGAIN || errno == EINTR ? ShmReceived::kNothing : ShmReceived::kGone;
  }
  TakeFds(&header, fds);  // also on errors: the descriptors must be closed here
  if (bytes == 0) return Ended(fd) ? ShmReceived::kGone : ShmReceived::kMalformed;
  // recvmsg(2) drops descriptors for which no number is free, and reports only this flag.
  if ((header.msg_flags & MSG_CTRUNC) != 0 && fds->size() < kMaxFds) {
    return ShmReceived::kNoDescriptors;
  }
  const bool whole =
      bytes == sizeof(*message) && (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (!whole || message->magic != kShmMagic || message->text_bytes > sizeof(message->text_data)) {
    return ShmReceived::kMalformed;
  }
  return ShmReceived::kMessage;
}

}  // namespace verbena::rdma
