// Models that NumPy wrote, imported and restored onto real clusters; checkpoints of real clusters,
// read by NumPy alone.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/cli_fixture.h"
#include "tests/support/cluster.h"
#include "tests/support/connected.h"
#include "tests/support/good.h"
#include "tests/support/process.h"
#include "verbena/client.h"
#include "verbena/half.h"

namespace verbena::test {
namespace {

constexpr int kSkipped = 77;
constexpr float kRate = 0.5f;

Finished Python(const std::string& script, std::vector<std::string> arguments) {
  const char* python = std::getenv("VERBENA_PYTHON");
  const char* scripts = std::getenv("VERBENA_SCRIPTS");
  REQUIRE((python != nullptr && scripts != nullptr));
  arguments.insert(arguments.begin(), {python, "-B", std::string(scripts) + "/" + script});
  return RunProgram(arguments);
}
void Agrees(const std::string& script, const std::vector<std::string>& arguments) {
  const Finished run = Python(script, arguments);
  INFO(run.out << run.err);
  REQUIRE(run.status == 0);
}
void Checkpoint(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "checkpoint");
  const Finished run = Cli(arguments);
  INFO(run.out << run.err);
  REQUIRE(run.status == 0);
}

class World {
 public:
  explicit World(const ProcessClusterOptions& options) : cluster(options) {
    client = Connected(cluster);
  }
  // The bytes that workers pull of a dense table.
  std::string Pulled(const Table& table, size_t bytes) {
    const Region region = Value(client->AllocateRegion(bytes));
    Good(client->Pull(table, region).Wait());
    return std::string(reinterpret_cast<const char*>(region.data()), bytes);
  }
  std::string Rows(const Table& table, const std::vector<uint64_t>& keys) {
    const size_t bytes = keys.size() * table.dim() * sizeof(float);
    const Region region = Value(client->AllocateRegion(bytes));
    Good(client->Lookup(table, keys, region).Wait());
    return std::string(reinterpret_cast<const char*>(region.data()), bytes);
  }
  ProcessCluster cluster;
  std::unique_ptr<Client> client;
};

template <typename T>
std::vector<T> Numbers(const std::string& bytes) {
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(T));
  return numbers;
}

struct Model {
  Model() {
    file = directory.File("model.safetensors");
    Agrees("import_model.py", {"write", file, directory.path()});
    keys = Numbers<uint64_t>(Bytes("items.keys"));
  }
  // The bytes of a tensor.
  std::string Bytes(const std::string& tensor) const { return ReadFile(directory.File(tensor)); }
  TemporaryDirectory directory;
  std::string file;
  std::vector<uint64_t> keys;
};

const char* const kDense[] = {"tower.weight", "tower.bias", "head.weight", "temperature"};

// Gradients that are exact in every type.
float Gradient(size_t i) { return static_cast<float>(i % 7) - 3; }

// A step of every table: the new parameters are those of sgd on their f32 copies, rounded.
void TrainsOn(World* w, const Model& model) {
  for (const char* name : kDense) {
    INFO(name);
    const Table table = Value(w->client->OpenTable(name));
    const std::string before = model.Bytes(name);
    const bool f32 = table.dtype() == v1::DTYPE_F32;
    const bool bf16 = table.dtype() == v1::DTYPE_BF16;
    const size_t n = before.size() / (f32 ? 4 : 2);
    const Region gradient = Value(w->client->AllocateRegion(n * sizeof(float)));
    const Region after = Value(w->client->AllocateRegion(before.size()));
    for (size_t i = 0; i < n; ++i) gradient.floats()[i] = Gradient(i);
    Good(w->client->PushPull(table, gradient, after).Wait());
    const auto floats = Numbers<float>(before);
    const auto halves = Numbers<uint16_t>(before);
    bool same = true;
    for (size_t i = 0; i < n; ++i) {
      const float was = f32    ? floats[i]
                        : bf16 ? FloatFromBFloat16(halves[i])
                               : FloatFromHalf(halves[i]);
      const float is = was - kRate * Gradient(i);
      same = same &&
             (f32 ? after.floats()[i] == is
                  : after.half_data()[i] == (bf16 ? BFloat16FromFloat(is) : HalfFromFloat(is)));
    }
    CHECK(same);
  }
  const Table items = Value(w->client->OpenTable("items"));
  auto expected = Numbers<float>(model.Bytes("items.values"));
  const Region rows = Value(w->client->AllocateRegion(expected.size() * sizeof(float)));
  for (size_t i = 0; i < expected.size(); ++i) {
    rows.floats()[i] = Gradient(i);
    expected[i] -= kRate * Gradient(i);
  }
  Ticket push = w->client->PushRows(items, model.keys, rows);
  Good(w->client->EndStep(items).Wait());
  Good(push.Wait());
  CHECK(Numbers<float>(w->Rows(items, model.keys)) == expected);
}

TEST_CASE("a file by NumPy is imported, restored, pulled bit for bit, trained and exported") {
  const Model model;
  const std::string imported = model.directory.File("imported");
  const std::string saved = model.directory.File("saved");
  Checkpoint({"import", model.file, "--to", imported, "--optimizer", "sgd", "--rate", "0.5"});
  for (const int servers : {1, 3}) {
    INFO(servers << " servers");
    World w({.servers = servers, .shards = 2});
    Checkpoint({"restore", imported, "--cluster", w.cluster.address()});
    for (const char* name : kDense) {
      INFO(name);
      const Table table = Value(w.client->OpenTable(name));
      const std::string bytes = model.Bytes(name);
      CHECK(w.Pulled(table, bytes.size()) == bytes);
    }
    const Table items = Value(w.client->OpenTable("items"));
    REQUIRE(items.dim() == 6);
    CHECK(w.Rows(items, model.keys) == model.Bytes("items.values"));
    // Exports of the imported checkpoint, and of a checkpoint that the cluster saved.
    const std::string from = servers == 1 ? imported : saved;
    if (servers != 1) Checkpoint({"save", saved, "--cluster", w.cluster.address()});
    const std::string out = model.directory.File(servers == 1 ? "a" : "b");
    Checkpoint({"export", from, "--to", out});
    Agrees("import_model.py", {"same", model.file, out});
    TrainsOn(&w, model);
  }
}

