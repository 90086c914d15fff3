// Changes of a view: whatever they are made of, undoing one leaves nothing of it, and its
// description leads from the view before to the view after.
#include "server/coordinator/view_editor.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "proto/control/view_change.h"

namespace verbena::server {
namespace {

// A view with all that an editor keeps beside it.
struct Edited {
  Edited() {
    view.add_terms()->set_id(1);
    for (int id = 0; id < 4; ++id) view.add_partitions()->set_id(static_cast<uint32_t>(id));
    editor.Index();
  }
  v1::ClusterView view;
  uint32_t ended_generation = 0;
  ViewEditor editor{&view, &ended_generation};
};

v1::Worker Member(uint64_t incarnation, int rank) {
  v1::Worker worker;
  worker.set_incarnation(incarnation);
  worker.set_rank(rank);
  return worker;
}

// Look-ups by each name find the same objects as a scan of the view.
void CheckIndex(const Edited& e) {
  for (const v1::Job& job : e.view.jobs()) {
    REQUIRE(e.editor.FindJob(job.name()) == &job);
    for (const v1::Worker& w : job.members()) REQUIRE(e.editor.JobOf(w.incarnation()) == &job);
  }
  for (const v1::Table& table : e.view.tables()) {
    REQUIRE(e.editor.FindTable(table.id()) == &table);
    REQUIRE(e.editor.FindTable(table.spec().name(), table.restoring()) == &table);
    REQUIRE(e.editor.TablesOf(table.spec().job()).at(table.id()) == &table);
  }
}

TEST_CASE("regression: a job that ends and begins again in one change is undone and described") {
  Edited e;
  e.editor.Begin();
  for (const char* name : {"a", "job", "z"}) {
    e.editor.AddJob(name);
    e.editor.EditJob(name)->set_expected_workers(2);
  }
  e.editor.AddMember("a", Member(1, 0));
  e.editor.AddMember("job", Member(2, 0));
  e.editor.AddMember("z", Member(3, 0));
  e.editor.Hold();
  e.editor.Commit();
  const std::string before = e.view.SerializeAsString();
  v1::ClusterView followed = e.view;
  e.editor.Begin();
  e.editor.RemoveMember(2);
  REQUIRE(e.editor.FindJob("job") == nullptr);
  e.editor.AddJob("job");
  e.editor.AddMember("job", Member(4, 0));
  const ViewEditor::Change change = e.editor.Describe();
  REQUIRE(ApplyViewChange(change.view, &followed));
  CHECK(followed.SerializeAsString() == e.view.SerializeAsString());
  CHECK(change.gone_members == std::vector<uint64_t>{2});
  e.editor.Undo();
  CHECK(e.view.SerializeAsString() == before);
  CheckIndex(e);
}

class RandomChanges {
 public:
  RandomChanges(Edited* e, uint32_t seed) : e_(*e), random_(seed) {}

  void Edit() {
    const std::string job = "job-" + std::to_string(Below(4));
    ViewEditor& editor = e_.editor;
    switch (Below(10)) {
      case 0:
      case 1:
        if (editor.FindJob(job) == nullptr) editor.AddJob(job);
        editor.EditJob(job)->set_expected_workers(2);
        editor.AddMember(job, Member(next_member_++, static_cast<int>(Below(4)) - 1));
        return;
      case 2:
      case 3:
        if (const v1::Job* there = editor.FindJob(job);
            there != nullptr && !there->members().empty())
          editor.RemoveMember(there->members(Below(there->members_size())).incarnation());
        return;
      case 4:
        return AddTable(job);
      case 8:
        if (const v1::Job* there = editor.FindJob(job);
            there != nullptr && !there->members().empty()) {
          v1::Worker* member =
              editor.EditMember(there->members(Below(there->members_size())).incarnation());
          member->set_admission(member->admission() + 1);
          editor.EditJob(job)->add_admissions()->set_number(member->admission());
        }
        return;
      case 5:
        if (!e_.view.tables().empty()) editor.RemoveTable(AnyTable());
        return;
      case 6:
        if (!e_.view.tables().empty()) editor.EditTable(AnyTable())->add_lost_partitions(Below(4));
        return;
      case 7:
        if (const v1::Table* table = editor.FindTable("table-0", true)) {
          if (const v1::Table* served = editor.FindTable("table-0", false)) {
            editor.RemoveTable(served->id());
          }
          editor.SetServed(table->id());
        }
        return;
      default:
        if (editor.FindJob(job) != nullptr) {
          v1::Job* edited = editor.EditJob(job);
          if (edited->has_limits()) {
            edited->clear_limits();
          } else {
            edited->mutable_limits()->set_tables(7);
          }
          editor.RemoveIfEnded(job);
        }
        editor.EditPartition(Below(4))->set_epoch(next_member_);
    }
  }

