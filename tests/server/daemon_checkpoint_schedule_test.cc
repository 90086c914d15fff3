// Checkpoints that a coordinator makes by itself: at times, after steps, and when it ends.
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "server/checkpoint/files/manifest.h"
#include "tests/server/checkpoint_world.h"
#include "tests/support/cluster.h"
#include "tests/support/connected.h"
#include "tests/support/good.h"
#include "tests/support/http.h"
#include "tests/support/process.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

TEST_CASE(
    "a coordinator makes checkpoints by itself, keeps the configured number, and goes on after a "
    "failure") {
  TemporaryDirectory made;
  const std::string root = made.File("checkpoints"), mine = root + "/default";
  World w({.servers = 2,
           .shards = 1,
           .coordinator_options = {"--checkpoint-dir", root, "--checkpoint-every", "1",
                                   "--checkpoint-keep-last", "2", "--metrics", "127.0.0.1:0"}});
  Dense sync(&w, DenseSpec("sync", v1::CONSISTENCY_SYNC, "adam"));
  const auto other = Connected(w.cluster, "team/job");
  Good(other->CreateTable(DenseSpec("theirs", v1::CONSISTENCY_SYNC, "sgd")).status());
  const auto names = [](const std::string& directory) {
    std::vector<std::string> found;
    auto listed = checkpoint::ListCheckpoints(PosixDisk(), directory);
    if (!listed.ok()) return found;
    for (const auto& entry : *listed) found.push_back(entry.name);
    return found;
  };
  const auto metric = [&](const char* name) {
    return MetricSum(HttpGet(w.cluster.coordinator_metrics(), "/metrics").body, name);
  };
  int step = 0;
  REQUIRE(Eventually([&] {
    sync.Step(++step);
    return metric("verbena_checkpoints_total") >= 6;
  }));
  REQUIRE(Eventually([&] { return names(root + "/team%2Fjob").size() == 2; }));
  // One that was begun when the last step was made has it.
  const std::vector<float> last = sync.Pulled();
  const double failed = metric("verbena_checkpoint_failures_total");
  const auto newest_is_last = [&] {
    const std::vector<std::string> all = names(mine);
    if (all.empty()) return false;
    auto reader = CheckpointReader::Open(PosixDisk(), mine + "/" + all.back());
    if (!reader.ok() || reader->manifest().step() != static_cast<uint64_t>(step)) return false;
    CHECK(Elements(*reader, "sync", checkpoint::kParameters) == last);
    return true;
  };
  REQUIRE(Eventually(newest_is_last));
  CHECK(failed == 0);
  CHECK(names(mine).size() <= 3);  // while the next one is made, before the oldest goes
  CHECK(metric("verbena_checkpoint_bytes") > 0);
  CHECK(metric("verbena_checkpoint_age_seconds") < 60);

  // Its directory is away for a while.
  REQUIRE(std::rename(root.c_str(), (root + "-away").c_str()) == 0);
  WriteFile(root, "in the way");
  REQUIRE(Eventually([&] {
    sync.Step(++step);
    return metric("verbena_checkpoint_failures_total") > 0;
  }));
  CHECK_THAT(w.cluster.coordinator().err(), Catch::Matchers::Contains(root));
  const auto status = [&] {
    return RunProgram({CliPath(), "--cluster", w.cluster.address(), "status"});
  };
  // Each job's checkpoints fail at times of their own.
  Finished failing;
  CHECK(Eventually([&] {
    failing = status();
    return failing.out.find("checkpoints of job 'default' in " + mine + " have failed for ") !=
           std::string::npos;
  }));
  INFO(failing.out);
  CHECK(failing.status == 1);
  CHECK_THAT(failing.out, Catch::Matchers::Contains("verbena checkpoint save DIR"));
  REQUIRE(std::remove(root.c_str()) == 0);
  REQUIRE(std::rename((root + "-away").c_str(), root.c_str()) == 0);
  const double saved = metric("verbena_checkpoints_total");
  CHECK(Eventually([&] { return metric("verbena_checkpoints_total") > saved; }));
  CHECK(Eventually([&] { return status().status == 0; }));
}

TEST_CASE("regression: a job is not saved again while nobody can have changed it") {
  TemporaryDirectory made;
  const std::string root = made.File("checkpoints");
  World w({.servers = 1,
           .shards = 1,
           .coordinator_options = {"--checkpoint-dir", root, "--checkpoint-every", "1", "--metrics",
                                   "127.0.0.1:0"}});
  const auto metric = [&](const char* name) {
    return MetricSum(HttpGet(w.cluster.coordinator_metrics(), "/metrics").body, name);
  };
  auto client = Connected(w.cluster, "ended");
  Good(client->CreateTable(DenseSpec("its", v1::CONSISTENCY_ASYNC, "sgd")).status());
  REQUIRE(Eventually([&] { return metric("verbena_checkpoints_total") >= 2; }));
  client.reset();
  // One more may be made, of its last state.
  double saved = 0;
  CHECK(Eventually([&] {
    saved = metric("verbena_checkpoints_total");
    std::this_thread::sleep_for(std::chrono::seconds(3));  // in which three would be due
    return metric("verbena_checkpoints_total") == saved;
  }));
  CHECK(metric("verbena_checkpoint_age_seconds") < 3);
  // One that was taken away is made again, and so is one of a job that goes on.
  std::filesystem::remove_all(root + "/ended");
  REQUIRE(Eventually([&] { return metric("verbena_checkpoints_total") > saved; }));
  client = Connected(w.cluster, "ended");
  const double before = metric("verbena_checkpoints_total");
  CHECK(Eventually([&] { return metric("verbena_checkpoints_total") > before + 1; }));
}

