// The device's and the system's limits: requests beyond them are refused with the numbers.
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <iostream>

#include "absl/time/clock.h"
#include "tests/rdma/transport_conformance.h"
#include "tests/rdma/verbs_fixture.h"

namespace verbena::rdma {
namespace {

bool Says(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

TEST_CASE("more work requests than the device has are refused, with both numbers") {
  const auto endpoint = NewTestEndpoint();
  const auto created = endpoint->Create({10'000'000, 16});
  INFO(created.status());
  CHECK(created.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Says(created.status(), "15000032"));  // the sum with binds and unsignaled ones
  CHECK((Says(created.status(), "(max_cqe)") || Says(created.status(), "(max_qp_wr)")));
  CHECK(endpoint->Create({16, 16}).ok());  // nothing is left of it
}

TEST_CASE("connections share completion queues without ever overrunning one") {
  // Each needs a large part of a completion queue; all of it is used.
  Stage stage(VerbsUnderTest());
  std::vector<std::unique_ptr<Pair>> pairs;
  for (int i = 0; i < 4; ++i) {
    pairs.push_back(std::make_unique<Pair>(
        &stage, Pair::Options{{1500, 64, 1}, {64, 1500, 2}, 0, 1500, 65536}));
    REQUIRE(pairs.back()->established);
  }
  // Nobody polls meanwhile: every completion stays in its queue.
  for (const auto& pair : pairs) {
    for (uint32_t i = 0; i < 1500; ++i) REQUIRE(pair->Push(0, 8, i, i).ok());
    CHECK(pair->Push(0, 8, 0).code() == absl::StatusCode::kResourceExhausted);
  }
  CHECK(stage.Until([&] {
    for (const auto& pair : pairs) {
      if (pair->server.Immediates(pair->s).size() != 1500) return false;
      if (pair->client.Sends(pair->c).size() != 1500) return false;
    }
    return true;
  }));
  for (const auto& pair : pairs) {
    CHECK(pair->client.Count(ConnectionEvent::Kind::kLost, pair->c) == 0);
  }
}

TEST_CASE("a write larger than the device's maximum is refused, with both numbers") {
  // rxe sends 8 MiB at most.
  Stage stage(VerbsUnderTest());
  Pair pair(&stage, {{16, 16, 1}, {16, 16, 2}, 0, 4, size_t{16} << 20});
  REQUIRE(pair.established);
  const absl::Status status = pair.Push(0, 9 << 20, 1);
  INFO(status);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Says(status, "max_msg_sz"));
  CHECK(Says(status, "9437184"));
  CHECK(pair.Push(0, 4096, 1).ok());
}

TEST_CASE("memory is registered in pieces of the largest region, and used across them") {
  VerbsOptions options = TestVerbsOptions();
  options.max_registration = 65536;
  Stage stage(VerbsUnderTest(options));
  Pair pair(&stage, {{16, 16, 1}, {16, 16, 2}, 0, 4, 65536});
  REQUIRE(pair.established);
  const auto large = TestBlock(1 << 20);
  FillPattern(*large, 65536 - 100, 200, 4);
  const Segment segment = {large->data() + 65536 - 100, 200, large.get()};
  WriteRequest write;
  write.segments = absl::MakeConstSpan(&segment, 1);
  write.remote = pair.At(0);
  write.immediate = 1;
  REQUIRE(pair.client.endpoint->PostWrite(pair.c, write).ok());
  REQUIRE(stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
  CHECK(std::equal(large->data() + 65436, large->data() + 65636, pair.server_block->data()));
  // A window cannot span two regions.
  const auto exposed = pair.client.endpoint->Expose(pair.c, large, 0, 1 << 20);
  INFO(exposed.status());
  CHECK(exposed.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Says(exposed.status(), "65536"));
}

// Without the right to lock any amount of memory (root has it), in a child.
void DropLockPrivilege(rlim_t bytes) {
  const rlimit limit = {bytes, bytes};
  (void)setrlimit(RLIMIT_MEMLOCK, &limit);
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  (void)syscall(SYS_capget, &header, data);
  data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  data[CAP_TO_INDEX(CAP_IPC_LOCK)].permitted &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  (void)syscall(SYS_capset, &header, data);
}

TEST_CASE("a registration beyond RLIMIT_MEMLOCK names size, device, limit and fix") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    DropLockPrivilege(8 << 20);
    auto endpoint = NewVerbsEndpoint(TestVerbsOptions());
    if (!endpoint.ok()) _exit(10);
    const absl::Status status = (*endpoint)->Register(TestBlock(64 << 20));
    std::cerr << status << "\n";
    if (status.code() != absl::StatusCode::kResourceExhausted) _exit(11);
    for (const char* text : {"67108864 bytes", "rxe", "RLIMIT_MEMLOCK in force: 8388608 bytes",
                             "ulimit -l", "LimitMEMLOCK"}) {
      if (!Says(status, text)) _exit(12);
    }
    // Smaller registrations still work.
    _exit((*endpoint)->Register(TestBlock(1 << 20)).ok() ? 0 : 13);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("verbs options out of range are refused by name, and unknown devices with a list") {
  VerbsOptions options = TestVerbsOptions();
  options.path_mtu = 1500;
  CHECK(NewVerbsEndpoint(options).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Says(NewVerbsEndpoint(options).status(), "1500"));
  options = TestVerbsOptions();
  options.device = "mlx5_7";
  const absl::Status status = NewVerbsEndpoint(options).status();
  INFO(status);
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK(Says(status, "mlx5_7"));
  CHECK(Says(status, "rxe0:1"));
  options = TestVerbsOptions();
  options.gid_index = 200;
  CHECK(Says(NewVerbsEndpoint(options).status(), "GID index 200"));
}

TEST_CASE("requested path attributes are set") {
  VerbsOptions options = TestVerbsOptions();
  options.path_mtu = 1024;
  options.traffic_class = 104;
  Stage stage(VerbsUnderTest(options));
  Pair pair(&stage, {{16, 16, 1}, {16, 16, 2}, 0, 4, 1 << 20});
  REQUIRE(pair.established);
  const uint64_t packets = HardwareCounter("sent_pkts");
  REQUIRE(pair.Push(0, 1 << 20, 1).ok());
  REQUIRE(stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
  CHECK(HardwareCounter("sent_pkts") - packets >= (1 << 20) / 1024);
  CHECK_THAT(pair.client.endpoint->settings(),
             Catch::Contains("path MTU 1024") && Catch::Contains("traffic class 104"));
}

TEST_CASE("IPv6 addresses connect as IPv4 ones do") {
  std::string why;
  VerbsOptions options = TestVerbsOptions();
  for (const VerbsPort& port : ListVerbsPorts(-1, &why)) {
    if (port.device == options.device && port.address.find(':') != std::string::npos) {
      options.address = port.address;
    }
  }
  REQUIRE_FALSE(options.address.empty());
  Stage stage(VerbsUnderTest(options));
  Pair pair(&stage, {{16, 16, 1}, {16, 16, 2}, 0, 4, 65536});
  REQUIRE(pair.established);
  REQUIRE(pair.Push(0, 65536, 1).ok());
  CHECK(stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
}

TEST_CASE("any number of blocks can be exposed at once, and unexposed before they are bound") {
  Stage stage(VerbsUnderTest());
  Pair pair(&stage, {{64, 64, 1}, {64, 100, 2}, 1, 100, 65536});
  REQUIRE(pair.established);
  std::vector<RemoteMemory> exposed;
  std::vector<std::shared_ptr<MemoryBlock>> blocks;
  for (int i = 0; i < 100; ++i) {
    blocks.push_back(TestBlock(4096));
    const auto memory = pair.server.endpoint->Expose(pair.s, blocks.back(), 0, 4096);
    INFO(memory.status());
    REQUIRE(memory.ok());
    exposed.push_back(*memory);
    if (i % 3 == 0) pair.server.endpoint->Unexpose(pair.s, *memory);
  }
  WriteRequest told;
  told.immediate = 7;
  REQUIRE(pair.server.endpoint->PostWrite(pair.s, told).ok());
  REQUIRE(stage.Until([&] { return pair.client.Immediates(pair.c).size() == 1; }));
  FillPattern(*pair.client_block, 0, 4096, 3);
  size_t written = 0;
  for (size_t i = 0; i < exposed.size(); ++i) {
    if (i % 3 == 0) continue;
    const Segment segment = {pair.client_block->data(), 4096, pair.client_block.get()};
    WriteRequest write;
    write.segments = absl::MakeConstSpan(&segment, 1);
    write.remote = exposed[i];
    write.immediate = 1;
    REQUIRE(pair.client.endpoint->PostWrite(pair.c, write).ok());
    REQUIRE(stage.Until([&] { return pair.server.Immediates(pair.s).size() == written + 1; }));
    ++written;
    CHECK(HasPattern(*blocks[i], 0, 4096, 3));
  }
  stage.Settle();
  for (size_t i = 0; i < exposed.size(); i += 3) CHECK(blocks[i].use_count() == 1);
}

TEST_CASE("a connection closed while it connects is destroyed by its deadline") {
  VerbsOptions options = TestVerbsOptions();
  options.connect_timeout = absl::Milliseconds(50);
  Party party;
  party.endpoint = NewTestEndpoint(options);
  const ConnectionId id = party.endpoint->Create({4, 4}).value();
  // An address of the device's network that no host has.
  REQUIRE(party.endpoint->Connect(id, "10.77.0.99:7", "").ok());
  party.endpoint->Close(id);
  const ConnectionId other = party.endpoint->Create({4, 4}).value();
  REQUIRE(party.endpoint->Connect(other, "10.77.0.99:7", "").ok());
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (party.Count(ConnectionEvent::Kind::kFailed, other) == 0 && absl::Now() < end) {
    party.PollEvents();
    party.Poll();
  }
  REQUIRE(party.Count(ConnectionEvent::Kind::kFailed, other) == 1);
  INFO(party.Find(ConnectionEvent::Kind::kFailed)->status);
  CHECK(Says(party.Find(ConnectionEvent::Kind::kFailed)->status, "10.77.0.99"));
  CHECK(party.Count(ConnectionEvent::Kind::kFailed, id) == 0);
}

}  // namespace
}  // namespace verbena::rdma
