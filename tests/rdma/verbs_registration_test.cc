// Registration of memory with an RDMA device: in pieces, by several threads, given up.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "rdma/verbs/verbs_endpoint.h"
#include "tests/rdma/fake_verbs/fake_verbs.h"
#include "tests/rdma/fake_verbs/fake_world.h"

namespace verbena::rdma {
namespace {

using Kind = ConnectionEvent::Kind;
using World = FakeWorld;

TEST_CASE("a registration that takes 8 s delays no other one") {
  World world;
  Party& slow = world.stage.Add("slow");
  Party& other = world.stage.Add("other");
  const auto large = TestBlock(1 << 20);
  const auto small = TestBlock(4096);
  int during = 0;
  fake_verbs().on_registration = [&](const void* address, size_t) {
    if (address != large->data()) return;
    // As another thread's endpoint does meanwhile: the domain is shared.
    CHECK(other.endpoint->Register(small).ok());
    ++during;
  };
  CHECK(slow.endpoint->Register(large).ok());
  CHECK(other.endpoint->Register(large).ok());
  CHECK(during == 1);  // registered once
}

// A region whose pages nobody touches: they take no memory.
class Untouched {
 public:
  explicit Untouched(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(data_ != MAP_FAILED);
    block = MemoryBlock::Register(data_, bytes).value();
  }
  ~Untouched() {
    block.reset();
    munmap(data_, bytes_);
  }
  std::shared_ptr<MemoryBlock> block;

