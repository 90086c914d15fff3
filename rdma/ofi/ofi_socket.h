// The TCP socket of an ofi connection: set-up, messages, and the end of the peer.
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

// Listens at `ip`; *address is what OfiConnect() takes.
absl::StatusOr<UniqueFd> OfiListen(const std::string& ip, uint16_t port, std::string* address);
// Starts to connect, from `local_ip` (empty: any); the socket is not blocking. INVALID_ARGUMENT:
// not an address. UNAVAILABLE: known at once that it cannot be reached.
absl::StatusOr<UniqueFd> OfiConnect(const std::string& address, const std::string& local_ip);
// So that a peer that is gone is noticed within about `silence` also when nothing is sent.
void WatchForSilence(int fd, absl::Duration silence);
// The local address from which packets to `host` leave. UNAVAILABLE: it has none, or no route.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& host);
// Whether the peer at the other end of `fd` has the address in `name` (a sockaddr_in or _in6, as
// bytes; any port).
bool IsAddressOfPeer(int fd, const std::string& name);

class OfiSocket {
 public:
  enum class Received : uint8_t { kMessage, kNothing, kGone, kMalformed };

  OfiSocket() = default;
  explicit OfiSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  // Sent now, or by a later Flush(). Errors show when receiving.
  void Send(const OfiMessage& message);
  void Flush();
  // kGone: *why says how it ended. kMalformed: *why says what was wrong.
  Received Receive(OfiMessage* message, absl::Status* why);
  // What was sent is still delivered.
  void Close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  std::string out_;
  OfiMessageBytes in_ = {};
  size_t in_bytes_ = 0;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_OFI_OFI_SOCKET_H_
