// Checkpoints of a cluster of real processes, made while it trains, read as files.
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "proto/grpc_control_channel.h"
#include "rdma/base/clock.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/manifest.h"
#include "server/saves/restorer.h"
#include "server/saves/saver.h"
#include "tests/support/cluster.h"
#include "tests/support/connected.h"
#include "tests/support/good.h"
#include "tests/support/http.h"
#include "tests/support/process.h"

namespace verbena::test {
namespace {

using checkpoint::CheckpointReader;
using checkpoint::PosixDisk;
using server::Saver;
using server::SaverOptions;

constexpr uint64_t kElements = 300'001;
constexpr uint64_t kRows = 5'000;
constexpr uint32_t kDim = 8;

v1::TableSpec DenseSpec(const std::string& name, v1::Consistency consistency,
                        const std::string& optimizer) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.add_shape(kElements);
  spec.set_consistency(consistency);
  spec.mutable_optimizer()->set_name(optimizer);
  spec.mutable_optimizer()->set_rate(0.5);
  spec.mutable_initializer()->set_kind(v1::Initializer::UNIFORM);
  spec.mutable_initializer()->set_a(-1);
  spec.mutable_initializer()->set_b(1);
  spec.mutable_initializer()->set_seed(7);
  return spec;
}

class World {
 public:
  explicit World(const ProcessClusterOptions& options = {}) : cluster(options) {
    client = Connected(cluster);
  }
  SaverOptions Options() const {
    SaverOptions options;
    options.coordinator = cluster.address();
    options.root = directory.path() + "/checkpoints";
    options.written_by = "a test";
    return options;
  }
  // To its end, in this thread.
  absl::Status Run(Saver* saver, GrpcControlChannel* channel) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!saver->done()) {
      const bool worked = channel->RunOnce();
      if (!saver->RunOnce() && !worked) std::this_thread::yield();
      REQUIRE(std::chrono::steady_clock::now() < end);
    }
    return saver->status();
  }
  absl::StatusOr<std::string> Save(const SaverOptions& options) {
    GrpcControlChannel channel(nullptr, nullptr);
    Saver saver(options, &clock, &channel, PosixDisk());
    const absl::Status status = Run(&saver, &channel);
    if (!status.ok()) return status;
    return saver.name();
  }
  CheckpointReader Read(const std::string& name) const {
    CheckpointReader reader =
        Value(CheckpointReader::Open(PosixDisk(), Options().root + "/" + name));
    Good(reader.Verify([](uint64_t) { return absl::OkStatus(); }));
    return reader;
  }

  TemporaryDirectory directory;
  ProcessCluster cluster;
  MonotonicClock clock;
  std::unique_ptr<Client> client;
};

std::vector<float> Elements(const CheckpointReader& reader, const std::string& table,
                            const std::string& array) {
  std::vector<float> values(kElements, -12345.0f);
  Good(reader.ReadArray(table, array, [&](uint64_t first, absl::Span<const std::byte> bytes) {
    REQUIRE(first + bytes.size() / 4 <= kElements);
    std::memcpy(values.data() + first, bytes.data(), bytes.size());
    return absl::OkStatus();
  }));
  return values;
}

struct Dense {
  Dense(World* world, const v1::TableSpec& spec) : client(world->client.get()) {
    table = Value(client->CreateTable(spec));
    gradient = Value(client->AllocateRegion(kElements * 4));
    parameters = Value(client->AllocateRegion(kElements * 4));
  }
  void Step(int step) {
    for (uint64_t i = 0; i < kElements; ++i) {
      gradient.floats()[i] = static_cast<float>((i + 31 * static_cast<uint64_t>(step)) % 97) - 48;
    }
    Good(client->PushPull(table, gradient, parameters).Wait());
  }
  std::vector<float> Pulled() {
    Good(client->Pull(table, parameters).Wait());
    return {parameters.floats(), parameters.floats() + kElements};
  }
  Client* client;
  Table table;
  Region gradient, parameters;
};

