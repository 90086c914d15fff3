// Former failures of saves and restores of a cluster, reproduced step by step.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/checkpoint/checkpoint_task.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/failpoints.h"
#include "server/checkpoint/restore_task.h"
#include "server/checkpoint/shard_calls.h"
#include "tests/cluster/sim_cluster.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::test {
namespace {

constexpr char kRoot[] = "/checkpoints";
constexpr uint64_t kElements = 40 * 64;  // forty chunks: every shard has some

ClusterOptions On(checkpoint::Disk* disk, uint32_t lease_ms) {
  ClusterOptions options;
  options.disk = disk;
  options.lease_ms = lease_ms;
  return options;
}

// A cluster with one worker and one sync table, and its saves and restores.
class Small {
 public:
  explicit Small(checkpoint::test::SimDisk* disk, uint32_t lease_ms = 2000)
      : disk_(disk), cluster(On(disk, lease_ms)), worker_(cluster.AddWorker("worker", {})) {
    Await([&](auto done) { core().Join(Limit(), done); });
    Make("table");
  }

  void Make(const std::string& name) {
    v1::TableSpec spec;
    spec.set_name(name);
    spec.set_job("job");
    spec.add_shape(kElements);
    spec.set_chunk_bytes(256);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    Await([&](auto done) {
      core().CreateTable(spec, Limit(),
                         [done](absl::StatusOr<v1::Table> table) { done(table.status()); });
    });
  }

  void Drop(const std::string& name) {
    Await([&](auto done) { core().DropTable(name, Limit(), done); });
  }

  // As a worker that opens the table anew: it may be another by now.
  void Train(int steps, const std::string& name = "table") {
    Await([&](auto done) {
      core().OpenTable(name, Limit(), [this, done](absl::StatusOr<v1::Table> table) {
        if (table.ok()) table_ = table->id();
        done(table.status());
      });
    });
    auto block = *rdma::MemoryBlock::Allocate(kElements * sizeof(float), "regression");
    for (int i = 0; i < steps; ++i) {
      std::fill_n(reinterpret_cast<float*>(block->data()), kElements, 1.0f);
      Await([&](auto done) {
        const client::ClientCore::Slice all{block, 0, 0, kElements};
        REQUIRE(core().PushPull(table_, all, all, Limit(), done).ok());
      });
    }
    value_ = *reinterpret_cast<float*>(block->data());
  }
  float value() const { return value_; }

  absl::Status Save(v1::CheckpointManifest* manifest = nullptr) {
    const auto channel = cluster.control().NewChannel("operator");
    server::CheckpointTaskOptions options{.coordinator = kCoordinatorAddress, .root = kRoot};
    options.seed = ++seed_;
    server::CheckpointTask saver(options, &cluster.network().clock(), channel.get(), disk_);
    RunToEnd(channel.get(), &saver);
    if (manifest != nullptr) *manifest = saver.manifest();
    return saver.status();
  }

  std::unique_ptr<server::RestoreTask> MakeRestoreTask(ControlChannel* channel) {
    server::RestoreTaskOptions options{.coordinator = kCoordinatorAddress, .replace = true};
    options.path = *checkpoint::NewestComplete(disk_, kRoot, nullptr);
    options.seed = ++seed_;
    auto made = server::RestoreTask::Make(options, &cluster.network().clock(), channel, disk_);
    REQUIRE(made.ok());
    return *std::move(made);
  }
  absl::Status Restore() {
    const auto channel = cluster.control().NewChannel("operator");
    const auto restorer = MakeRestoreTask(channel.get());
    RunToEnd(channel.get(), restorer.get());
    return restorer->status();
  }

  // Trains beside the save until the save reports the phase `doing`; then both have stopped.
  void TrainUntil(ControlChannel* channel, server::CheckpointTask* saver,
                  const std::string& doing) {
    beside_ = [=] {
      channel->RunOnce();
      saver->RunOnce();
    };
    while (saver->progress().doing != doing) {
      REQUIRE_FALSE(saver->done());
      Train(1);
    }
    beside_ = [] {};
  }

  // The number of shards that have partitions.
  size_t Shards() const { return server::PrimaryShards(cluster.view()).size(); }

  template <typename Machine>
  void RunToEnd(ControlChannel* channel, Machine* machine) {
    REQUIRE(cluster.RunUntil(
        [&] {
          channel->RunOnce();
          machine->RunOnce();
          return machine->done();
        },
        cluster.now() + 100 * kSecond));
  }

 private:
  client::ClientCore& core() { return worker_->core(); }
  int64_t Limit() { return worker_->At(cluster.now() + 20 * kSecond); }
  template <typename Call>
  void Await(Call call) {
    std::optional<absl::Status> ended;
    call([&](absl::Status status) { ended = std::move(status); });
    const auto look = [&] {
      beside_();
      return ended.has_value();
    };
    REQUIRE(cluster.RunUntil(look, cluster.now() + 30 * kSecond));
    INFO(ended->ToString());
    REQUIRE(ended->ok());
  }

