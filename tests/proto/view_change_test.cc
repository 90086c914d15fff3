#include "proto/control/view_change.h"

#include <catch2/catch.hpp>
#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/control/view_difference.h"
#include "proto/control/view_versions.h"

namespace verbena {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr uint64_t kTerm = 0x5eed;

// Adds to the view, removes from it and changes it as a coordinator does.
class RandomView {
 public:
  explicit RandomView(uint32_t seed) : random_(seed) {
    view_.set_cluster_id("cluster");
    view_.set_revision(7);
    view_.set_term(3);
    view_.set_lease_ms(5000);
    v1::Term* term = view_.add_terms();
    term->set_number(3);
    term->set_id(kTerm);
    for (uint32_t id = 0; id < 6; ++id) view_.add_partitions()->set_id(id);
  }

  const v1::ClusterView& view() const { return view_; }

  void Change() {
    for (uint64_t i = 0, count = Below(4); i <= count; ++i) ChangeOne();
    view_.set_revision(view_.revision() + 1 + Below(3));
  }

 private:
  uint64_t Below(uint64_t bound) { return random_() % bound; }

  template <typename List>
  void RemoveAny(List* list) {
    if (!list->empty()) list->erase(list->begin() + static_cast<int>(Below(list->size())));
  }

  template <typename List>
  auto* Any(List* list) {
    return list->empty() ? nullptr : &(*list)[static_cast<int>(Below(list->size()))];
  }

  void AddServer() {
    v1::Server* server = view_.add_servers();
    server->set_incarnation(next_++);
    server->set_name(absl::StrCat("server-", next_));
  }

  void ChangeJob() {
    v1::Job* job = Any(view_.mutable_jobs());
    if (job == nullptr || Below(4) == 0) {
      job = view_.add_jobs();
      job->set_name(absl::StrCat("job-", next_++));
    }
    switch (Below(5)) {
      case 0:
        return job->add_departed_ranks(static_cast<int32_t>(Below(9)));
      case 1:
        return job->mutable_limits()->set_tables(static_cast<uint32_t>(Below(9)));
      case 2:
        return RemoveAny(job->mutable_members());
      default:
        v1::Worker* worker = job->add_members();
        worker->set_incarnation(next_++);
        worker->set_name("worker");
    }
  }

  void ChangeTable() {
    v1::Table* table = Any(view_.mutable_tables());
    if (table == nullptr || Below(2) == 0) {
      table = view_.add_tables();
      table->set_id(static_cast<uint32_t>(next_++));
      table->mutable_spec()->set_name(absl::StrCat("table-", next_));
      return;
    }
    table->add_lost_partitions(static_cast<uint32_t>(Below(6)));
    table->set_restoring(Below(2) == 0);
  }

  void ChangeOne() {
    switch (Below(8)) {
      case 0:
        return AddServer();
      case 1:
        if (v1::Server* server = Any(view_.mutable_servers()))
          server->set_state(v1::Server::SILENT);
        return;
      case 2:
        return RemoveAny(view_.mutable_servers());
      case 3:
        return RemoveAny(view_.mutable_jobs());
      case 4:
        return RemoveAny(view_.mutable_tables());
      case 5:
        return ChangeTable();
      case 6: {
        v1::Partition* partition = Any(view_.mutable_partitions());
        partition->set_configuration(next_++);
        partition->add_followers()->set_server(Below(9));
        return;
      }
      default:
        return ChangeJob();
    }
  }

  std::mt19937 random_;
  v1::ClusterView view_;
  uint64_t next_ = 1;
};

bool Equal(const Message& a, const Message& b) {
  return a.SerializeAsString() == b.SerializeAsString();
}

// Another value than before.
void Alter(const FieldDescriptor* field, Message* message) {
  const Reflection& access = *message->GetReflection();
  if (field->is_repeated()) {
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        access.AddMessage(message, field);
        return;
      case FieldDescriptor::CPPTYPE_UINT32:
        return access.AddUInt32(message, field, 3);
      case FieldDescriptor::CPPTYPE_INT32:
        return access.AddInt32(message, field, 3);
      default:
        FAIL(field->full_name() << ": this test does not know how to alter it");
    }
  }
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return access.SetString(message, field, "altered");
    case FieldDescriptor::CPPTYPE_UINT64:
      return access.SetUInt64(message, field, access.GetUInt64(*message, field) + 1);
    case FieldDescriptor::CPPTYPE_UINT32:
      return access.SetUInt32(message, field, access.GetUInt32(*message, field) + 1);
    case FieldDescriptor::CPPTYPE_INT32:
      return access.SetInt32(message, field, access.GetInt32(*message, field) + 1);
    case FieldDescriptor::CPPTYPE_BOOL:
      return access.SetBool(message, field, !access.GetBool(*message, field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return access.SetEnumValue(message, field, access.GetEnumValue(*message, field) + 1);
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      Message* inner = access.MutableMessage(message, field);
      return Alter(inner->GetDescriptor()->field(0), inner);
    }
    default:
      FAIL(field->full_name() << ": this test does not know how to alter it");
  }
}

