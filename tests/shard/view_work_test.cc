// A shard's work for a view is in proportion to the view's changes: work is counted, not time.
#include <catch2/catch.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/control/view_change.h"
#include "proto/control/view_difference.h"
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

// The state of an engine that is visible from outside.
std::string State(const Engine& engine) {
  std::string state;
  for (const TableStatistics& table : engine.tables()) {
    absl::StrAppend(&state, table.id, " ", table.parameter_bytes, " ", table.step, " ",
                    table.restoring, "\n");
  }
  for (const JobStatistics& job : engine.jobs()) {
    absl::StrAppend(&state, job.name, " ", job.memory_bytes, " ", job.memory_limit, "\n");
  }
  return state;
}

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

TEST_CASE("regression: a view with known changes updates only the tables that they name") {
  ManyTables f;
  v1::ClusterView before = f.view;
  const auto followed_by_next = [&] {
    f.view.set_revision(f.view.revision() + 1);
    const v1::ViewChange changes[] = {*ViewChangeOf(before, f.view)};
    const uint64_t followed = f.engine->counters().tables_followed;
    f.applied = f.engine->ApplyView(f.view, changes);
    before = f.view;
    return f.engine->counters().tables_followed - followed;
  };
  f.view.add_terms()->set_id(1);
  before.add_terms()->set_id(1);
  CHECK(followed_by_next() == 0);
  *f.view.add_tables() = f.MakeTable(kTable + 200, "one more");
  CHECK(followed_by_next() == 1);
  f.view.mutable_tables()->DeleteSubrange(7, 1);
  CHECK(followed_by_next() == 0);
  CHECK(f.engine->tables().size() == 101);
  // Its job's workers concern a job's tables, and no others; so do observers that leave, which may
  // have waited there.
  v1::Job* other = f.view.add_jobs();
  other->set_name("other");
  other->set_generation(1);
  other->set_expected_workers(1);
  other->add_members()->set_incarnation(5000);
  CHECK(followed_by_next() == 0);
  f.Join(3000, -1);
  CHECK(followed_by_next() == 0);
  f.view.mutable_jobs(0)->mutable_members()->RemoveLast();
  CHECK(followed_by_next() == 101);
  f.Join(3001, 2);
  CHECK(followed_by_next() == 101);
  f.view.mutable_partitions(2)->set_configuration(2);
  CHECK(followed_by_next() == 0);
  f.view.mutable_partitions(2)->set_configuration(3);
  f.view.mutable_partitions(2)->set_epoch(2);
  CHECK(followed_by_next() == 101);
  // A view without changes that lead to it may have anything.
  f.view.set_revision(f.view.revision() + 1);
  const uint64_t followed = f.engine->counters().tables_followed;
  REQUIRE(f.engine->ApplyView(f.view).ok());
  CHECK(f.engine->counters().tables_followed - followed == 101);
}

