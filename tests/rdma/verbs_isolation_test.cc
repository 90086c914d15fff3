// Isolation of lanes on a real device, and a check that bytes really go by RDMA writes.
#include <catch2/catch.hpp>

#include "tests/rdma/transport_conformance.h"
#include "tests/rdma/verbs_fixture.h"

namespace verbena::rdma {
namespace {

using Kind = ConnectionEvent::Kind;

// Two workers' connections to one shard endpoint; each exposes nothing, the shard a block to each.
struct TwoLanes {
  explicit TwoLanes(bool windows, uint64_t first_domain, uint64_t second_domain) {
    VerbsOptions options = TestVerbsOptions();
    options.memory_windows = windows;
    shard.endpoint = NewTestEndpoint(options);
    worker.endpoint = NewTestEndpoint(options);
    address = shard.endpoint->Listen().value();
    Open(0, first_domain);
    Open(1, second_domain);
  }
  void Step() {
    for (Party* party : {&worker, &shard}) {
      party->PollEvents();
      party->Poll();
    }
  }
  bool Until(const std::function<bool()>& condition) {
    for (int i = 0; i < 2'000'000; ++i) {
      if (condition()) return true;
      Step();
    }
    return false;
  }
  void Open(int i, uint64_t domain) {
    c[i] = worker.endpoint->Create({16, 16, 100 + domain}).value();
    REQUIRE(worker.endpoint->Connect(c[i], address, std::string(1, static_cast<char>(i))).ok());
    const ConnectionEvent* request = nullptr;
    REQUIRE(Until([&] {
      for (const ConnectionEvent& e : shard.events) {
        if (e.kind == Kind::kRequest && e.private_data[0] == i) request = &e;
      }
      return request != nullptr;
    }));
    s[i] = request->connection;
    REQUIRE(shard.endpoint->Prepare(s[i], {16, 16, domain}).ok());
    block[i] = TestBlock(8192);
    memory[i] = shard.endpoint->Expose(s[i], block[i], 0, 8192).value();
    REQUIRE(shard.endpoint->PostReceives(s[i], 8).ok());
    REQUIRE(shard.endpoint->Accept(s[i]).ok());
    REQUIRE(Until([&] {
      return worker.Count(Kind::kEstablished, c[i]) == 1 &&
             shard.Count(Kind::kEstablished, s[i]) == 1;
    }));
  }
  absl::Status Write(int through, const RemoteMemory& remote) {
    const Segment segment = {source->data(), 4096, source.get()};
    WriteRequest request;
    request.segments = absl::MakeConstSpan(&segment, 1);
    request.remote = remote;
    request.immediate = 5;
    return worker.endpoint->PostWrite(c[through], request);
  }