// The change that describes altering each field of the message that `at` finds in a view gives the
// altered view.
template <typename At>
void CheckEveryField(const v1::ClusterView& view, At at, const std::set<std::string>& but = {}) {
  v1::ClusterView copy = view;
  const auto* type = at(&copy)->GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    if (but.contains(type->field(i)->name())) continue;
    INFO(type->field(i)->full_name());
    v1::ClusterView altered = view;
    Alter(type->field(i), at(&altered));
    altered.set_revision(view.revision() + 1);
    const auto change = ViewChangeOf(view, altered);
    REQUIRE(change);
    v1::ClusterView applied = view;
    REQUIRE(ApplyViewChange(*change, &applied));
    CHECK(Equal(applied, altered));
  }
}

TEST_CASE(
    "a view with its changes applied is the view that they lead to, in 2,000 random histories") {
  int described = 0, all = 0;
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    INFO("seed " << seed);
    RandomView random(seed);
    for (int step = 0; step < 12; ++step) {
      const v1::ClusterView before = random.view();
      random.Change();
      const auto change = ViewChangeOf(before, random.view());
      ++all;
      if (!change) continue;
      ++described;
      v1::ClusterView applied = before;
      REQUIRE(ApplyViewChange(*change, &applied));
      REQUIRE(Equal(applied, random.view()));
    }
  }
  // A coordinator appends, so every change can be described.
  CHECK(described == all);
}

TEST_CASE("a difference in any field of an entry is in the change") {
  RandomView random(1);
  v1::ClusterView view = random.view();
  view.add_servers()->set_incarnation(1);
  view.add_tables()->set_id(1);
  v1::Job* job = view.add_jobs();
  job->set_name("job");
  job->add_members()->set_incarnation(2);
  view.mutable_partitions(0)->add_followers()->set_server(1);
  CheckEveryField(view, [](v1::ClusterView* v) { return v->mutable_servers(0); });
  CheckEveryField(view, [](v1::ClusterView* v) { return v->mutable_jobs(0); });
  CheckEveryField(view, [](v1::ClusterView* v) { return v->mutable_jobs(0)->mutable_members(0); });
  CheckEveryField(view, [](v1::ClusterView* v) { return v->mutable_jobs(0)->mutable_limits(); });
  // These never change while a table has its id.
  CheckEveryField(view, [](v1::ClusterView* v) { return v->mutable_tables(0); },
                  {"spec", "optimizer_values", "optimizer_state"});
  // The id of a partition is its place.
  CheckEveryField(view, [](v1::ClusterView* v) { return v->mutable_partitions(0); }, {"id"});
  CheckEveryField(
      view, [](v1::ClusterView* v) { return v->mutable_partitions(0)->mutable_followers(0); });
}

TEST_CASE("a difference that no change can describe is sent as the whole view") {
  RandomView random(1);
  v1::ClusterView view = random.view();
  for (const uint64_t incarnation : {1, 2, 3}) view.add_servers()->set_incarnation(incarnation);
  SECTION("another order") {
    v1::ClusterView other = view;
    other.mutable_servers()->SwapElements(0, 1);
    CHECK_FALSE(ViewChangeOf(view, other));
  }
  SECTION("a new entry that is not the last") {
    v1::ClusterView other = view;
    other.mutable_servers(1)->set_incarnation(4);
    CHECK_FALSE(ViewChangeOf(view, other));
  }
  SECTION("another term") {
    v1::ClusterView other = view;
    other.set_term(4);
    other.add_terms()->set_id(kTerm + 1);
    CHECK_FALSE(ViewChangeOf(view, other));
  }
  SECTION("settings") {
    v1::ClusterView other = view;
    other.set_lease_ms(1);
    CHECK_FALSE(ViewChangeOf(view, other));
  }
}

TEST_CASE("a change applies only to its base") {
  RandomView random(1);
  const v1::ClusterView first = random.view();
  random.Change();
  const v1::ClusterView second = random.view();
  random.Change();
  const v1::ClusterView third = random.view();
  const v1::ViewChange one = *ViewChangeOf(first, second), two = *ViewChangeOf(second, third);
  v1::GetViewResponse both;
  both.set_changed(true);
  *both.add_changes() = one;
  *both.add_changes() = two;

  v1::ClusterView other = first;
  CHECK_FALSE(ApplyViewChange(two, &other));
  other.mutable_terms(0)->set_id(kTerm + 1);
  CHECK_FALSE(ApplyViewChange(one, &other));

  SECTION("all of them") {
    v1::ClusterView view = first;
    REQUIRE(ApplyChanges(both, &view));
    CHECK(Equal(view, third));
  }
  SECTION("those that came by another answer meanwhile are skipped") {
    v1::ClusterView view = second;
    REQUIRE(ApplyChanges(both, &view));
    CHECK(Equal(view, third));
  }
  SECTION("with one missing, the whole view has to be asked for") {
    both.mutable_changes()->DeleteSubrange(0, 1);
    v1::ClusterView view = first;
    CHECK_FALSE(ApplyChanges(both, &view));
  }
  SECTION("partitions that are not there") {
    both.mutable_changes(0)->add_partitions()->set_id(1000);
    v1::ClusterView view = first;
    CHECK_FALSE(ApplyChanges(both, &view));
  }
}