TEST_CASE("a table that was imported is opened by workers that ask for the same one") {
  const Model model;
  const std::string to = model.directory.File("imported");
  v1::TableSpec spec;
  spec.set_name("items");
  spec.set_dim(6);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_optimizer()->set_name("adagrad");
  spec.mutable_optimizer()->set_rate(0.25);
  spec.mutable_initializer()->set_kind(v1::Initializer::CONSTANT);
  spec.mutable_initializer()->set_a(2);
  WriteFile(model.directory.File("spec.json"),
            R"({"tables": [{"spec": {"name": "items", "consistency": "CONSISTENCY_ASYNC",
              "optimizer": {"name": "adagrad", "rate": 0.25},
              "initializer": {"kind": "CONSTANT", "a": 2}}}]})");
  Checkpoint({"import", model.file, "--to", to, "--table", "items", "--spec",
              model.directory.File("spec.json")});
  World w({.servers = 2, .shards = 1});
  Checkpoint({"restore", to, "--cluster", w.cluster.address()});
  const Table items = Value(w.client->CreateTable(spec));
  CHECK(w.Rows(items, model.keys) == model.Bytes("items.values"));
  // Rows without imported values are initialised.
  CHECK(Numbers<float>(w.Rows(items, {123})) == std::vector<float>(6, 2.0f));
  spec.mutable_optimizer()->set_rate(0.5);
  CHECK(absl::IsAlreadyExists(w.client->CreateTable(spec).status()));
}

// Two tables after some steps: their checkpoint, and the values that workers pull.
struct Trained {
  explicit Trained(int shards) : w({.servers = 1, .shards = shards}) {
    expected = directory.File("pulled");
    REQUIRE(std::filesystem::create_directory(expected));
    v1::TableSpec spec;
    spec.set_name("tower");
    spec.add_shape(300);
    spec.add_shape(301);
    spec.set_dtype(v1::DTYPE_BF16);
    spec.mutable_optimizer()->set_name("adam");
    spec.mutable_optimizer()->set_rate(0.01);
    spec.mutable_initializer()->set_kind(v1::Initializer::NORMAL);
    spec.mutable_initializer()->set_b(1);
    const Table tower = Value(w.client->CreateTable(spec));
    constexpr size_t kElements = 300 * 301;
    const Region gradient = Value(w.client->AllocateRegion(kElements * 4));
    const Region after = Value(w.client->AllocateRegion(kElements * 2));
    v1::TableSpec rows_spec;
    rows_spec.set_name("users");
    rows_spec.set_dim(5);
    *rows_spec.mutable_optimizer() = spec.optimizer();
    const Table users = Value(w.client->CreateTable(rows_spec));
    std::vector<uint64_t> keys;
    for (uint64_t i = 0; i < 2000; ++i) keys.push_back(i << 52 | i);
    const Region rows = Value(w.client->AllocateRegion(keys.size() * 5 * 4));
    for (size_t step = 0; step < 3; ++step) {
      for (size_t i = 0; i < kElements; ++i) gradient.floats()[i] = Gradient(i + step);
      for (size_t i = 0; i < keys.size() * 5; ++i) rows.floats()[i] = Gradient(i + step);
      Good(w.client->PushPull(tower, gradient, after).Wait());
      Ticket push = w.client->PushRows(users, keys, rows);
      Good(w.client->EndStep(users).Wait());
      Good(push.Wait());
    }
    WriteFile(expected + "/tower.parameters", w.Pulled(tower, kElements * 2));
    // The keys grow, so this is their order.
    WriteFile(expected + "/users.values", w.Rows(users, keys));
    Checkpoint({"save", directory.File("saved"), "--cluster", w.cluster.address()});
    checkpoint = directory.File("saved/checkpoint-00000001");
  }
  TemporaryDirectory directory;
  World w;
  std::string expected, checkpoint;
};

TEST_CASE("NumPy alone reads a checkpoint of a cluster: the numbers that workers pull") {
  const int shards = GENERATE(1, 3);
  const Trained trained(shards);
  Agrees("read_checkpoint.py", {trained.checkpoint, trained.expected, "pulled"});
  // Slices are made whole.
  Checkpoint({"compact", trained.directory.File("saved")});
  const std::string compacted = trained.directory.File("saved/checkpoint-00000002");
  REQUIRE(std::filesystem::exists(compacted) == (shards > 1));
  if (shards > 1) Agrees("read_checkpoint.py", {compacted, trained.expected, "pulled"});
}

TEST_CASE("PyTorch and safetensors load an exported checkpoint of a cluster", "[.torch]") {
  const Trained trained(2);
  const std::string out = trained.directory.File("out.safetensors");
  Checkpoint({"export", trained.directory.File("saved"), "--to", out, "--table", "tower"});
  const Finished run = Python("import_model.py", {"libraries", out});
  INFO(run.out << run.err);
  REQUIRE(run.status != kSkipped);
  CHECK(run.status == 0);
}

}  // namespace
}  // namespace verbena::test
