// Messages of fixed size between the ends of an ofi connection, on its socket.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_RDMA_OFI_OFI_MESSAGE_H_
#define VERBENA_RDMA_OFI_OFI_MESSAGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "rdma/transport.h"

namespace verbena::rdma {

enum class OfiMessageType : uint16_t {
  kHello = 1,   // from the connecting side; text = private data
  kAccept = 2,  // the response
  kReject = 3,  // text = reason
  kError = 4,   // the connection is in error; text = reason
};

inline constexpr size_t kOfiMessageBytes = 512;
inline constexpr size_t kOfiNameBytes = 128;
inline constexpr size_t kOfiProviderBytes = 64;
inline constexpr size_t kOfiTextBytes = 272;

struct OfiMessage {
  OfiMessageType type = OfiMessageType::kHello;
  // kHello, kAccept:
  uint32_t secret = 0;    // required in writes to the sender of this message
  RemoteMemory doorbell;  // target of writes without data
  std::string name;       // of the libfabric endpoint (fi_getname(3))
  std::string provider;   // must be equal on both sides
  std::string text;
};

using OfiMessageBytes = std::array<char, kOfiMessageBytes>;

// Truncates texts to the available size; a name or provider must fit.
OfiMessageBytes EncodeOfiMessage(const OfiMessage& message);

// FAILED_PRECONDITION: the versions differ; the message has both. INVALID_ARGUMENT: malformed; the
// message has the field.
absl::StatusOr<OfiMessage> DecodeOfiMessage(std::string_view bytes);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_OFI_OFI_MESSAGE_H_
