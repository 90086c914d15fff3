// Observers that read from any replica while servers are killed and stopped and partitions move.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/cluster.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

constexpr uint64_t kElements = 1 << 20, kChunk = 1 << 16;  // 16 chunks of 256 KiB
constexpr absl::Duration kStaleness = absl::Seconds(2);
constexpr int kLeaseMs = 2000;

// A worker whose step s makes every element s, and observers that read them.
class Reads {
 public:
  Reads(const ProcessCluster& cluster, v1::Consistency consistency, int readers)
      : sync_(consistency == v1::CONSISTENCY_SYNC) {
    v1::TableSpec spec;
    spec.set_name("weights");
    spec.set_job("trainer");
    spec.add_shape(kElements);
    spec.set_consistency(consistency);
    spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    writer_ = Connect(cluster, false);
    auto table = writer_->CreateTable(spec);
    REQUIRE(table.ok());
    table_ = *std::move(table);
    for (int i = 0; i < readers; ++i) clients_.push_back(Connect(cluster, true));
    threads_.emplace_back([this] { Write(); });
    for (int i = 0; i < readers; ++i) threads_.emplace_back([this, i] { Read(i); });
  }
  ~Reads() { Stop(); }

  // More pulls are answered by followers, and steps go on.
  void AwaitMore() {
    const uint64_t answered = Answered(), steps = steps_;
    const bool more = Eventually(
        [&] { return (Answered() > answered + 64 && steps_ > steps + 2) || !Error().empty(); },
        absl::Seconds(60));
    CAPTURE(Answered() - answered, steps_ - steps);
    CHECK(more);
    CHECK(Error() == "");
  }
  void Check() {
    Stop();
    CHECK(Error() == "");
  }
  std::string Error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  static std::unique_ptr<Client> Connect(const ProcessCluster& cluster, bool observer) {
    ClientOptions options;
    options.cluster = cluster.address();
    options.job = "trainer";
    options.observer = observer;
    options.transport = TestTransport();
    options.timeout = absl::Seconds(60);
    auto client = Client::Connect(options);
    INFO(client.status());
    REQUIRE(client.ok());
    return *std::move(client);
  }
  uint64_t Answered() const {
    uint64_t all = 0;
    for (const auto& client : clients_) all += client->statistics().follower_pulls;
    return all;
  }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void Fail(const std::string& error) {
    const std::lock_guard lock(mutex_);
    if (error_.empty()) error_ = error;
    stop_ = true;
  }

  void Write() {
    auto ones = writer_->AllocateRegion(table_.bytes());
    if (!ones.ok()) return Fail("no memory");
    std::fill_n(ones->floats(), kElements, -1.0f);
    while (!stop_) {
      Ticket push = writer_->Push(table_, *ones);
      const absl::Status ended = sync_ ? writer_->EndStep(table_).Wait() : absl::OkStatus();
      const absl::Status pushed = push.Wait();
      if (!ended.ok() || !pushed.ok()) {
        return Fail(absl::StrCat("write: ", ended.ToString(), "; ", pushed.ToString()));
      }
      const uint64_t answered = Answered();
      {
        const std::lock_guard lock(mutex_);
        written_.push_back(absl::Now());
      }
      ++steps_;
      // A step is published now and then, as a trainer does, and read meanwhile.
      const absl::Time until = absl::Now() + absl::Seconds(1);
      while (!stop_ && Answered() < answered + 32 && absl::Now() < until) {
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
  }

  // The steps that were committed at that time at least.
  uint64_t CommittedAt(absl::Time time) {
    const std::lock_guard lock(mutex_);
    return static_cast<uint64_t>(std::upper_bound(written_.begin(), written_.end(), time) -
                                 written_.begin());
  }

  void Read(int reader) {
    Client& client = *clients_[reader];
    auto table = client.OpenTable("weights");
    auto memory = client.AllocateRegion(table_.bytes());
    if (!table.ok() || !memory.ok()) return Fail("no table or memory");
    std::vector<float> before(kElements / kChunk, 0);
    while (!stop_) {
      PullOptions options;
      options.read_from = ReadFrom::kAny;
      options.max_staleness = kStaleness;
      const absl::Time start = absl::Now();
      const uint64_t floor = CommittedAt(start - kStaleness);
      if (absl::Status s = client.Pull(*table, *memory, {}, options).Wait(); !s.ok()) {
        return Fail(absl::StrCat("pull: ", s.ToString()));
      }
      // A worker learns of a step after it is committed; of one that it writes now, perhaps never.
      const auto most = static_cast<float>(steps_ + 1);
      for (uint64_t c = 0; c < before.size(); ++c) {
        const float* const values = memory->floats() + c * kChunk;
        const float value = values[0];
        const bool whole =
            std::all_of(values, values + kChunk, [&](float v) { return v == value; });
        if (whole && value >= before[c] && value >= static_cast<float>(floor) && value <= most) {
          before[c] = value;
          continue;
        }
        return Fail(absl::StrCat("chunk ", c, " has ", value, whole ? "" : " and others", " after ",
                                 before[c], "; at least ", floor, ", at most ", most));
      }
    }
  }

  const bool sync_;
  std::unique_ptr<Client> writer_;
  Table table_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::thread> threads_;
  std::atomic<uint64_t> steps_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::vector<absl::Time> written_;  // by step
  std::string error_;
};

v1::Consistency SyncOrAsync() { return GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC); }

TEST_CASE("followers answer observers while servers die, stop and give partitions away") {
  const v1::Consistency consistency = SyncOrAsync();
  ProcessCluster cluster({.servers = 3, .lease_ms = kLeaseMs, .replicas = 2});
  Reads reads(cluster, consistency, 3);
  REQUIRE(cluster.WaitReplicated());
  reads.AwaitMore();
  INFO(cluster.logs());
  SECTION("a server is killed and another takes its place") {
    cluster.KillServer(1);
    reads.AwaitMore();
    cluster.RestartServer(1);
    CHECK(cluster.WaitReplicated());
    reads.AwaitMore();
  }
  SECTION("a server is stopped for longer than its lease") {
    // Over shm calls wait for it until it continues; it must not answer by the lease that has
    // ended.
    cluster.server(0).Signal(SIGSTOP);
    absl::SleepFor(absl::Milliseconds(kLeaseMs * 5 / 2));
    cluster.server(0).Signal(SIGCONT);
    reads.AwaitMore();
  }
  SECTION("all partitions move") {
    for (const char* to : {"server-0", "server-1"}) {
      const Finished moved = RunProgram({CliPath(), "migrate", "--table", "weights", "--to", to,
                                         "--cluster", cluster.address(), "--timeout", "60"},
                                        absl::Seconds(120));
      INFO(moved.err);
      CHECK(moved.status == 0);
      reads.AwaitMore();
    }
  }
  reads.Check();
  CHECK(cluster.Metric("verbena_shard_follower_pulls_total") > 0);
}

}  // namespace
}  // namespace verbena::test