TEST_CASE("regression: versions of a view are made without copies, and never under a reader") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    RandomView random(seed);
    ViewVersions versions;
    v1::ClusterView begun = random.view();
    std::shared_ptr<const v1::ClusterView> view = versions.Replace(std::move(begun));
    // A reader that holds a version for long, and the contents that it must still have.
    std::shared_ptr<const v1::ClusterView> held;
    v1::ClusterView as_held;
    for (int i = 0; i < 200; ++i) {
      const v1::ClusterView before = random.view();
      random.Change();
      const std::optional<v1::ViewChange> change = ViewChangeOf(before, random.view());
      if (!change) {
        v1::ClusterView whole = random.view();
        view = versions.Replace(std::move(whole));
      } else {
        const v1::ViewChange changes[] = {*change};
        view = versions.Follow(*view, changes);
        REQUIRE(view != nullptr);
      }
      REQUIRE(Equal(*view, random.view()));
      if (held != nullptr) REQUIRE(Equal(*held, as_held));
      if (i % 50 == 20) {
        held = view;
        as_held = *view;
      }
      if (i % 50 == 45) held = nullptr;
    }
    // The first two, and one more while a version is held, of each whole view.
    CHECK(versions.copies() <= 12);
  }
}

// A member joins and leaves a job; each is a change of its own.
std::shared_ptr<const v1::ClusterView> JoinAndLeave(
    uint64_t incarnation, const std::shared_ptr<const v1::ClusterView>& from,
    ViewVersions* versions) {
  std::shared_ptr<const v1::ClusterView> view = from;
  for (const bool joins : {true, false}) {
    v1::ViewChange change;
    change.set_base_revision(view->revision());
    change.set_revision(view->revision() + 1);
    change.set_term_id(kTerm);
    v1::JobChange* job = change.add_jobs();
    job->mutable_job()->set_name("job");
    if (joins) {
      job->add_members()->set_incarnation(incarnation);
      job->mutable_members(0)->set_name("a worker on one of the cluster's machines");
    } else {
      job->add_removed_members(incarnation);
    }
    const v1::ViewChange changes[] = {change};
    view = versions->Follow(*view, changes);
    REQUIRE(view != nullptr);
  }
  return view;
}

TEST_CASE("regression: nothing is kept of members that have left") {
  ViewVersions versions;
  v1::ClusterView begun = RandomView(1).view();
  std::shared_ptr<const v1::ClusterView> view = versions.Replace(std::move(begun));
  uint64_t incarnation = 1;
  for (; incarnation <= 1000; ++incarnation) view = JoinAndLeave(incarnation, view, &versions);
  CHECK(view->jobs(0).members().empty());
  CHECK(versions.missed() <= 4);
  // A reader that holds a version has changes kept for it, up to a limit of their memory.
  const std::shared_ptr<const v1::ClusterView> held = view;
  for (; incarnation <= 5000; ++incarnation) view = JoinAndLeave(incarnation, view, &versions);
  CHECK(versions.missed() > 4);
  CHECK(versions.missed_bytes() <= ViewVersions::kMissedBytes);
  // A view change is a few hundred bytes.
  CHECK(versions.missed() <= ViewVersions::kMissedBytes / 256);
}

TEST_CASE("a version may outlive the object that made it") {
  RandomView random(1);
  auto versions = std::make_unique<ViewVersions>();
  v1::ClusterView begun = random.view();
  const std::shared_ptr<const v1::ClusterView> view = versions->Replace(std::move(begun));
  versions.reset();
  CHECK(Equal(*view, random.view()));
}

TEST_CASE("a difference has the names of its changes, and everything if the changes have a gap") {
  v1::ClusterView view;
  view.set_revision(7);
  v1::ViewChange changes[2];
  changes[0].set_base_revision(5);
  changes[0].set_revision(6);
  changes[0].add_tables()->set_id(3);
  changes[0].add_removed_jobs("a");
  changes[1].set_base_revision(6);
  changes[1].set_revision(7);
  changes[1].add_removed_tables(2);
  changes[1].add_jobs()->mutable_job()->set_name("b");
  const ViewDifference what = DifferenceOf(5, view, changes);
  CHECK_FALSE(what.all);
  CHECK_FALSE(what.placement);
  CHECK(what.tables == std::set<uint32_t>{2, 3});
  CHECK(what.jobs == std::set<std::string>{"a", "b"});
  CHECK(DifferenceOf(4, view, changes).all);
  CHECK(DifferenceOf(6, view, changes).all);
  CHECK(DifferenceOf(5, view, {}).all);
  view.set_revision(8);
  CHECK(DifferenceOf(5, view, changes).all);
  view.set_revision(7);
  changes[1].add_partitions()->set_id(1);
  CHECK(DifferenceOf(5, view, changes).placement);
}

}  // namespace
}  // namespace verbena
