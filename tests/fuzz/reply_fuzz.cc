// A mailbox entry, as a shard may have written it, against CheckReply(). The input is the entry.
#include "proto/wire/record_check.h"
#include "tests/fuzz/fuzz.h"

namespace verbena::fuzz {

std::vector<std::string> Seeds() {
  Reply reply = {};
  reply.magic = kReplyMagic;
  reply.generation = 7;
  reply.operation = 3;
  reply.group_count = 1;
  Reply many = reply;
  many.group_count = kMaxGroups;
  many.flags = kReplyReturnsSlot;
  many.slot = 67;
  many.status = many.group_status[119] = ReplyStatus::kUnavailable;
  return {BytesOf(reply), BytesOf(many)};
}

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena;
  const Reply reply = fuzz::Input(data, size).Take<Reply>();
  const absl::Status status = CheckReply(reply, 7, 3, 68);
  if (!status.ok()) {
    FUZZ_CHECK(!status.message().empty());
    return 0;
  }
  FUZZ_CHECK(reply.generation == 7 && reply.operation == 3);
  FUZZ_CHECK(reply.group_count >= 1 && reply.group_count <= kMaxGroups);
  FUZZ_CHECK(reply.slot < 68);
  FUZZ_CHECK(ReplyStatusName(reply.status) != "unknown");
  for (uint32_t i = 0; i < reply.group_count; ++i) {
    FUZZ_CHECK(ReplyStatusName(reply.group_status[i]) != "unknown");
  }
  return 0;
}
