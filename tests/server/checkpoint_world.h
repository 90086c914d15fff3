// A cluster of processes whose tables are saved and restored, and a dense table that one worker
// trains, for the tests of checkpoints.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SERVER_CHECKPOINT_WORLD_H_
#define VERBENA_TESTS_SERVER_CHECKPOINT_WORLD_H_

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/control/grpc_control_channel.h"
#include "rdma/base/clock.h"
#include "server/checkpoint/checkpoint_task.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "tests/support/cluster.h"
#include "tests/support/connected.h"
#include "tests/support/good.h"
#include "tests/support/process.h"
#include "verbena/client.h"

namespace verbena::test {

using checkpoint::CheckpointReader;
using checkpoint::PosixDisk;
using server::CheckpointTask;
using server::CheckpointTaskOptions;

inline constexpr uint64_t kElements = 300'001;
inline constexpr uint64_t kRows = 5'000;
inline constexpr uint32_t kDim = 8;

inline v1::TableSpec DenseSpec(const std::string& name, v1::Consistency consistency,
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
  CheckpointTaskOptions Options() const {
    CheckpointTaskOptions options;
    options.coordinator = cluster.address();
    options.root = directory.path() + "/checkpoints";
    options.written_by = "a test";
    return options;
  }
  // To its end, in this thread.
  absl::Status Run(CheckpointTask* saver, GrpcControlChannel* channel) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!saver->done()) {
      const bool worked = channel->RunOnce();
      if (!saver->RunOnce() && !worked) std::this_thread::yield();
      REQUIRE(std::chrono::steady_clock::now() < end);
    }
    return saver->status();
  }
  absl::StatusOr<std::string> Save(const CheckpointTaskOptions& options) {
    GrpcControlChannel channel(nullptr, nullptr);
    CheckpointTask saver(options, &clock, &channel, PosixDisk());
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

inline std::vector<float> Elements(const CheckpointReader& reader, const std::string& table,
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

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SERVER_CHECKPOINT_WORLD_H_
