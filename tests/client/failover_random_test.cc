// Any mixture of pushes, failovers, servers that hang, lanes that are lost and memory that the
// transport refuses: everything counts once.
#include <catch2/catch.hpp>
#include <random>

#include "proto/wire/routing.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace failover_random_test {

constexpr uint32_t kPartitions = 4;
constexpr uint32_t kRandomChunks = 6;
constexpr uint32_t kDim = 2;
constexpr uint64_t kKeys = 12;
constexpr int kServers = 3;

class RandomFailovers {
 public:
  // on_device: pushes to dense tables come from memory of a device, which has faults of its own.
  RandomFailovers(uint64_t seed, bool on_device)
      : random_(seed), on_device_(on_device), cluster_(Faults(on_device)) {
    for (const auto& server : cluster_.servers) {
      server->knows = &cluster_.view;
      server->config.large_slots = 1 + Upto(4);
    }
    async_ = cluster_.AddTable(v1::CONSISTENCY_ASYNC, kRandomChunks, 4096, "a");
    sync_ = cluster_.AddTable(v1::CONSISTENCY_SYNC, kRandomChunks, 4096, "s");
    async_rows_ = cluster_.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim, 4096, "ar");
    sync_rows_ = cluster_.AddEmbedding(v1::CONSISTENCY_SYNC, kDim, 4096, "sr");
    for (uint64_t k = 0; k < kKeys; ++k) keys_.push_back(k);
  }

  void Run(int steps) {
    cluster_.Join();
    for (int step = 0; step < steps; ++step) {
      const size_t begun = calls_.size();
      for (const uint32_t table : {async_, sync_, async_rows_, sync_rows_}) {
        Push(table);
        Trouble();
      }
      for (const uint32_t table : {async_, sync_, async_rows_, sync_rows_}) {
        calls_.push_back(cluster_.EndStep(table));
        Trouble();
      }
      for (int i = 0; i < 3; ++i) Trouble();
      if (Upto(3) > 0) continue;  // steps overlap
      for (const auto& server : cluster_.servers) server->silent = false;
      for (size_t i = begun; i < calls_.size(); ++i) Good(calls_[i]);
    }
    for (const auto& server : cluster_.servers) server->silent = false;
    for (const auto& call : calls_) Good(call);
    Check(float(steps));
    calls_.clear();
    CHECK(cluster_.RunUntil([&] { return cluster_.device->allocations() == 0; }, kSecond));
    CHECK(cluster_.device->marks == 0);
  }

 private:
  static FakeCluster::Options Faults(bool on_device) {
    FakeCluster::Options options;
    if (on_device) options.staging_bytes = 3 * 4096;  // of buffers, too few
    options.servers = kServers;
    options.replicas = kServers;
    options.partitions = kPartitions;
    options.faults.max_death_delay_ns = 5 * kMilli;
    options.faults.connection_loss = 0.002;
    return options;
  }
  uint32_t Upto(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  void Push(uint32_t table) {
    if (table == async_rows_ || table == sync_rows_) {
      calls_.push_back(cluster_.PushRows(table, keys_, FakeCluster::RowMemory(kKeys, kDim, 1.0f)));
    } else if (on_device_) {
      calls_.push_back(cluster_.Push(table, cluster_.DeviceMemory(table, 1.0f, Upto(2))));
    } else {
      const auto memory = cluster_.Memory(table, 1.0f);
      if (Upto(3) == 0) cluster_.endpoint->refuse_block = memory.block->id();
      calls_.push_back(cluster_.Push(table, memory));
    }
  }

  void Trouble() {
    if (on_device_) {
      FakeDevice& device = *cluster_.device;
      device.busy[1] = Upto(3) == 0;
      device.holds[0] = Upto(3) == 0;
      device.copy_nanos = 1'000 << Upto(12);
    }
    switch (Upto(8)) {
      case 0:
      case 1:
        for (uint32_t p = 0; p < kPartitions; ++p) {
          if (Upto(2) == 0) cluster_.Move(p, Upto(kServers));
        }
        if (Upto(3) > 0) cluster_.Publish();
        break;
      case 2:
        cluster_.Publish();
        break;
      case 3:
        cluster_.servers[Upto(kServers)]->silent = true;
        break;
      case 4:
        cluster_.servers[Upto(kServers)]->silent = false;
        break;
      case 5:
        cluster_.servers[Upto(kServers)]->CloseLanes("a test");
        break;
      case 6:  // memory is refused a few times, also to lanes that are opened
        cluster_.endpoint->refusals = static_cast<int>(Upto(6));
        break;
      default:
        break;
    }
    cluster_.RunFor(Upto(4) * kMilli);
  }

  void Good(const FakeCluster::CallPtr& call) {
    cluster_.Publish();
    cluster_.device->busy[1] = cluster_.device->holds[0] = false;
    REQUIRE(cluster_.Wait(call));
    INFO(call->status);
    REQUIRE(call->status.ok());
  }

  FakeServer& PrimaryOf(uint32_t partition) {
    return *cluster_.servers[cluster_.view.partitions(int(partition)).primary() - 10];
  }

  void Check(float steps) {
    for (const uint32_t table : {async_, sync_}) {
      for (uint32_t c = 0; c < kRandomChunks; ++c) {
        INFO("table " << table << " chunk " << c);
        FakeServer& primary = PrimaryOf(PartitionOfChunk(table, c, kPartitions));
        CHECK(primary.applied[{table, c}] == steps);
      }
    }
    for (const uint32_t table : {async_rows_, sync_rows_}) {
      for (const uint64_t key : keys_) {
        INFO("table " << table << " key " << key);
        FakeServer& primary = PrimaryOf(PartitionOfKey(table, key, kPartitions));
        CHECK(primary.rows[table][key] == std::vector<float>(kDim, steps));
      }
    }
  }

  std::mt19937_64 random_;
  const bool on_device_;
  FakeCluster cluster_;
  uint32_t async_ = 0, sync_ = 0, async_rows_ = 0, sync_rows_ = 0;
  std::vector<uint64_t> keys_;
  std::vector<FakeCluster::CallPtr> calls_;
};

TEST_CASE("random moves, hangs and lane losses: each push counts once") {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    RandomFailovers(seed, false).Run(5);
  }
}

TEST_CASE("random moves, hangs and lane losses: each push from device memory counts once") {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    RandomFailovers(seed, true).Run(5);
  }
}

}  // namespace failover_random_test
}  // namespace verbena::test
