// The Unix socket of a shm connection: fixed-size messages with descriptors.
//
// SOCK_SEQPACKET keeps each message and its descriptors together (unix(7)). Abstract names end with
// their process, so no file is left.
//
// **Thread safety**: functions are thread-safe; a socket has one owner.
#ifndef VERBENA_RDMA_SHM_SHM_SOCKET_H_
#define VERBENA_RDMA_SHM_SHM_SOCKET_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rdma/base/unique_fd.h"

namespace verbena::rdma {

enum class ShmMessageType : uint16_t {
  kHello = 1,     // from the connecting side; text = private data; fds: ring, state page, eventfd
  kAccept = 2,    // the response; the same fds
  kReject = 3,    // text = reason
  kExpose = 4,    // key, address, offset, bytes; fd: memfd
  kUnexpose = 5,  // key
  kError = 6,     // the connection is in error; text = reason
};

inline constexpr uint32_t kShmMagic = 0x4d485356;  // "VSHM"
inline constexpr uint16_t kShmVersion = 2;         // 2: memory is read in place

struct ShmMessage {
  uint32_t magic = kShmMagic;
  uint16_t version = kShmVersion;
  ShmMessageType type = ShmMessageType::kHello;
  uint32_t ring_entries = 0;
  uint32_t text_bytes = 0;
  uint64_t key = 0;
  uint64_t address = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  char text_data[192] = {};

  void set_text(std::string_view text);  // truncates to the available size
  std::string text() const;
};
static_assert(sizeof(ShmMessage) == 240 && std::is_trivially_copyable_v<ShmMessage>);

// Listens on a new abstract name. *address is the argument of ShmConnect().
absl::StatusOr<UniqueFd> ShmListen(std::string* address);
// RESOURCE_EXHAUSTED: the listener's backlog is full, retry. UNAVAILABLE: there is no listener.
// INVALID_ARGUMENT: not an address of ShmListen().
absl::StatusOr<UniqueFd> ShmConnect(const std::string& address);
// Status for the errno of a failed system call: `shm: CALL: REASON (errno N)`; `what` is CALL.
absl::Status ShmErrno(absl::StatusCode code, absl::string_view what);
// PERMISSION_DENIED unless the peer process runs as this process's user (SO_PEERCRED).
absl::Status ShmCheckPeer(int fd);
// RESOURCE_EXHAUSTED: the peer has not read earlier messages; the socket becomes writable (poll(2))
// when it has. ABORTED: the kernel has no memory, or too many descriptors of this user are in
// flight; no event reports when this ends. UNAVAILABLE: the peer is gone.
absl::Status ShmSend(int fd, const ShmMessage& message, absl::Span<const int> fds);

// kNoDescriptors: the message's descriptors were lost, because this process has no free ones.
enum class ShmReceived : uint8_t { kMessage, kNothing, kGone, kMalformed, kNoDescriptors };
ShmReceived ShmReceive(int fd, ShmMessage* message, std::vector<UniqueFd>* fds);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_SHM_SHM_SOCKET_H_
