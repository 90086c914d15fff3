#include "rdma/ofi/ofi_message.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace verbena::rdma {
namespace {

constexpr uint32_t kMagic = 0x49464f56;  // "VOFI"
constexpr uint16_t kVersion = 1;

struct Wire {
  uint32_t magic;
  uint16_t version;
  uint16_t type;
  uint32_t secret;
  uint16_t name_bytes;
  uint16_t provider_bytes;
  uint16_t text_bytes;
  uint16_t reserved[3];
  uint64_t doorbell_address;
  uint64_t doorbell_key;
  uint64_t reserved_more;
  char name[kOfiNameBytes];
  char provider[kOfiProviderBytes];
  char text[kOfiTextBytes];
};
static_assert(sizeof(Wire) == kOfiMessageBytes && std::is_trivially_copyable_v<Wire>);
static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

uint16_t Put(std::string_view from, char* to, size_t room) {
  const size_t bytes = std::min(from.size(), room);
  if (bytes > 0) std::memcpy(to, from.data(), bytes);
  return static_cast<uint16_t>(bytes);
}

absl::Status Malformed(std::string_view field, uint64_t value, std::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat("ofi: malformed message: ", std::string(field),
                                                 " is ", value,
                                                 "; allowed: ", std::string(allowed)));
}

}  // namespace

OfiMessageBytes EncodeOfiMessage(const OfiMessage& message) {
  Wire wire = {};
  wire.magic = kMagic;
  wire.version = kVersion;
  wire.type = static_cast<uint16_t>(message.type);
  wire.secret = message.secret;
  wire.doorbell_address = message.doorbell.address;
  wire.doorbell_key = message.doorbell.key;
  wire.name_bytes = Put(message.name, wire.name, sizeof(wire.name));
  wire.provider_bytes = Put(message.provider, wire.provider, sizeof(wire.provider));
  wire.text_bytes = Put(message.text, wire.text, sizeof(wire.text));
  OfiMessageBytes bytes;
  std::memcpy(bytes.data(), &wire, sizeof(wire));
  return bytes;
}

absl::StatusOr<OfiMessage> DecodeOfiMessage(std::string_view bytes) {
  Wire wire;
  if (bytes.size() != sizeof(wire)) return Malformed("its size", bytes.size(), "512 bytes");
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (wire.magic != kMagic) return Malformed("magic", wire.magic, "that of a verbena process");
  if (wire.version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("ofi: the peer speaks version ", wire.version,
                                                      ", this is version ", kVersion));
  }
  if (wire.type < static_cast<uint16_t>(OfiMessageType::kHello) ||
      wire.type > static_cast<uint16_t>(OfiMessageType::kError)) {
    return Malformed("type", wire.type, "1..4");
  }
  if (wire.name_bytes > sizeof(wire.name)) {
    return Malformed("name_bytes", wire.name_bytes, "at most 128");
  }
  if (wire.provider_bytes > sizeof(wire.provider)) {
    return Malformed("provider_bytes", wire.provider_bytes, "at most 64");
  }
  if (wire.text_bytes > sizeof(wire.text)) {
    return Malformed("text_bytes", wire.text_bytes, "at most 272");
  }
  OfiMessage message;
  message.type = static_cast<OfiMessageType>(wire.type);
  message.secret = wire.secret;
  message.doorbell = {wire.doorbell_address, wire.doorbell_key};
  message.name.assign(wire.name, wire.name_bytes);
  message.provider.assign(wire.provider, wire.provider_bytes);
  message.text.assign(wire.text, wire.text_bytes);
  if (message.type == OfiMessageType::kHello && wire.text_bytes > kMaxPrivateData) {
    return Malformed("text_bytes", wire.text_bytes, "at most 56 in a hello");
  }
  return message;
}

}  // namespace verbena::rdma