  checkpoint::test::SimDisk* const disk_;

 public:
  SimCluster cluster;

 private:
  SimWorker* const worker_;
  uint32_t table_ = 0;
  float value_ = 0;
  uint64_t seed_ = 0;
  std::function<void()> beside_ = [] {};
};

TEST_CASE("regression: shards that have written their parts of a save that failed begin the next") {
  checkpoint::test::SimDisk disk(1);
  Small small(&disk);
  small.Train(1);
  // Sync by sync, so that it fails after none, some and all other shards are done.
  int failed = 0;
  for (uint64_t sync = 1; failed < 30; ++sync, ++failed) {
    disk.FailSync(sync);
    if (small.Save().ok()) break;
    const absl::Status next = small.Save();
    INFO("sync " << sync << ": " << next.ToString());
    REQUIRE(next.ok());
  }
  CHECK(failed > 3);
}

TEST_CASE("regression: a checkpoint has the steps that its table was restored with, too") {
  checkpoint::test::SimDisk disk(2);
  Small small(&disk);
  small.Train(3);
  REQUIRE(small.Save().ok());
  REQUIRE(small.Restore().ok());
  small.Train(2);
  CHECK(small.value() == -5.0f);
  v1::CheckpointManifest manifest;
  REQUIRE(small.Save(&manifest).ok());
  CHECK(manifest.step() == 5);
  CHECK(manifest.tables(0).steps() == 5);
  // A second restore and save without training between them.
  REQUIRE(small.Restore().ok());
  REQUIRE(small.Save(&manifest).ok());
  CHECK(manifest.step() == 5);
}

TEST_CASE("regression: a table that loses a partition while it is restored is made anew") {
  checkpoint::test::SimDisk disk(3);
  Small small(&disk);
  small.Train(3);
  REQUIRE(small.Save().ok());
  // The table is made where a dead server has partitions, which are lost when it comes back.
  small.cluster.CrashServer(1);
  const auto channel = small.cluster.control().NewChannel("operator");
  const auto restorer = small.MakeRestoreTask(channel.get());
  const std::string trying = "trying again";
  REQUIRE(small.cluster.RunUntil(
      [&] {
        channel->RunOnce();
        restorer->RunOnce();
        return restorer->progress().doing == trying;
      },
      small.cluster.now() + 100 * kSecond));
  small.cluster.RestartServer(1);
  small.RunToEnd(channel.get(), restorer.get());
  INFO(restorer->status().ToString());
  REQUIRE(restorer->status().ok());
  small.Train(1);
  CHECK(small.value() == -4.0f);
}

TEST_CASE("regression: a save does not wait for a step that training stopped before") {
  checkpoint::test::SimDisk disk(5);
  Small small(&disk);
  small.Train(3);
  int waited = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto channel = small.cluster.control().NewChannel("operator");
    server::CheckpointTaskOptions options{.coordinator = kCoordinatorAddress, .root = kRoot};
    options.seed = seed;
    server::CheckpointTask saver(options, &small.cluster.network().clock(), channel.get(), &disk);
    small.TrainUntil(channel.get(), &saver, "writing");
    const auto waits = [&] {
      channel->RunOnce();
      saver.RunOnce();
      return saver.progress().waiting > 0;
    };
    const bool waits_now = small.cluster.RunUntil(waits, small.cluster.now() + 2 * kSecond);
    if (waits_now) ++waited;
    small.RunToEnd(channel.get(), &saver);
    INFO(saver.status().ToString());
    REQUIRE(saver.status().ok());
    // If no step waited for the save, training has gone on after the save's step.
    const auto step = static_cast<float>(saver.manifest().step());
    CHECK((waits_now ? step == -small.value() : step <= -small.value()));
  }
  CHECK(waited > 0);
}

TEST_CASE("regression: a save does not wait for a sync table that is not trained any more") {
  checkpoint::test::SimDisk disk(6);
  Small small(&disk);
  small.Make("other");
  const auto near = GENERATE(4, 200);
  small.Train(3, "other");
  small.Train(near);
  v1::CheckpointManifest manifest;
  const absl::Status saved = small.Save(&manifest);
  INFO(saved.ToString());
  REQUIRE(saved.ok());
  CHECK(manifest.step() == static_cast<uint64_t>(near));
  REQUIRE(manifest.tables_size() == 2);
  for (const v1::CheckpointTable& table : manifest.tables()) {
    CHECK(table.steps() == (table.spec().name() == "other" ? 3 : manifest.step()));
  }
}