TEST_CASE("a checkpoint has what the servers serve, bit for bit") {
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
  Saver saver(w.Options(), &w.clock, &channel, PosixDisk());
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

TEST_CASE("what cannot be saved is said, and leaves nothing that looks like a checkpoint") {
  World w({.servers = 2, .shards = 1});
  Dense sync(&w, DenseSpec("sync", v1::CONSISTENCY_SYNC, "sgd"));
  sync.Step(1);
  const auto says = [&](SaverOptions options, absl::StatusCode code, const char* text) {
    const absl::Status status = w.Save(options).status();
    INFO(status.ToString());
    CHECK(status.code() == code);
    CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains(text));
  };
  SaverOptions options = w.Options();
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
  Saver saver(options, &w.clock, &channel, PosixDisk());
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

TEST_CASE("a shard whose saver is gone gives up, and the next save works") {
  World w({.servers = 1, .shards = 2});
  Dense sync(&w, DenseSpec("sync", v1::CONSISTENCY_SYNC, "sgd"));
  sync.Step(1);
  {
    SaverOptions options = w.Options();
    options.bytes_per_second = 1000;
    GrpcControlChannel channel(nullptr, nullptr);
    Saver gone(options, &w.clock, &channel, PosixDisk());
    while (gone.progress().doing != std::string("writing")) {
      if (!channel.RunOnce() && !gone.RunOnce()) std::this_thread::yield();
      REQUIRE_FALSE(gone.done());
    }
  }
  for (int step = 2; step < 5; ++step) sync.Step(step);  // with copies of what is being saved
  GrpcControlChannel channel(nullptr, nullptr);
  Saver next(w.Options(), &w.clock, &channel, PosixDisk());
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

TEST_CASE(
    "a coordinator makes checkpoints by itself, keeps as many as it is told, and goes on after a "
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
  const Finished failing = status();
  CHECK(failing.status == 1);
  CHECK_THAT(failing.out, Catch::Matchers::Contains("checkpoints of job 'default' in " + mine +
                                                    " have failed for ") &&
                              Catch::Matchers::Contains("verbena checkpoint save DIR"));
  REQUIRE(std::remove(root.c_str()) == 0);
  REQUIRE(std::rename((root + "-away").c_str(), root.c_str()) == 0);
  const double saved = metric("verbena_checkpoints_total");
  CHECK(Eventually([&] { return metric("verbena_checkpoints_total") > saved; }));
  CHECK(Eventually([&] { return status().status == 0; }));
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

TEST_CASE("a coordinator that is told to end makes a last checkpoint first") {
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

TEST_CASE("regression: a coordinator whose checkpoints on exit fail says so by its status") {
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

// ---- restoring ----------------------------------------------------------------------------------

absl::Status Restore(World* w, server::RestorerOptions options) {
  options.coordinator = w->cluster.address();
  GrpcControlChannel channel(nullptr, nullptr);
  auto restorer = server::Restorer::Make(options, &w->clock, &channel, PosixDisk());
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
    server::RestorerOptions options;
    options.path = first.Options().root + "/" + name;
    Good(Restore(&second, options));
    Job resumed(&second);
    CHECK(resumed.Everything() == saved);
    for (int step = 4; step <= 6; ++step) resumed.Step(step);
    CHECK(resumed.Everything() == expected);
  }
}

TEST_CASE("a restore that cannot be says why, and leaves nothing half restored") {
  World w({.servers = 2, .shards = 1});
  Dense dense(&w, DenseSpec("dense", v1::CONSISTENCY_SYNC, "adam"));
  dense.Step(1);
  const std::string name = Value(w.Save(w.Options()));
  const std::vector<float> saved = dense.Pulled();
  const std::string path = w.Options().root + "/" + name;
  const auto says = [&](server::RestorerOptions options, absl::StatusCode code, const char* text) {
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
