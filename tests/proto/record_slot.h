// A slot of a lane as a peer may fill it, and a record to begin with.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_PROTO_RECORD_SLOT_H_
#define VERBENA_TESTS_PROTO_RECORD_SLOT_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "proto/wire/record_check.h"

namespace verbena::test {

inline constexpr RecordLimits kLimits = {7, 1234567890123, 64};

inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

// A slot of exactly the size given: a read outside it is a heap overflow that asan reports.
class Slot {
 public:
  explicit Slot(size_t bytes = 4096) : bytes_(bytes), data_(new std::byte[bytes]()) {}
  void Put(const RecordHeader& header, const std::vector<Group>& groups) {
    std::memcpy(data_.get(), &header, std::min(bytes_, sizeof(header)));
    const size_t room = bytes_ > sizeof(header) ? bytes_ - sizeof(header) : 0;
    std::memcpy(data_.get() + std::min(bytes_, sizeof(header)), groups.data(),
                std::min(room, groups.size() * sizeof(Group)));
  }
  absl::Status Check(Record* record, absl::Span<const std::byte>* payload) const {
    return CopyRecord(data_.get(), bytes_, kLimits, record, payload);
  }
  absl::Status Check() const {
    Record record;
    absl::Span<const std::byte> payload;
    return Check(&record, &payload);
  }
  std::byte* data() { return data_.get(); }

 private:
  size_t bytes_;
  std::unique_ptr<std::byte[]> data_;
};

inline RecordHeader PushHeader(uint32_t elements) {
  RecordHeader h = {};
  h.magic = kRecordMagic;
  h.version = kProtocolVersion;
  h.type = RecordType::kPush;
  h.generation = kLimits.generation;
  h.operation = 63;
  h.incarnation = kLimits.incarnation;
  h.table = 3;
  h.group_count = 1;
  h.dtype = ElementType::kF32;
  h.payload_bytes = elements * 4;
  return h;
}

inline Group GroupOf(uint32_t count) {
  Group g = {};
  g.partition = 17;
  g.index = 5;
  g.epoch = 2;
  g.sequence = 9;
  g.count = count;
  return g;
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_PROTO_RECORD_SLOT_H_