TEST_CASE("regression: a save does not commit without a table that was dropped during it") {
  checkpoint::test::SimDisk disk(8);
  Small small(&disk);
  small.Make("other");
  small.Train(3);
  const auto channel = small.cluster.control().NewChannel("operator");
  server::CheckpointTaskOptions options{.coordinator = kCoordinatorAddress, .root = kRoot};
  options.seed = 1;
  options.bytes_per_second = 2000;
  server::CheckpointTask saver(options, &small.cluster.network().clock(), channel.get(), &disk);
  const auto writes = [&] {
    channel->RunOnce();
    saver.RunOnce();
    return saver.progress().doing == std::string("writing");
  };
  REQUIRE(small.cluster.RunUntil(writes, small.cluster.now() + 10 * kSecond));
  small.Drop("other");
  small.RunToEnd(channel.get(), &saver);
  INFO(saver.status().ToString());
  CHECK(absl::IsAborted(saver.status()));
  CHECK(checkpoint::ListCheckpoints(&disk, kRoot)->empty());
  CHECK(small.Save().ok());
}

TEST_CASE("regression: a save beside another in its directory is refused at once") {
  checkpoint::test::SimDisk disk(7);
  Small small(&disk);
  small.Train(3);
  const auto channel = small.cluster.control().NewChannel("operator");
  server::CheckpointTaskOptions options{.coordinator = kCoordinatorAddress, .root = kRoot};
  options.seed = 100;
  options.bytes_per_second = 2000;  // some seconds
  server::CheckpointTask first(options, &small.cluster.network().clock(), channel.get(), &disk);
  const auto writes = [&] {
    channel->RunOnce();
    first.RunOnce();
    return first.progress().doing == std::string("writing");
  };
  REQUIRE(small.cluster.RunUntil(writes, small.cluster.now() + 10 * kSecond));
  const int64_t began = small.cluster.now();
  const absl::Status second = small.Save();
  INFO(second.ToString());
  CHECK(absl::IsFailedPrecondition(second));
  CHECK(small.cluster.now() - began < kSecond);
  // The first save goes on; after it another one succeeds.
  small.RunToEnd(channel.get(), &first);
  CHECK(first.status().ok());
  CHECK(small.Save().ok());
}

TEST_CASE("regression: a restore waits for a coordinator that waits for its servers") {
  checkpoint::test::SimDisk disk(12);
  Small small(&disk, /*lease_ms=*/20000);
  small.Train(3);
  REQUIRE(small.Save().ok());
  const std::string from = GENERATE("making tables", "loading");
  INFO(from);
  const auto channel = small.cluster.control().NewChannel("operator");
  const auto restorer = small.MakeRestoreTask(channel.get());
  const auto is_there = [&] {
    channel->RunOnce();
    restorer->RunOnce();
    return restorer->progress().doing == from;
  };
  if (from != restorer->progress().doing) {
    REQUIRE(small.cluster.RunUntil(is_there, small.cluster.now() + 100 * kSecond));
  }
  // While it loads, a server is cut off from the coordinator alone, until its lease has ended.
  const auto cut = [&](bool off) {
    small.cluster.control().Cut("coordinator", "server-1", off);
    small.cluster.control().Cut("server-1", "coordinator", off);
  };
  if (from == "loading") cut(true);
  small.cluster.RestartCoordinator();
  small.RunToEnd(channel.get(), restorer.get());
  INFO(restorer->status().ToString());
  REQUIRE(restorer->status().ok());
  cut(false);
  small.Train(1);
  CHECK(small.value() == -4.0f);
}

TEST_CASE("regression: tables are not dropped when the answer that they are served is lost") {
  checkpoint::test::SimDisk disk(4);
  Small small(&disk);
  small.Train(3);
  REQUIRE(small.Save().ok());
  const auto channel = small.cluster.control().NewChannel("operator");
  const auto restorer = small.MakeRestoreTask(channel.get());
  const std::string opening = "opening";
  const auto run = [&] {
    channel->RunOnce();
    restorer->RunOnce();
    return restorer->progress().doing == opening;
  };
  REQUIRE(small.cluster.RunUntil(run, small.cluster.now() + 100 * kSecond));
  small.cluster.control().Cut("coordinator", "operator", true);
  small.cluster.RunUntil([] { return false; }, small.cluster.now() + kSecond);
  small.cluster.control().Cut("coordinator", "operator", false);
  small.Train(1);
  CHECK(small.value() == -4.0f);
  small.RunToEnd(channel.get(), restorer.get());
  INFO(restorer->status().ToString());
  CHECK(restorer->status().ok());
  small.Train(1);
  CHECK(small.value() == -5.0f);
}

