// Changes of a table's optimizer by a client: their order with pushes, resending, and refusals.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "proto/spec/optimizer_values.h"
#include "tests/client/fake_calls.h"

namespace verbena::test {
namespace set_optimizer_test {

using Catch::Matchers::Contains;
using Code = absl::StatusCode;
using Values = std::vector<std::pair<std::string, double>>;

constexpr uint32_t kChunks = 4;  // one in each partition

struct OptimizerCluster : FakeCluster {
  explicit OptimizerCluster(v1::Consistency consistency, const Options& options = {})
      : FakeCluster(options), table(AddTable(consistency, kChunks)) {
    v1::Optimizer momentum;
    momentum.set_name("momentum");
    *view.mutable_tables(0)->mutable_spec()->mutable_optimizer() = momentum;
    for (const auto& [name, greatest] : {std::pair("rate", 100.0), std::pair("momentum", 1.0)}) {
      v1::OptimizerValue* value = view.mutable_tables(0)->add_optimizer_values();
      value->set_name(name);
      value->set_greatest(greatest);
      value->set_below_greatest(greatest == 1);
    }
    Publish();
    Join();
  }
  CallPtr Set(const Values& values, int64_t timeout_ns = 30 * kSecond) {
    last = std::make_shared<client::OptimizerUpdate>();
    for (const auto& [name, value] : values) last->values.push_back(MakeNamedValue(name, value));
    return SetOptimizer(table, last, timeout_ns);
  }
  size_t Count(RecordType type) const { return servers[0]->Of(type).size(); }
  // The steps, or sequences, of all changes that have counted.
  std::vector<uint64_t> Sequences() const {
    std::vector<uint64_t> all;
    for (const FakeServer::Changed& c : servers[0]->changed) all.push_back(c.sequence);
    return all;
  }
  const uint32_t table;
  std::shared_ptr<client::OptimizerUpdate> last;
};

TEST_CASE("set optimizer: pushes of the step wait until the servers have the change") {
  OptimizerCluster cluster(v1::CONSISTENCY_SYNC);
  bool held = true;
  cluster.servers[0]->hold = [&](const Seen& seen) {
    return held && seen.type == RecordType::kSetOptimizer;
  };
  auto change = cluster.Set({{"rate", 0.5}});
  auto push = cluster.Push(cluster.table, cluster.Memory(cluster.table, 1));
  auto end = cluster.EndStep(cluster.table);
  cluster.RunFor(100 * kMilli);
  CHECK(cluster.Count(RecordType::kPush) == 0);
  CHECK(cluster.Count(RecordType::kEndStep) == 0);
  held = false;
  Good(&cluster, change);
  Good(&cluster, push);
  Good(&cluster, end);
  CHECK(cluster.Sequences() == std::vector<uint64_t>(kChunks, 0));
  CHECK(cluster.last->first == 0);
  CHECK(cluster.last->last == 0);
}

TEST_CASE("set optimizer: after a push to the open step it applies to the next step") {
  OptimizerCluster cluster(v1::CONSISTENCY_SYNC);
  auto push = cluster.Push(cluster.table, cluster.Memory(cluster.table, 1));
  Good(&cluster, cluster.Set({{"rate", 0.5}}));
  CHECK(cluster.Sequences() == std::vector<uint64_t>(kChunks, 1));
  Good(&cluster, cluster.EndStep(cluster.table));
  Good(&cluster, push);
  // The step before is not known committed everywhere when it is sent.
  cluster.servers[0]->hold_commits = true;
  auto end = cluster.EndStep(cluster.table);
  Good(&cluster, cluster.Set({{"momentum", 0.5}}));
  CHECK(cluster.Sequences().back() == 2);
  cluster.servers[0]->hold_commits = false;
  Good(&cluster, end);
}

TEST_CASE("set optimizer: sync: it is sent again over the next lane, before the pushes") {
  OptimizerCluster cluster(v1::CONSISTENCY_SYNC);
  // Opens the lane.
  Good(&cluster, cluster.Pull(cluster.table, cluster.Memory(cluster.table, 0)));
  cluster.servers[0]->silent = true;
  auto change = cluster.Set({{"rate", 0.5}});
  auto push = cluster.Push(cluster.table, cluster.Memory(cluster.table, 1));
  cluster.RunFor(100 * kMilli);
  cluster.servers[0]->CloseLanes("a test");
  cluster.servers[0]->silent = false;
  Good(&cluster, change);
  Good(&cluster, cluster.EndStep(cluster.table));
  Good(&cluster, push);
  const auto& seen = cluster.servers[0]->seen;
  const auto first_push = std::find_if(seen.begin(), seen.end(),
                                       [](const Seen& s) { return s.type == RecordType::kPush; });
  CHECK(std::none_of(first_push, seen.end(),
                     [](const Seen& s) { return s.type == RecordType::kSetOptimizer; }));
}

TEST_CASE("set optimizer: async: its sequences are among those of the pushes") {
  OptimizerCluster cluster(v1::CONSISTENCY_ASYNC);
  auto before = cluster.Push(cluster.table, cluster.Memory(cluster.table, 1));
  auto change = cluster.Set({{"rate", 0.5}});
  auto after = cluster.Push(cluster.table, cluster.Memory(cluster.table, 1));
  for (const auto& call : {before, change, after}) Good(&cluster, call);
  CHECK(cluster.Sequences() == std::vector<uint64_t>(kChunks, 2));
}

TEST_CASE("set optimizer: async: a request whose call is over only settles its sequence") {
  OptimizerCluster cluster(v1::CONSISTENCY_ASYNC);
  // Opens the lane.
  Good(&cluster, cluster.Pull(cluster.table, cluster.Memory(cluster.table, 0)));
  cluster.servers[0]->silent = true;
  auto change = cluster.Set({{"rate", 0.5}}, 300 * kMilli);
  REQUIRE(cluster.Wait(change));
  CHECK(change->status.code() == Code::kDeadlineExceeded);
  cluster.servers[0]->CloseLanes("a test");
  cluster.servers[0]->silent = false;
  Good(&cluster, cluster.Push(cluster.table, cluster.Memory(cluster.table, 1)));
  // Those that came before the lane was closed count, and no others.
  CHECK(cluster.servers[0]->changed.size() <= kChunks);
}

TEST_CASE("set optimizer: groups that are refused temporarily are sent again") {
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  OptimizerCluster cluster(consistency);
  int refusals = 3;
  cluster.servers[0]->refuse = [&](const Seen& seen) -> std::optional<ReplyStatus> {
    if (seen.type != RecordType::kSetOptimizer || refusals == 0) return std::nullopt;
    --refusals;
    return ReplyStatus::kNotReady;
  };
  Good(&cluster, cluster.Set({{"rate", 0.5}}));
  CHECK(refusals == 0);
  CHECK(cluster.servers[0]->changed.size() == kChunks);
  Good(&cluster, cluster.EndStep(cluster.table));
}

// As by servers of another version than the coordinator's.
TEST_CASE("regression: pushes go on after a change of the optimizer that a server refuses") {
  OptimizerCluster cluster(v1::CONSISTENCY_ASYNC);
  cluster.servers[0]->refuse = [&](const Seen& seen) -> std::optional<ReplyStatus> {
    const bool values = seen.type == RecordType::kSetOptimizer && seen.value != 0;
    return values ? std::optional(ReplyStatus::kOutOfRange) : std::nullopt;
  };
  auto change = cluster.Set({{"rate", 0.5}});
  auto push = cluster.Push(cluster.table, cluster.Memory(cluster.table, 1), kSecond);
  REQUIRE(cluster.Wait(change));
  CHECK(change->status.code() == Code::kInternal);
  Good(&cluster, push);
  CHECK(cluster.servers[0]->changed.empty());
}

TEST_CASE("set optimizer: values that the optimizer does not have are refused at once") {
  OptimizerCluster cluster(v1::CONSISTENCY_ASYNC);
  const auto refused = [&](const Values& values, const std::string& what) {
    auto call = cluster.Set(values);
    REQUIRE(call->done);
    CHECK(call->status.code() == Code::kInvalidArgument);
    CHECK_THAT(std::string(call->status.message()), Contains(what));
  };
  refused({{"beta1", 0.5}},
          "there is no value \"beta1\" to change; allowed: \"rate\" [0, 100], "
          "\"momentum\" [0, 1) in f32");
  refused({{"momentum", 1}}, "value \"momentum\" is 1; allowed: [0, 1) in f32");
  refused({{"rate", -1}}, "optimizer \"momentum\" of table 'weights': value \"rate\" is -1");
  refused({{"rate", 1}, {"rate", 2}}, "given twice");
  refused({}, "0 values are given");
  cluster.RunFor(100 * kMilli);
  CHECK(cluster.Count(RecordType::kSetOptimizer) == 0);
}

TEST_CASE(
    "set optimizer: an observer may send it, and a server refuses a token without write access") {
  FakeCluster::Options options;
  options.observer = true;
  OptimizerCluster cluster(v1::CONSISTENCY_ASYNC, options);
  Good(&cluster, cluster.Set({{"rate", 0.5}}));
  CHECK(cluster.Sequences() == std::vector<uint64_t>(kChunks, 0));
  cluster.servers[0]->refuse = [](const Seen&) { return ReplyStatus::kPermissionDenied; };
  auto refused = cluster.Set({{"rate", 0.5}});
  REQUIRE(cluster.Wait(refused));
  CHECK(refused->status.code() == Code::kPermissionDenied);
}

// A server takes a later change of the same client for the last one.
TEST_CASE("regression: an observer's change waits until the one before it is answered") {
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  FakeCluster::Options options;
  options.observer = true;
  OptimizerCluster cluster(consistency, options);
  bool refuses = true;
  cluster.servers[0]->refuse = [&](const Seen& seen) -> std::optional<ReplyStatus> {
    const bool first = seen.type == RecordType::kSetOptimizer && std::exchange(refuses, false);
    return first ? std::optional(ReplyStatus::kNotReady) : std::nullopt;
  };
  auto first = cluster.Set({{"rate", 0.5}});
  auto second = cluster.Set({{"rate", 0.25}});
  Good(&cluster, first);
  Good(&cluster, second);
  const auto& changed = cluster.servers[0]->changed;
  REQUIRE(changed.size() == 2 * kChunks);
  for (uint32_t i = 0; i < 2 * kChunks; ++i) {
    CHECK(changed[i].value.value == (i < kChunks ? 0.5 : 0.25));
  }
}

}  // namespace set_optimizer_test
}  // namespace verbena::test
