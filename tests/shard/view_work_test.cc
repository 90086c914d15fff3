// What a shard does for a view is in proportion to what the view changes: work is counted, not
// time.
#include <catch2/catch.hpp>

#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace {

struct ManyTables : Fixture {
  static FixtureOptions Options() {
    FixtureOptions options;
    options.partitions = 16;
    return options;
  }
  ManyTables() : Fixture(Options()) {
    for (uint32_t i = 1; i <= 100; ++i) {
      *view.add_tables() = MakeTable(kTable + i, "table" + std::to_string(i));
    }
    REQUIRE(Apply().ok());
  }
  // By a view that has whatever was changed since the last one.
  uint64_t PlacedByNext() {
    const uint64_t before = engine->counters().tables_placed;
    applied = Apply();
    return engine->counters().tables_placed - before;
  }
};

TEST_CASE("regression: a view places the tables that it changes, and no others") {
  ManyTables f;
  CHECK(f.PlacedByNext() == 0);
  f.Join(3000, -1);
  CHECK(f.PlacedByNext() == 0);
  *f.view.add_tables() = f.MakeTable(kTable + 200, "one more");
  CHECK(f.PlacedByNext() == 1);
  f.view.mutable_tables(5)->add_lost_partitions(3);
  CHECK(f.PlacedByNext() == 1);
  f.view.mutable_tables(5)->clear_lost_partitions();
  CHECK(f.PlacedByNext() == 1);
  f.view.mutable_tables()->DeleteSubrange(7, 1);
  CHECK(f.PlacedByNext() == 0);
  CHECK(f.engine->tables().size() == 101);
  // A partition that moves concerns all of them.
  f.view.mutable_partitions(2)->set_epoch(2);
  f.view.mutable_partitions(2)->set_primary(kServer + 1);
  CHECK(f.PlacedByNext() == 101);
}

TEST_CASE("regression: a table that does not fit takes no memory, also for a moment") {
  ManyTables f;
  f.allocator.limit = f.allocator.used + 64;
  *f.view.add_tables() = f.MakeTable(kTable + 200, "large");
  const uint64_t asked = f.allocator.asked;
  CHECK(f.PlacedByNext() == 1);
  CHECK(f.allocator.asked == asked);
  CHECK(absl::IsResourceExhausted(f.applied));
  // Later views say the same, and look at nothing.
  for (int i = 0; i < 3; ++i) {
    CHECK(f.PlacedByNext() == 0);
    CHECK(absl::IsResourceExhausted(f.applied));
  }
  CHECK(f.allocator.asked == asked);
  // It is served as soon as a view comes when there is memory.
  f.view.mutable_tables()->DeleteSubrange(3, 1);
  CHECK(f.PlacedByNext() == 1);
  CHECK(f.applied.ok());
  CHECK(f.allocator.asked > asked);
}

}  // namespace
}  // namespace verbena::shard