TEST_CASE("a shard has the same state after changes as after whole views") {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](uint32_t bound) { return static_cast<int>(random() % bound); };
    ManyTables whole, changed;
    whole.view.add_terms()->set_id(1);
    changed.view = whole.view;
    uint32_t next_table = kTable + 500;
    uint64_t next_member = 9000;
    std::vector<v1::ViewChange> changes;
    for (int i = 0; i < 100; ++i) {
      v1::ClusterView& view = whole.view;
      const v1::ClusterView before = view;
      v1::Table* table =
          view.tables().empty() ? nullptr : view.mutable_tables(below(view.tables_size()));
      switch (below(9)) {
        case 0:
        case 1: {
          v1::Table made = whole.MakeTable(next_table, "t" + std::to_string(next_table));
          if (below(2) == 0) made.mutable_spec()->set_job("job" + std::to_string(below(3)));
          made.set_restoring(below(3) == 0);
          ++next_table;
          *view.add_tables() = made;
          break;
        }
        case 2:
          if (table != nullptr) {
            view.mutable_tables()->DeleteSubrange(below(view.tables_size()), 1);
          }
          break;
        case 3:
          if (table != nullptr) table->set_restoring(false);
          break;
        case 4:
          if (table != nullptr && table->lost_partitions().empty()) {
            table->add_lost_partitions(below(16));
          } else if (table != nullptr) {
            table->clear_lost_partitions();
          }
          break;
        case 5: {
          v1::Partition* p = view.mutable_partitions(below(16));
          p->set_configuration(p->configuration() + 1);
          p->set_epoch(p->epoch() + 1 + below(2));
          p->set_primary(kServer + below(2));
          break;
        }
        case 6: {
          const std::string name = "job" + std::to_string(below(3));
          if (view.jobs_size() > 1 && below(3) == 0) {
            view.mutable_jobs()->DeleteSubrange(1 + below(view.jobs_size() - 1), 1);
          } else if (FindJobNamed(name, view) == nullptr) {
            v1::Job* job = view.add_jobs();
            job->set_name(name);
            job->set_generation(++next_member);
            job->set_expected_workers(1);
          }
          break;
        }
        case 7: {
          v1::Job* job = view.mutable_jobs(below(view.jobs_size()));
          v1::Worker* member = job->add_members();
          member->set_incarnation(++next_member);
          member->set_rank(-1);
          break;
        }
        default: {
          v1::Job* job = view.mutable_jobs(below(view.jobs_size()));
          job->mutable_limits()->set_memory_bytes(below(2) * 1000000);
          if (below(2) == 0 && job->members_size() > 2) job->mutable_members()->RemoveLast();
          if (below(4) == 0) job->set_generation(++next_member);
        }
      }
      view.set_revision(view.revision() + 1);
      const std::optional<v1::ViewChange> change = ViewChangeOf(before, view);
      REQUIRE(change);
      changes.push_back(*change);
      // Several may come at once.
      if (below(3) == 0) continue;
      const absl::Status by_view = whole.engine->ApplyView(view);
      const absl::Status by_changes = changed.engine->ApplyView(view, changes);
      changes.clear();
      REQUIRE(by_view == by_changes);
      std::vector<Event> a, b;
      whole.engine->TakeEvents(&a);
      changed.engine->TakeEvents(&b);
      REQUIRE(a.size() == b.size());
      REQUIRE(State(*whole.engine) == State(*changed.engine));
      REQUIRE(whole.allocator.used == changed.allocator.used);
    }
  }
}

TEST_CASE("regression: a table that does not fit takes no memory, not even for a moment") {
  ManyTables f;
  f.allocator.limit = f.allocator.used + 64;
  *f.view.add_tables() = f.MakeTable(kTable + 200, "large");
  const uint64_t asked = f.allocator.asked;
  CHECK(f.PlacedByNext() == 1);
  CHECK(f.allocator.asked == asked);
  CHECK(absl::IsResourceExhausted(f.applied));
  // Later views have the same error, and follow no table.
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

TEST_CASE("regression: a table without memory is served once memory is free, without a new view") {
  ManyTables f;
  f.allocator.limit = f.allocator.used + 64;
  *f.view.add_tables() = f.MakeTable(kTable + 200, "large");
  // A partition that moves with the same view has moved when it is tried again.
  f.view.mutable_partitions(2)->set_epoch(2);
  CHECK(absl::IsResourceExhausted(f.Apply()));
  CHECK(f.engine->HasStarved());
  const uint64_t asked = f.allocator.asked, placed = f.engine->counters().tables_placed;
  absl::Status applied;
  CHECK_FALSE(f.engine->RetryStarved(f.view, &applied));
  CHECK(f.allocator.asked == asked);
  CHECK(f.engine->counters().tables_placed == placed);
  f.allocator.limit = UINT64_MAX;
  CHECK(f.engine->RetryStarved(f.view, &applied));
  CHECK(applied.ok());
  CHECK(f.engine->counters().tables_placed == placed + 1);
  CHECK_FALSE(f.engine->HasStarved());
  CHECK_FALSE(f.engine->RetryStarved(f.view, &applied));
}

// A job that the last view ended is gone, too: nothing may look at it.
TEST_CASE("regression: a retry for memory updates no job that the last view changed") {
  ManyTables f;
  f.allocator.limit = f.allocator.used + 64;
  *f.view.add_tables() = f.MakeTable(kTable + 200, "large");
  v1::Job* const other = f.view.add_jobs();
  *other = *f.job();
  other->set_name("other");
  CHECK(absl::IsResourceExhausted(f.Apply()));
  f.view.mutable_jobs()->RemoveLast();
  f.Depart(0);
  CHECK(absl::IsResourceExhausted(f.applied));
  const uint64_t followed = f.engine->counters().tables_followed;
  absl::Status applied;
  CHECK_FALSE(f.engine->RetryStarved(f.view, &applied));
  CHECK(f.engine->counters().tables_followed == followed);
}

}  // namespace
}  // namespace verbena::shard