 private:
  int Below(int most) { return static_cast<int>(random_() % static_cast<uint32_t>(most)); }
  uint32_t AnyTable() { return e_.view.tables(Below(e_.view.tables_size())).id(); }
  void AddTable(const std::string& job) {
    v1::Table table;
    table.mutable_spec()->set_name("table-" + std::to_string(Below(3)));
    table.mutable_spec()->set_job(job);
    table.mutable_spec()->set_dim(8);
    table.set_restoring(Below(2) == 0);
    if (e_.editor.FindTable(table.spec().name(), table.restoring()) != nullptr) return;
    table.set_id(next_table_++);
    e_.editor.AddTable(table);
  }

  Edited& e_;
  std::mt19937 random_;
  uint64_t next_member_ = 1;
  uint32_t next_table_ = 1;
};

TEST_CASE("any change is undone without a trace, and described exactly") {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    Edited e;
    RandomChanges changes(&e, seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 50; ++round) {
      INFO("seed " << seed << ", round " << round);
      const std::string before = e.view.SerializeAsString();
      const uint32_t ended_before = e.ended_generation;
      v1::ClusterView followed = e.view;
      e.editor.Begin();
      for (uint32_t i = random() % 8 + 1; i > 0; --i) changes.Edit();
      REQUIRE(ApplyViewChange(e.editor.Describe().view, &followed));
      REQUIRE(followed.SerializeAsString() == e.view.SerializeAsString());
      CheckIndex(e);
      if (random() % 2 == 0) {
        e.editor.Hold();
        e.editor.Commit();
        continue;
      }
      e.editor.Undo();
      REQUIRE(e.view.SerializeAsString() == before);
      REQUIRE(e.ended_generation == ended_before);
      CheckIndex(e);
    }
  }
}

TEST_CASE("changes that are held are undone together, each described from the one before") {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    Edited e;
    RandomChanges changes(&e, seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 20; ++round) {
      const std::string before = e.view.SerializeAsString();
      const uint32_t ended_before = e.ended_generation;
      v1::ClusterView followed = e.view;
      for (uint32_t held = random() % 5; held > 0; --held) {
        e.editor.Begin();
        for (uint32_t i = random() % 8 + 1; i > 0; --i) changes.Edit();
        // One that its caller withdraws leaves those before it.
        if (random() % 4 == 0) {
          e.editor.Undo();
          continue;
        }
        REQUIRE(ApplyViewChange(e.editor.Describe().view, &followed));
        e.editor.Hold();
      }
      REQUIRE(followed.SerializeAsString() == e.view.SerializeAsString());
      CheckIndex(e);
      if (random() % 2 == 0) {
        e.editor.Commit();
        continue;
      }
      e.editor.UndoHeld();
      REQUIRE(e.view.SerializeAsString() == before);
      REQUIRE(e.ended_generation == ended_before);
      CheckIndex(e);
    }
  }
}

}  // namespace
}  // namespace verbena::server
