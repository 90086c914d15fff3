// Memory blocks, and the queue of the data path.
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "rdma/base/ring_queue.h"
#include "rdma/memory/memory.h"

namespace verbena::rdma {
namespace {

bool Mentions(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

TEST_CASE("an allocated block is zeroed, writable and cannot change its size") {
  const auto block = MemoryBlock::Allocate(10'000, "gradients").value();
  REQUIRE(block->size() == 10'000);
  REQUIRE(block->allocated());
  CHECK(block->data()[9'999] == std::byte{0});
  block->data()[9'999] = std::byte{1};
  const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  CHECK((fcntl(block->fd(), F_GET_SEALS) & wanted) == wanted);
  CHECK(ftruncate(block->fd(), 0) != 0);
  CHECK(block->data()[9'999] == std::byte{1});
}

TEST_CASE("block ids are unique") {
  int memory[2] = {};
  const auto a = MemoryBlock::Register(memory, sizeof(memory)).value();
  const uint64_t first = a->id();
  const auto b = MemoryBlock::Register(memory, sizeof(memory)).value();
  CHECK(first != b->id());
  CHECK_FALSE(b->allocated());
  CHECK(b->data() == reinterpret_cast<std::byte*>(memory));
}

TEST_CASE("errors of allocation and registration have the reason") {
  const size_t huge = size_t{1} << 60;
  const absl::Status too_much = MemoryBlock::Allocate(huge, "x").status();
  CHECK(too_much.code() == absl::StatusCode::kResourceExhausted);
  CHECK(Mentions(too_much, std::to_string(huge)));
  const auto invalid = absl::StatusCode::kInvalidArgument;
  CHECK(MemoryBlock::Allocate(0, "x").status().code() == invalid);
  CHECK(MemoryBlock::Register(nullptr, 1).status().code() == invalid);
  int memory = 0;
  CHECK(MemoryBlock::Register(&memory, 0).status().code() == invalid);
}

TEST_CASE("a label may be long") { CHECK(MemoryBlock::Allocate(1, std::string(1000, 'x')).ok()); }

TEST_CASE("a ring queue keeps its order while it grows and while items are removed") {
  RingQueue<int> queue(2);
  int next = 0;
  int expected = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 7; ++i) queue.push(next++);
    for (int i = 0; i < 5; ++i) REQUIRE(queue.pop() == expected++);
  }
  REQUIRE(queue.size() == 100);
  queue.RemoveIf([](int i) { return i % 2 == 1; });
  REQUIRE(queue.size() == 50);
  for (int i = expected; i < next; i += 2) REQUIRE(queue.pop() == i);
  CHECK(queue.empty());
}

}  // namespace
}  // namespace verbena::rdma