// A worker of job "a" stands inside a step: in a debugger, or in a notebook's cell that was
// stopped.
TEST_CASE("regression: a job that stands inside a step does not keep others from their last one") {
  TemporaryDirectory made;
  const std::string root = made.File("checkpoints");
  World w({.servers = 1,
           .shards = 1,
           .coordinator_options = {"--checkpoint-dir", root, "--checkpoint-on-exit", "8"}});
  const auto standing = Connected(w.cluster, "a");
  const Table its = Value(standing->CreateTable(DenseSpec("its", v1::CONSISTENCY_SYNC, "sgd")));
  const Region region = Value(standing->AllocateRegion(kElements * 4));
  w.client = Connected(w.cluster, "b");
  Dense theirs(&w, DenseSpec("theirs", v1::CONSISTENCY_SYNC, "sgd"));
  for (int step = 1; step <= 5; ++step) theirs.Step(step);
  Good(standing->Push(its, region, {.count = its.chunk_elements()}).Wait());
  w.cluster.coordinator().Signal(SIGTERM);
  CHECK(w.cluster.coordinator().Wait(absl::Seconds(60)).has_value());
  const auto listed = checkpoint::ListCheckpoints(PosixDisk(), root + "/b");
  REQUIRE(listed.ok());
  REQUIRE(listed->size() == 1);
  const auto reader =
      Value(CheckpointReader::Open(PosixDisk(), root + "/b/" + listed->back().name));
  CHECK(reader.manifest().step() == 5);
}

TEST_CASE("a coordinator saves a job when it has made so many steps more") {
  TemporaryDirectory made;
  const std::string root = made.File("checkpoints");
  World w({.servers = 2,
           .shards = 1,
           .coordinator_options = {"--checkpoint-dir", root, "--checkpoint-every", "0",
                                   "--checkpoint-every-steps", "100", "--metrics", "127.0.0.1:0"}});
  Dense sync(&w, DenseSpec("sync", v1::CONSISTENCY_SYNC, "sgd"));
  const auto other = Connected(w.cluster, "idle");
  Good(other->CreateTable(DenseSpec("theirs", v1::CONSISTENCY_SYNC, "sgd")).status());
  const auto saved = [&] {
    return MetricSum(HttpGet(w.cluster.coordinator_metrics(), "/metrics").body,
                     "verbena_checkpoints_total");
  };
  int step = 0;
  for (int saves = 1; saves <= 2; ++saves) {
    // Trained until it has been seen to be past: at once it would be after the first look, too.
    REQUIRE(Eventually([&] {
      sync.Step(++step);
      return saved() >= saves;
    }));
    CHECK(step > 100 * saves);
  }
  std::vector<uint64_t> steps;
  const auto all = Value(checkpoint::ListCheckpoints(PosixDisk(), root + "/default"));
  for (const auto& entry : all) {
    const auto reader = Value(CheckpointReader::Open(PosixDisk(), root + "/default/" + entry.name));
    steps.push_back(reader.manifest().step());
  }
  REQUIRE(steps.size() == 2);
  CHECK(steps[0] >= 100);
  CHECK(steps[1] / 100 > steps[0] / 100);
  CHECK_FALSE(std::filesystem::exists(root + "/idle"));
}

TEST_CASE("SIGTERM with --checkpoint-on-exit: the coordinator makes a checkpoint before it ends") {
  TemporaryDirectory made;
  const std::string root = made.File("checkpoints");
  World w({.servers = 2,
           .shards = 1,
           .coordinator_options = {"--checkpoint-dir", root, "--checkpoint-on-exit", "60"}});
  Dense sync(&w, DenseSpec("sync", v1::CONSISTENCY_SYNC, "adam"));
  for (int step = 1; step <= 3; ++step) sync.Step(step);
  const std::vector<float> last = sync.Pulled();
  w.cluster.coordinator().Signal(SIGTERM);
  REQUIRE(w.cluster.coordinator().Wait() == 0);
  const auto newest = checkpoint::NewestComplete(PosixDisk(), root + "/default", nullptr);
  INFO(w.cluster.coordinator().err());
  const CheckpointReader reader = Value(CheckpointReader::Open(PosixDisk(), Value(newest)));
  CHECK(reader.manifest().step() == 3);
  CHECK(Elements(reader, "sync", checkpoint::kParameters) == last);
}

TEST_CASE("regression: a coordinator whose checkpoints on exit fail exits with status 1") {
  TemporaryDirectory directory;
  const std::string root = directory.File("checkpoints");
  // A file where a job's directory would be.
  std::filesystem::create_directories(root);
  std::ofstream(root + "/default") << "in the way";
  World w({.coordinator_options = {"--checkpoint-dir", root, "--checkpoint-on-exit", "10"}});
  Dense sync(&w, DenseSpec("sync", v1::CONSISTENCY_SYNC, "adam"));
  sync.Step(1);
  w.cluster.coordinator().Signal(SIGTERM);
  CHECK(w.cluster.coordinator().Wait() == 1);
  CHECK_THAT(w.cluster.coordinator().err(), Catch::Contains("stopped without the checkpoints"));
}

}  // namespace
}  // namespace verbena::test
