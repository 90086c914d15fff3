// Checkpoints of a cluster of real processes, made while it trains, read as files.

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "proto/control/grpc_control_channel.h"
#include "server/checkpoint/checkpoint_task.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "server/checkpoint/files/manifest.h"
#include "tests/server/checkpoint_world.h"
#include "tests/support/good.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

TEST_CASE("a checkpoint has the values that the servers serve, bit for bit") {
  World w({.servers = 2, .shards = 2});
  Dense sync(&w, DenseSpec("sync", v1::CONSISTENCY_SYNC, "adam"));
  Dense async(&w, DenseSpec("async", v1::CONSISTENCY_ASYNC, "sgd"));
  v1::TableSpec spec;
  spec.set_name("items");
  spec.set_dim(kDim);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_optimizer()->set_name("adagrad");
  spec.mutable_optimizer()->set_rate(0.5);
  const Table items = Value(w.client->CreateTable(spec));
  for (int step = 1; step <= 3; ++step) {
    sync.Step(step);
    Good(w.client->Push(async.table, sync.gradient).Wait());
  }
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < kRows; ++i) keys.push_back(i * 1'000'003 + 5);
  const Region rows = Value(w.client->AllocateRegion(kRows * kDim * 4));
  for (uint64_t i = 0; i < kRows * kDim; ++i) rows.floats()[i] = static_cast<float>(i % 13) - 6;
  Good(w.client->PushRows(items, keys, rows).Wait());

  const std::string name = Value(w.Save(w.Options()));
  CHECK(name == "checkpoint-00000001");
  const CheckpointReader reader = w.Read(name);
  CHECK(reader.manifest().step() == 3);
  CHECK(Elements(reader, "sync", checkpoint::kParameters) == sync.Pulled());
  CHECK(Elements(reader, "async", checkpoint::kParameters) == async.Pulled());
  Good(w.client->Lookup(items, keys, rows).Wait());
  std::map<uint64_t, std::vector<float>> saved;
  Good(reader.ReadRows("items", [&](const checkpoint::RowBatch& batch) {
    const auto* values = reinterpret_cast<const float*>(batch.columns[1].data());
    for (uint64_t i = 0; i < batch.count; ++i) {
      saved[batch.keys()[i]] = {values + i * kDim, values + (i + 1) * kDim};
    }
    return absl::OkStatus();
  }));
  REQUIRE(saved.size() == kRows);
  bool same = true;
  for (uint64_t i = 0; i < kRows; ++i) {
    same = same && std::memcmp(saved.at(keys[i]).data(), rows.floats() + i * kDim, kDim * 4) == 0;
  }
  CHECK(same);
  // The next one has the next number, and training goes on.
  sync.Step(4);
  CHECK(Value(w.Save(w.Options())) == "checkpoint-00000002");
}

TEST_CASE("a save while training runs is of one step, and training does not stop for it") {
  World w({.servers = 2, .shards = 2});
  Dense sync(&w, DenseSpec("sync", v1::CONSISTENCY_SYNC, "sgd"));
  const std::vector<float> initial = sync.Pulled();
  std::vector<std::vector<float>> after = {initial};
  GrpcControlChannel channel(nullptr, nullptr);
  CheckpointTask saver(w.Options(), &w.clock, &channel, PosixDisk());
  int step = 0;
  for (; !saver.done() && step < 2000; ++step) {
    sync.Step(step + 1);
    if (after.size() < 400)
      after.push_back({sync.parameters.floats(), sync.parameters.floats() + kElements});
    while (channel.RunOnce() || saver.RunOnce()) {
    }
  }
  Good(saver.status());
  REQUIRE(saver.done());
  const CheckpointReader reader = w.Read(saver.name());
  const uint64_t saved = reader.manifest().step();
  INFO("step " << saved << " of " << step);
  REQUIRE(saved < after.size());
  CHECK(Elements(reader, "sync", checkpoint::kParameters) == after[saved]);
}

