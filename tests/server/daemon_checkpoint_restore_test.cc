// Restores of checkpoints by processes: on other numbers of servers, and those that cannot be.

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "proto/control/grpc_control_channel.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "server/checkpoint/files/manifest.h"
#include "server/checkpoint/restore_task.h"
#include "tests/server/checkpoint_world.h"
#include "tests/support/good.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

// ---- restoring ----------------------------------------------------------------------------------

absl::Status Restore(World* w, server::RestoreTaskOptions options) {
  options.coordinator = w->cluster.address();
  GrpcControlChannel channel(nullptr, nullptr);
  auto restorer = server::RestoreTask::Make(options, &w->clock, &channel, PosixDisk());
  if (!restorer.ok()) return restorer.status();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!(*restorer)->done()) {
    const bool worked = channel.RunOnce();
    if (!(*restorer)->RunOnce() && !worked) std::this_thread::yield();
    REQUIRE(std::chrono::steady_clock::now() < end);
  }
  return (*restorer)->status();
}

// A dense and an embedding table of one sync job.
struct Job {
  explicit Job(World* world)
      : w(world), dense(world, DenseSpec("dense", v1::CONSISTENCY_SYNC, "adam")) {
    v1::TableSpec spec;
    spec.set_name("items");
    spec.set_dim(kDim);
    spec.set_consistency(v1::CONSISTENCY_SYNC);
    spec.mutable_optimizer()->set_name("adagrad");
    spec.mutable_optimizer()->set_rate(0.5);
    items = Value(w->client->CreateTable(spec));
    rows = Value(w->client->AllocateRegion(kRows * kDim * 4));
    for (uint64_t i = 0; i < kRows; ++i) keys.push_back(i * 7'000'003 + 11);
  }
  void Step(int step) {
    dense.Step(step);
    for (uint64_t i = 0; i < kRows * kDim; ++i) {
      rows.floats()[i] = static_cast<float>((i + static_cast<uint64_t>(step)) % 17) - 8;
    }
    Ticket push = w->client->PushRows(
        items, absl::MakeSpan(keys).subspan(static_cast<size_t>(step) * 100), rows);
    Good(w->client->EndStep(items).Wait());
    Good(push.Wait());
  }
  std::vector<float> Everything() {
    std::vector<float> all = dense.Pulled();
    Good(w->client->Lookup(items, keys, rows).Wait());
    all.insert(all.end(), rows.floats(), rows.floats() + kRows * kDim);
    return all;
  }
  World* w;
  Dense dense;
  Table items;
  Region rows;
  std::vector<uint64_t> keys;
};

TEST_CASE("restored onto 1, 2 and 5 servers, training goes on with the bits of the uninterrupted") {
  World first({.servers = 3, .shards = 2});
  Job uninterrupted(&first);
  for (int step = 1; step <= 3; ++step) uninterrupted.Step(step);
  const std::string name = Value(first.Save(first.Options()));
  const std::vector<float> saved = uninterrupted.Everything();
  for (int step = 4; step <= 6; ++step) uninterrupted.Step(step);
  const std::vector<float> expected = uninterrupted.Everything();
  for (const int servers : {1, 2, 5}) {
    INFO(servers << " servers");
    World second({.servers = servers, .shards = 1});
    server::RestoreTaskOptions options;
    options.path = first.Options().root + "/" + name;
    Good(Restore(&second, options));
    Job resumed(&second);
    CHECK(resumed.Everything() == saved);
    for (int step = 4; step <= 6; ++step) resumed.Step(step);
    CHECK(resumed.Everything() == expected);
  }
}

TEST_CASE("a restore that fails gives the reason, and leaves no table half restored") {
  World w({.servers = 2, .shards = 1});
  Dense dense(&w, DenseSpec("dense", v1::CONSISTENCY_SYNC, "adam"));
  dense.Step(1);
  const std::string name = Value(w.Save(w.Options()));
  const std::vector<float> saved = dense.Pulled();
  const std::string path = w.Options().root + "/" + name;
  const auto says = [&](server::RestoreTaskOptions options, absl::StatusCode code,
                        const char* text) {
    const absl::Status status = Restore(&w, options);
    INFO(status.ToString());
    CHECK(status.code() == code);
    CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains(text));
  };
  says({.path = path + "x"}, absl::StatusCode::kNotFound, (name + "x").c_str());
  says({.path = "checkpoint"}, absl::StatusCode::kInvalidArgument, "absolute path");
  says({.path = path, .tables = {"nothing"}}, absl::StatusCode::kNotFound, "it has: dense");
  says({.path = path}, absl::StatusCode::kAlreadyExists, "there is a table 'dense'");
  CHECK(dense.Pulled() == saved);
  // Under another name, beside it; and in place of it.
  Good(Restore(&w, {.path = path, .renamed = {{"dense", "copy"}}}));
  Dense copy(&w, DenseSpec("copy", v1::CONSISTENCY_SYNC, "adam"));
  CHECK(copy.Pulled() == saved);
  dense.Step(2);
  Good(Restore(&w, {.path = path, .replace = true}));
  Dense again(&w, DenseSpec("dense", v1::CONSISTENCY_SYNC, "adam"));
  CHECK(again.Pulled() == saved);

  // A byte of a tensor that is another.
  const CheckpointReader reader = w.Read(name);
  std::string file;
  for (const v1::CheckpointFile& f : reader.manifest().files()) {
    if (f.tensors_size() > 0) file = path + "/" + f.name();
  }
  std::FILE* damaged = std::fopen(file.c_str(), "r+b");
  REQUIRE(damaged != nullptr);
  REQUIRE(std::fseek(damaged, -1, SEEK_END) == 0);
  const int last = std::fgetc(damaged);
  REQUIRE(std::fseek(damaged, -1, SEEK_END) == 0);
  REQUIRE(std::fputc(last ^ 1, damaged) != EOF);
  REQUIRE(std::fclose(damaged) == 0);
  says({.path = path, .renamed = {{"dense", "other"}}}, absl::StatusCode::kDataLoss, file.c_str());
  const Table none = Value(w.client->CreateTable(DenseSpec("other", v1::CONSISTENCY_SYNC, "sgd")));
  CHECK(none.name() == "other");
}

}  // namespace
}  // namespace verbena::test