TEST_CASE("regression: a table stays until its replacement is loaded, also if the restore fails") {
  checkpoint::test::SimDisk disk(9);
  Small small(&disk);
  small.Train(3);
  REQUIRE(small.Save().ok());
  small.Train(1);
  const bool dies = GENERATE(false, true);
  auto channel = small.cluster.control().NewChannel("operator");
  auto restorer = small.MakeRestoreTask(channel.get());
  const std::string loading = "loading";
  const auto loads = [&] {
    channel->RunOnce();
    restorer->RunOnce();
    return restorer->progress().doing == loading;
  };
  REQUIRE(small.cluster.RunUntil(loads, small.cluster.now() + 100 * kSecond));
  CHECK(small.cluster.view().tables_size() == 2);
  if (dies) {
    restorer.reset();
    channel.reset();
  } else {
    restorer->Cancel();
    small.RunToEnd(channel.get(), restorer.get());
    CHECK(absl::IsCancelled(restorer->status()));
    CHECK(small.cluster.view().tables_size() == 1);
  }
  small.Train(1);
  CHECK(small.value() == -5.0f);
  const auto gone = [&] { return small.cluster.view().tables_size() == 1; };
  REQUIRE(small.cluster.RunUntil(gone, small.cluster.now() + 100 * kSecond));
  small.Train(1);
  CHECK(small.value() == -6.0f);
  REQUIRE(small.Restore().ok());
  small.Train(1);
  CHECK(small.value() == -4.0f);
}

TEST_CASE("regression: a restore whose files cannot be read for a while begins anew") {
  checkpoint::test::SimDisk disk(6);
  Small small(&disk);
  small.Train(3);
  REQUIRE(small.Save().ok());
  small.Train(1);
  const auto channel = small.cluster.control().NewChannel("operator");
  const auto restorer = small.MakeRestoreTask(channel.get());
  disk.CrashAt(disk.operations() + 1);
  CHECK(absl::IsUnavailable(disk.MakeDirectory("/other")));
  const auto run = [&](auto until) {
    return small.cluster.RunUntil(
        [&] {
          channel->RunOnce();
          restorer->RunOnce();
          return until();
        },
        small.cluster.now() + 20 * kSecond);
  };
  const std::string trying = "trying again";
  run([&] { return restorer->progress().doing == trying; });
  disk.Reboot();
  REQUIRE(run([&] { return restorer->done(); }));
  INFO(restorer->status().ToString());
  REQUIRE(restorer->status().ok());
  small.Train(1);
  CHECK(small.value() == -4.0f);
}

// Removes a partition from the first `shards` answers that a shard is done, as if the shards had
// begun with different views.
class ForgetfulChannel final : public ControlChannel {
 public:
  ForgetfulChannel(ControlChannel* to, size_t shards) : to_(to), left_(shards) {}
  void Unary(const std::string& address, const std::string& method,
             const google::protobuf::Message& request,
             std::shared_ptr<google::protobuf::Message> response, absl::Duration timeout,
             Done done) override {
    const bool begins = method == "/verbena.v1.Shard/BeginRestore";
    to_->Unary(address, method, request, response, timeout,
               [this, response, begins, done = std::move(done)](absl::Status status) mutable {
                 // A shard whose view is older than the restorer's is asked again.
                 begun += begins && status.ok() ? 1 : 0;
                 auto* answer = dynamic_cast<v1::WaitRestoreResponse*>(response.get());
                 if (answer != nullptr && answer->done() && left_ > 0) {
                   --left_;
                   Forget(answer);
                 }
                 done(std::move(status));
               });
  }
  bool RunOnce() override { return to_->RunOnce(); }
  int wake_fd() const override { return -1; }

  size_t begun = 0;

 private:
  static void Forget(v1::WaitRestoreResponse* answer) {
    auto* partitions = answer->mutable_partitions();
    partitions->erase(std::remove(partitions->begin(), partitions->end(), 3u), partitions->end());
  }
  ControlChannel* const to_;
  size_t left_;
};

TEST_CASE("regression: a restore begins anew where no shard has loaded a partition") {
  checkpoint::test::SimDisk disk(5);
  Small small(&disk);
  small.Train(3);
  REQUIRE(small.Save().ok());
  const auto rounds = [&] {
    const auto channel = small.cluster.control().NewChannel("operator");
    const size_t shards = small.Shards();
    ForgetfulChannel forgetful(channel.get(), shards);
    const auto restorer = small.MakeRestoreTask(&forgetful);
    small.RunToEnd(&forgetful, restorer.get());
    INFO(restorer->status().ToString());
    CHECK(restorer->status().ok());
    return forgetful.begun / shards;
  };
  CHECK(rounds() == 2);
  checkpoint::failpoints().forget_moved = true;
  CHECK(rounds() == 1);
  checkpoint::failpoints().forget_moved = false;
}

}  // namespace
}  // namespace verbena::test
