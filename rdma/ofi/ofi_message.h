// What the two ends of an ofi connection say on its socket: messages of fixed size.
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
  kHello = 1,   // of the side that connects; text = private data
  kAccept = 2,  // its answer
  kReject = 3,  // text = why
  kError = 4,   // the connection is in error; text = why
};

inline constexpr size_t kOfiMessageBytes = 512;
inline constexpr size_t kOfiNameBytes = 128;
inline constexpr size_t kOfiProviderBytes = 64;
inline constexpr size_t kOfiTextBytes = 272;

struct OfiMessage {
  OfiMessageType type = OfiMessageType::kHello;
  // kHello, kAccept:
  uint32_t secret = 0;    // what writes to the sender of this must carry
  RemoteMemory doorbell;  // where writes without bytes go
  std::string name;       // of the libfabric endpoint (fi_getname(3))
  std::string provider;   // both sides must use the same
  std::string text;
};

using OfiMessageBytes = std::array<char, kOfiMessageBytes>;

// Texts are cut to what fits; a name or provider must fit.
OfiMessageBytes EncodeOfiMessage(const OfiMessage& message);

// FAILED_PRECONDITION: another version, says both. INVALID_ARGUMENT: malformed; names the field.
absl::StatusOr<OfiMessage> DecodeOfiMessage(std::string_view bytes);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_OFI_OFI_MESSAGE_H_
