// The TCP socket of an ofi connection: set-up, messages, and detection of the peer's end.
//
// **Thread safety**: functions are thread-safe; a socket has one owner.
#ifndef VERBENA_RDMA_OFI_OFI_SOCKET_H_
#define VERBENA_RDMA_OFI_OFI_SOCKET_H_

#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdma/base/unique_fd.h"
#include "rdma/ofi/ofi_message.h"

namespace verbena::rdma {

// Listens at `ip`; *address is the argument of OfiConnect().
absl::StatusOr<UniqueFd> OfiListen(const std::string& ip, uint16_t port, std::string* address);
// Starts to connect from `local_ip` (empty: any); the socket is nonblocking. INVALID_ARGUMENT: not
// an address. UNAVAILABLE: the address is known to be unreachable.
absl::StatusOr<UniqueFd> OfiConnect(const std::string& address, const std::string& local_ip);
// Makes a gone peer detectable within about `silence`, even without traffic.
void WatchForSilence(int fd, absl::Duration silence);
// The local address from which packets to `host` are sent. UNAVAILABLE: `host` has no address, or
// there is no route.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& host);
// Whether the peer of `fd` has the address in `name` (the bytes of a sockaddr_in or _in6; any
// port).
bool IsAddressOfPeer(int fd, const std::string& name);

class OfiSocket {
 public:
  enum class Received : uint8_t { kMessage, kNothing, kGone, kMalformed };

  OfiSocket() = default;
  explicit OfiSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  // Sends now or in a later Flush(). Receive() returns errors.
  void Send(const OfiMessage& message);
  void Flush();
  // kGone: *why has the reason of the end. kMalformed: *why has the error.
  Received Receive(OfiMessage* message, absl::Status* why);
  // Sent messages are still delivered.
  void Close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  std::string out_;
  OfiMessageBytes in_ = {};
  size_t in_bytes_ = 0;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_OFI_OFI_SOCKET_H_