  Party worker, shard;
  std::string address;
  ConnectionId c[2], s[2];
  std::shared_ptr<MemoryBlock> block[2];
  std::shared_ptr<MemoryBlock> source = TestBlock(65536);
  RemoteMemory memory[2];
};

bool Untouched(const MemoryBlock& block) {
  for (size_t i = 0; i < block.size(); ++i) {
    if (block.data()[i] != std::byte{0}) return false;
  }
  return true;
}

void ExpectRefused(TwoLanes* lanes) {
  FillPattern(*lanes->source, 0, 4096, 3);
  REQUIRE(lanes->Write(1, lanes->memory[0]).ok());
  REQUIRE(lanes->Until([&] {
    return lanes->worker.Count(Kind::kLost, lanes->c[1]) == 1 &&
           lanes->shard.Count(Kind::kLost, lanes->s[1]) == 1;
  }));
  const absl::Status why = lanes->worker.Find(Kind::kLost)->status;
  INFO(why);
  CHECK(std::string(why.message()).find("remote access error") != std::string::npos);
  CHECK(std::string(why.message()).find("QPN") != std::string::npos);
  CHECK(std::string(why.message()).find("GID") != std::string::npos);
  CHECK(Untouched(*lanes->block[0]));
  CHECK(lanes->shard.Immediates(lanes->s[1]).empty());
  // The lane whose key was misused does not notice.
  REQUIRE(lanes->Write(0, lanes->memory[0]).ok());
  REQUIRE(lanes->Until([&] { return lanes->shard.Immediates(lanes->s[0]).size() == 1; }));
  CHECK(HasPattern(*lanes->block[0], 0, 4096, 3));
}

TEST_CASE("the device refuses a slot written with another lane's key: same job") {
  TwoLanes lanes(true, 7, 7);
  ExpectRefused(&lanes);
}

TEST_CASE("the device refuses a slot written with another lane's key: other job") {
  TwoLanes lanes(true, 7, 8);
  ExpectRefused(&lanes);
}

TEST_CASE("without memory windows the device refuses the key of another job's lane") {
  TwoLanes lanes(false, 7, 8);
  ExpectRefused(&lanes);
}

TEST_CASE("memory taken back while a write to it is in progress is not written") {
  TwoLanes lanes(true, 7, 7);
  const auto region = TestBlock(1 << 20);
  const RemoteMemory memory = lanes.worker.endpoint->Expose(lanes.c[0], region, 0, 1 << 20).value();
  // Signals the shard, which then writes, before and after the memory is taken back.
  WriteRequest told;
  told.immediate = 1;
  REQUIRE(lanes.worker.endpoint->PostWrite(lanes.c[0], told).ok());
  REQUIRE(lanes.Until([&] { return lanes.shard.Immediates(lanes.s[0]).size() == 1; }));
  const auto source = TestBlock(1 << 20);
  FillPattern(*source, 0, 1 << 20, 9);
  const Segment segment = {source->data(), 1 << 20, source.get()};
  WriteRequest write;
  write.segments = absl::MakeConstSpan(&segment, 1);
  write.remote = memory;
  for (int i = 0; i < 6; ++i) {
    REQUIRE(lanes.shard.endpoint->PostWrite(lanes.s[0], write).ok());
    if (i != 3) continue;
    lanes.worker.endpoint->Unexpose(lanes.c[0], memory);
    std::fill(region->data(), region->data() + region->size(), std::byte{0});
  }
  REQUIRE(lanes.Until([&] {
    return lanes.shard.Count(Kind::kLost, lanes.s[0]) == 1 &&
           lanes.worker.Count(Kind::kLost, lanes.c[0]) == 1;
  }));
  CHECK(Untouched(*region));
  // The other lane goes on.
  REQUIRE(lanes.Write(1, lanes.memory[1]).ok());
  REQUIRE(lanes.Until([&] { return lanes.shard.Immediates(lanes.s[1]).size() == 1; }));
}

TEST_CASE("the device's counters show RDMA writes, not sends") {
  TwoLanes lanes(true, 7, 7);
  const auto source = TestBlock(1 << 20);
  const auto target = TestBlock(1 << 20);
  const RemoteMemory memory = lanes.shard.endpoint->Expose(lanes.s[0], target, 0, 1 << 20).value();
  WriteRequest told;
  told.immediate = 1;
  REQUIRE(lanes.worker.endpoint->PostReceives(lanes.c[0], 1).ok());
  REQUIRE(lanes.shard.endpoint->PostWrite(lanes.s[0], told).ok());
  REQUIRE(lanes.Until([&] { return lanes.worker.Immediates(lanes.c[0]).size() == 1; }));
  const uint64_t packets = HardwareCounter("sent_pkts");
  const uint64_t sends = HardwareCounter("rdma_sends");
  constexpr int kWrites = 8;
  for (int i = 0; i < kWrites; ++i) {
    const Segment segment = {source->data(), 1 << 20, source.get()};
    WriteRequest write;
    write.segments = absl::MakeConstSpan(&segment, 1);
    write.remote = memory;
    write.immediate = static_cast<uint32_t>(i);
    REQUIRE(lanes.worker.endpoint->PostWrite(lanes.c[0], write).ok());
  }
  REQUIRE(lanes.Until([&] { return lanes.shard.Immediates(lanes.s[0]).size() == kWrites; }));
  CHECK(HardwareCounter("sent_pkts") - packets >= kWrites * (1 << 20) / 4096);
  CHECK(HardwareCounter("rdma_sends") == sends);
}

}  // namespace
}  // namespace verbena::rdma
