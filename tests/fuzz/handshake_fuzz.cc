// How a lane begins: the private data a worker hands over and the grant a shard writes.
#include "proto/wire/record_check.h"
#include "tests/fuzz/fuzz.h"

namespace verbena::fuzz {

std::vector<std::string> Seeds() {
  LaneHello hello = {};
  hello.token[0] = 1;
  hello.mailbox_address = 0x7f0000001000;
  hello.mailbox_key = 2;
  LaneGrant grant = {};
  grant.magic = kGrantMagic;
  grant.generation = 7;
  grant.ring_address = 0x7f0000002000;
  grant.ring_key = 3;
  return {BytesOf(hello), BytesOf(hello) + std::string(24, '\0'), BytesOf(grant)};
}

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena;
  const auto hello = ParseHello({reinterpret_cast<const char*>(data), size});
  FUZZ_CHECK(hello.ok() == (size >= sizeof(LaneHello)));
  if (hello.ok()) FUZZ_CHECK(std::memcmp(&*hello, data, sizeof(LaneHello)) == 0);

  constexpr size_t kRingBytes = 1 << 20;
  const LaneGrant grant = fuzz::Input(data, size).Take<LaneGrant>();
  if (CheckGrant(grant, 7, kRingBytes).ok()) {
    FUZZ_CHECK(grant.magic == kGrantMagic && grant.generation == 7);
    FUZZ_CHECK(grant.ring_address + kRingBytes >= grant.ring_address);
  }
  return 0;
}