 private:
  const size_t bytes_;
  void* data_ = nullptr;
};

constexpr size_t kMiB = size_t{1} << 20;

TEST_CASE("a region of gigabytes is registered in pieces, and each chunk lies within one of them") {
  World world;
  Pair pair(&world.stage, Receives(8, 8));
  REQUIRE(pair.established);
  const Untouched region(1100 * kMiB);
  const auto& block = region.block;
  const size_t before = LiveFakeRegions();
  fake_verbs().registered_bytes.clear();
  auto steps = pair.client.endpoint->StartRegistration(block);
  REQUIRE(steps.ok());
  REQUIRE(*steps != nullptr);
  uint64_t last = 0;
  while (!(*steps)->complete()) {
    // Nobody finds it before all of it is there.
    CHECK(*pair.client.endpoint->StartRegistration(block) != nullptr);
    REQUIRE((*steps)->Step().ok());
    CHECK((*steps)->registered_bytes() > last);
    last = (*steps)->registered_bytes();
  }
  CHECK(last == block->size());
  CHECK(*pair.client.endpoint->StartRegistration(block) == nullptr);
  CHECK(LiveFakeRegions() == before + 5);
  for (const size_t bytes : fake_verbs().registered_bytes) CHECK(bytes <= 264 * kMiB);

  // Across a border of two pieces: a write, and an exposure as lanes do it.
  const auto sizes = pair.client.endpoint->exposure_pieces();
  CHECK(sizes.bytes - sizes.stride == 8 * kMiB);
  const size_t at = sizes.stride - 2048;
  FillPattern(*block, at, 4096, 3);
  const Segment segment = {block->data() + at, 4096, block.get()};
  WriteRequest write;
  write.segments = absl::MakeConstSpan(&segment, 1);
  write.remote = pair.At(0);
  write.immediate = 1;
  REQUIRE(pair.client.endpoint->PostWrite(pair.c, write).ok());
  REQUIRE(world.stage.Until([&] { return pair.server.Immediates(pair.s).size() == 1; }));
  CHECK(std::equal(block->data() + at, block->data() + at + 4096, pair.server_block->data()));
  for (size_t begin = 0; begin < block->size(); begin += sizes.stride) {
    const size_t bytes = std::min(sizes.bytes, block->size() - begin);
    CHECK(pair.client.endpoint->Expose(pair.c, block, begin, bytes).ok());
  }
  CHECK(fake_verbs().registered_bytes.size() == 5);  // nothing was registered for that
}

TEST_CASE("regression: without windows no exposure registers more than 72 MiB at once") {
  VerbsOptions options;
  options.memory_windows = false;
  World world(options);
  Pair pair(&world.stage, Receives(8, 8));
  REQUIRE(pair.established);
  const Untouched region(600 * kMiB);
  REQUIRE(pair.client.endpoint->Register(region.block).ok());
  fake_verbs().registered_bytes.clear();
  const auto sizes = pair.client.endpoint->exposure_pieces();
  CHECK(sizes.bytes - sizes.stride == 8 * kMiB);
  for (size_t begin = 0; begin < region.block->size(); begin += sizes.stride) {
    const size_t bytes = std::min(sizes.bytes, region.block->size() - begin);
    CHECK(pair.client.endpoint->Expose(pair.c, region.block, begin, bytes).ok());
  }
  CHECK(fake_verbs().registered_bytes.size() == 10);
  for (const size_t bytes : fake_verbs().registered_bytes) CHECK(bytes <= 72 * kMiB);
}

// Memory that a connection needs a registration of its own for, before anything is exposed.
struct Exposing {
  explicit Exposing(World* world) : pair(&world->stage, Receives(8, 8)) {
    REQUIRE(pair.established);
    REQUIRE(pair.client.endpoint->Register(block).ok());
    REQUIRE(pair.Push(0, 4096, 8).ok());  // registers the memory that it writes
    before = LiveFakeRegions();
    auto started = pair.client.endpoint->StartExposure(pair.c, block, 4096, 8192);
    REQUIRE(started.ok());
    steps = *std::move(started);
  }
  static VerbsOptions NoWindows() {
    VerbsOptions options;
    options.memory_windows = false;
    return options;
  }
  Pair pair;
  std::shared_ptr<MemoryBlock> block = TestBlock(1 << 20);
  size_t before = 0;
  std::unique_ptr<Registration> steps;
};

TEST_CASE("memory registered for one connection in another thread is exposed by the owner") {
  World world(Exposing::NoWindows());
  Exposing e(&world);
  REQUIRE(e.steps != nullptr);
  CHECK(LiveFakeRegions() == e.before);
  std::thread thread([&] { (void)e.steps->Step(); });
  CHECK(e.pair.Push(0, 4096, 9).ok());
  CHECK(world.stage.Until([&] { return e.pair.server.Immediates(e.pair.s).size() == 2; }));
  thread.join();
  REQUIRE(e.steps->complete());
  CHECK(e.steps->registered_bytes() == 8192);
  CHECK(LiveFakeRegions() == e.before + 1);
  const auto remote = e.pair.client.endpoint->FinishExposure(std::move(e.steps));
  REQUIRE(remote.ok());
  CHECK(remote->address == reinterpret_cast<uintptr_t>(e.block->data() + 4096));
  CHECK(LiveFakeRegions() == e.before + 1);
  SECTION("until it is taken back") { e.pair.client.endpoint->Unexpose(e.pair.c, *remote); }
  SECTION("until its connection ends") { e.pair.client.endpoint->Close(e.pair.c); }
  CHECK(LiveFakeRegions() <= e.before);
}

TEST_CASE("with windows no connection needs a registration of its own") {
  World world;
  Exposing e(&world);
  CHECK(e.steps == nullptr);
}

TEST_CASE("memory whose registration for a connection is abandoned is released") {
  World world(Exposing::NoWindows());
  Exposing e(&world);
  REQUIRE(e.steps != nullptr);
  const bool complete = GENERATE(false, true);
  if (complete) {
    REQUIRE(e.steps->Step().ok());
  }
  SECTION("given up") {
    e.steps.reset();
    CHECK(LiveFakeRegions() == e.before);
  }
  SECTION("its connection is closed first") {
    e.pair.client.endpoint->Close(e.pair.c);
    REQUIRE(e.steps->Step().ok());  // its domain is kept
    CHECK(absl::IsUnavailable(e.pair.client.endpoint->FinishExposure(std::move(e.steps)).status()));
  }
  SECTION("the endpoint is gone first") {
    e.pair.client.endpoint.reset();
    e.pair.server.endpoint.reset();
    CHECK(LiveFakeRegions() == 0);
    if (!complete) CHECK(absl::IsUnavailable(e.steps->Step()));
    e.steps.reset();
  }
  CHECK(e.block.use_count() == 1);
}

TEST_CASE("an abandoned or failed registration leaves nothing registered") {
  World world;
  Party& party = world.stage.Add("a");
  const Untouched region(600 * kMiB);
  const size_t before = LiveFakeRegions();
  auto steps = *party.endpoint->StartRegistration(region.block);
  REQUIRE(steps->Step().ok());
  CHECK(LiveFakeRegions() == before + 1);
  SECTION("given up") { steps.reset(); }
  SECTION("shared: abandoned by one, completed by the other") {
    auto other = *party.endpoint->StartRegistration(region.block);
    CHECK(other->registered_bytes() == 264 * kMiB);
    steps.reset();
    while (!other->complete()) REQUIRE(other->Step().ok());
    CHECK(LiveFakeRegions() == before + 3);
    return;
  }
  SECTION("the endpoint is gone first") {
    party.endpoint.reset();
    CHECK(LiveFakeRegions() == 0);
    CHECK(absl::IsUnavailable(steps->Step()));
    return;
  }
  CHECK(LiveFakeRegions() == before);
  CHECK(region.block.use_count() == 1);
  CHECK(party.endpoint->Register(region.block).ok());
  CHECK(LiveFakeRegions() == before + 3);
}

TEST_CASE(
    "while one thread registers, the endpoint's owner goes on, and its end waits for the step") {
  World world;
  Pair pair(&world.stage, Receives(8, 8));
  REQUIRE(pair.established);
  const auto large = TestBlock(1 << 20), small = TestBlock(4096);
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false, released = false;
  fake_verbs().on_registration = [&](const void* address, size_t) {
    if (address != large->data()) return;
    std::unique_lock<std::mutex> lock(mutex);
    reached = true;
    changed.notify_all();
    changed.wait(lock, [&] { return released; });
  };
  auto steps = *pair.client.endpoint->StartRegistration(large);
  std::thread thread([&] { (void)steps->Step(); });
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return reached; });
  }
  CHECK(pair.client.endpoint->Register(small).ok());
  CHECK(pair.Push(0, 4096, 9).ok());
  CHECK(world.stage.Until([&] { return !pair.server.Immediates(pair.s).empty(); }));
  std::atomic<bool> gone{false};
  std::thread end([&] {
    pair.client.endpoint.reset();
    pair.server.endpoint.reset();
    gone = true;
  });
  // It cannot be gone while the piece is being registered, however long this thread looks.
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  CHECK_FALSE(gone);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    released = true;
    changed.notify_all();
  }
  thread.join();
  end.join();
  steps.reset();
  CHECK(LiveFakeRegions() == 0);
}

}  // namespace
}  // namespace verbena::rdma
