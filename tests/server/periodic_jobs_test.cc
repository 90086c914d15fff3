// Jobs that come and go under periodic checkpoints by steps.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/checkpoint/periodic_checkpoints.h"

namespace verbena::server {
namespace periodic_jobs_test {
namespace {

class ManualClock final : public Clock {
 public:
  int64_t NowNanos() const override { return now; }
  int64_t now = 1'000'000'000;
};

// A coordinator with `view`, or one that does not answer; its server has no statistics but table
// ids.
class OneCoordinator final : public ControlChannel {
 public:
  void Unary(const std::string&, const std::string& method, const google::protobuf::Message&,
             std::shared_ptr<google::protobuf::Message> response, absl::Duration,
             Done done) override {
    absl::Status status;
    if (method == "/verbena.v1.Cluster/GetView") {
      ++views;
      if (down) status = absl::UnavailableError("connection refused");
      v1::GetViewResponse answer;
      *answer.mutable_view() = view;
      response->CopyFrom(answer);
    } else if (method == "/verbena.v1.Shard/GetStatistics") {
      v1::GetStatisticsResponse answer;
      v1::ShardStatistics* shard = answer.add_shards();
      for (const v1::Table& table : view.tables()) shard->add_tables()->set_table(table.id());
      response->CopyFrom(answer);
    }
    ended_.push_back([status, done = std::move(done)]() mutable { done(status); });
  }
  bool RunOnce() override {
    auto ended = std::exchange(ended_, {});
    for (auto& done : ended) done();
    return !ended.empty();
  }
  int wake_fd() const override { return -1; }

  v1::ClusterView view;
  bool down = false;
  int views = 0;  // that were asked for

 private:
  std::vector<absl::AnyInvocable<void()>> ended_;
};

struct Fixture {
  Fixture() {
    v1::Server* server = channel.view.add_servers();
    server->set_incarnation(1);
    server->set_shards(1);
    channel.view.add_partitions()->set_primary(1);
  }
  void SetOnlyJob(const std::string& job) {
    channel.view.clear_tables();
    v1::Table* table = channel.view.add_tables();
    table->set_id(++tables);
    table->mutable_spec()->set_job(job);
    table->mutable_spec()->set_consistency(v1::CONSISTENCY_SYNC);
  }
  void Look() {
    clock.now += 1'000'000'000;
    while (saves.RunOnce() || channel.RunOnce()) {
    }
  }
  int ListedJobs() {
    v1::GetViewResponse response;
    failing.AddTo(&response);
    return response.failing_checkpoints_size();
  }

  ManualClock clock;
  OneCoordinator channel;
  FailingCheckpoints failing{&clock};
  bool active = true;
  PeriodicCheckpoints saves{
      {.every_steps = 100, .failing = &failing, .active = [this] { return active; }},
      &clock,
      &channel,
      nullptr};
  uint32_t tables = 0;
};

TEST_CASE("regression: periodic checkpoints keep nothing of jobs that have ended") {
  Fixture f;
  for (int job = 0; job < 50; ++job) {
    f.SetOnlyJob("job-" + std::to_string(job));
    f.Look();
  }
  CHECK(f.saves.jobs_kept() == 1);
}

TEST_CASE("regression: a coordinator that does not answer ends no report of failing checkpoints") {
  Fixture f;
  f.SetOnlyJob("a");
  f.Look();
  // A job that the last view does not have yet.
  f.failing.Failed("b", "/c/b", absl::UnavailableError("no space"));
  f.channel.down = true;
  f.Look();
  CHECK(f.ListedJobs() == 1);
  f.channel.down = false;
  f.SetOnlyJob("b");
  f.Look();
  CHECK(f.ListedJobs() == 1);
  f.SetOnlyJob("a");
  f.Look();
  CHECK(f.ListedJobs() == 0);
}

TEST_CASE("a standby looks for no checkpoints until it leads, and makes no last ones") {
  Fixture f;
  f.active = false;
  for (int second = 0; second < 60; ++second) f.Look();
  CHECK(f.channel.views == 0);
  CHECK(f.saves.NextTimerNanos() > f.clock.now);
  f.active = true;
  f.Look();
  f.Look();
  CHECK(f.channel.views > 0);
  f.active = false;
  const int views = f.channel.views;
  int finished = 0;
  f.saves.Finish([&] { ++finished; });
  f.Look();
  f.Look();
  CHECK(finished == 1);
  CHECK(f.channel.views == views);
}

}  // namespace
}  // namespace periodic_jobs_test
}  // namespace verbena::server