TEST_CASE("a save that fails gives the reason, and leaves nothing that looks like a checkpoint") {
  World w({.servers = 2, .shards = 1});
  Dense sync(&w, DenseSpec("sync", v1::CONSISTENCY_SYNC, "sgd"));
  sync.Step(1);
  const auto says = [&](CheckpointTaskOptions options, absl::StatusCode code, const char* text) {
    const absl::Status status = w.Save(options).status();
    INFO(status.ToString());
    CHECK(status.code() == code);
    CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains(text));
  };
  CheckpointTaskOptions options = w.Options();
  options.job = "other";
  says(options, absl::StatusCode::kNotFound, "job 'other' has no tables; jobs that have: default");
  options = w.Options();
  options.tables = {"sync", "nothing"};
  says(options, absl::StatusCode::kNotFound, "no table 'nothing'; it has: sync");
  options = w.Options();
  options.root = "checkpoints";
  says(options, absl::StatusCode::kInvalidArgument, "absolute path");
  options = w.Options();
  options.root = w.directory.path() + "/not/there";
  says(options, absl::StatusCode::kNotFound, "not/there");
  // A server that dies while it saves.
  options = w.Options();
  options.bytes_per_second = 300'000;
  options.tries = 1;
  GrpcControlChannel channel(nullptr, nullptr);
  CheckpointTask saver(options, &w.clock, &channel, PosixDisk());
  while (saver.progress().written_bytes == 0) {
    if (!channel.RunOnce() && !saver.RunOnce()) std::this_thread::yield();
    REQUIRE_FALSE(saver.done());
  }
  w.cluster.KillServer(1);
  const absl::Status status = w.Run(&saver, &channel);
  INFO(status.ToString());
  CHECK_FALSE(status.ok());
  const auto listed = Value(checkpoint::ListCheckpoints(PosixDisk(), w.Options().root));
  CHECK(listed.empty());
}

TEST_CASE("without workers tables are saved where they are, and an incomplete step is an error") {
  World w({.servers = 2, .shards = 2});
  Dense far(&w, DenseSpec("far", v1::CONSISTENCY_SYNC, "sgd"));
  Dense near(&w, DenseSpec("near", v1::CONSISTENCY_SYNC, "sgd"));
  for (int step = 1; step <= 3; ++step) far.Step(step);
  near.Step(1);
  SECTION("complete steps") {
    w.client->Close();
    GrpcControlChannel channel(nullptr, nullptr);
    CheckpointTask saver(w.Options(), &w.clock, &channel, PosixDisk());
    // It waits for no step: nobody would make it.
    uint32_t waiting = 0;
    while (!saver.done()) {
      if (!channel.RunOnce() && !saver.RunOnce()) std::this_thread::yield();
      waiting = std::max(waiting, saver.progress().waiting);
    }
    Good(saver.status());
    CHECK(waiting == 0);
    REQUIRE(saver.manifest().tables_size() == 2);
    CHECK(saver.manifest().tables(0).steps() == 3);
    CHECK(saver.manifest().tables(1).steps() == 1);
  }
  SECTION("a step of which a part is there") {
    const Range first = {.count = far.table.chunk_elements()};
    Good(w.client->Push(far.table, far.gradient, first).Wait());
    w.client->Close();
    const absl::Status status = w.Save(w.Options()).status();
    INFO(status.ToString());
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK_THAT(std::string(status.message()),
               Catch::Matchers::Contains("job 'default' has no workers, and its last step is "
                                         "incomplete: ") &&
                   Catch::Matchers::Contains("start the job's workers again"));
  }
}

TEST_CASE("a shard gives up a save whose program is gone, and the next save works") {
  World w({.servers = 1, .shards = 2});
  Dense sync(&w, DenseSpec("sync", v1::CONSISTENCY_SYNC, "sgd"));
  sync.Step(1);
  {
    CheckpointTaskOptions options = w.Options();
    options.bytes_per_second = 1000;
    GrpcControlChannel channel(nullptr, nullptr);
    CheckpointTask gone(options, &w.clock, &channel, PosixDisk());
    while (gone.progress().doing != std::string("writing")) {
      if (!channel.RunOnce() && !gone.RunOnce()) std::this_thread::yield();
      REQUIRE_FALSE(gone.done());
    }
  }
  for (int step = 2; step < 5; ++step) sync.Step(step);  // shards copy the values that are saved
  GrpcControlChannel channel(nullptr, nullptr);
  CheckpointTask next(w.Options(), &w.clock, &channel, PosixDisk());
  std::string failure;
  while (!next.done()) {
    if (!channel.RunOnce() && !next.RunOnce()) std::this_thread::yield();
    if (!next.progress().failure.empty()) failure = next.progress().failure;
  }
  INFO(next.status());
  REQUIRE(next.status().ok());
  // An operator sees for which save it has waited, and for how long.
  CHECK_THAT(failure, Catch::Matchers::Contains("is being saved already, as save ") &&
                          Catch::Matchers::Contains(" bytes here, and is given up in "));
  CHECK(Elements(w.Read(next.name()), "sync", checkpoint::kParameters) == sync.Pulled());
}

}  // namespace
}  // namespace verbena::test
