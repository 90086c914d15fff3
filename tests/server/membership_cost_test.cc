// The cost of a change for a server that follows the view, counted in allocations.
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>

#include "tests/server/membership_fixture.h"

namespace {

std::atomic<uint64_t> allocations{0};

}  // namespace

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// As std::stable_sort() calls it: all that is deleted below is from malloc().
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace verbena::server {
namespace membership_cost_test {
namespace {

// Allocations of the coordinator and the server, for one table more.
uint64_t AllocationsOfChange(int tables) {
  World world;
  world.Start();
  REQUIRE(world.RunFor(1000, [&] { return world.Joined() && !world.views.empty(); }));
  const auto follow = [&] {
    REQUIRE(world.RunFor(20000, [&] {
      return world.views.back()->revision() == world.coordinator.view().revision();
    }));
    // Nobody reads the older ones.
    world.views.erase(world.views.begin(), std::prev(world.views.end()));
  };
  const auto create = [&](int table) {
    const v1::TableSpec spec =
        TestCoordinator::Spec("table" + std::to_string(table), 64, v1::CONSISTENCY_ASYNC);
    REQUIRE(world.coordinator.CreateTable(spec).ok());
  };
  for (int i = 0; i < tables; ++i) create(i);
  follow();
  // The first ones copy the view for later ones to use.
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 10; ++i) {
    create(tables + i);
    const uint64_t before = allocations.load(std::memory_order_relaxed);
    follow();
    least = std::min(least, allocations.load(std::memory_order_relaxed) - before);
  }
  return least;
}

TEST_CASE("regression: a server follows a change of a large view at the cost of a small one") {
  const uint64_t few = AllocationsOfChange(10), many = AllocationsOfChange(1000);
  INFO(few << " allocations among 10 tables, " << many << " among 1000");
  CHECK(many < few + 200);
}

}  // namespace
}  // namespace membership_cost_test
}  // namespace verbena::server
