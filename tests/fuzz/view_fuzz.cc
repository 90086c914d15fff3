// A shard that applies a view with any content, and then another one. Requests for the accepted
// tables come in between.
#include <memory>
#include <string>
#include <vector>

#include "google/protobuf/stubs/logging.h"
#include "proto/spec/table_spec.h"
#include "shard/engine.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_shard.h"

namespace verbena::fuzz {
namespace {

constexpr uint64_t kServer = 1;
constexpr uint64_t kWorker = 2;
constexpr size_t kShardBytes = size_t{1} << 20;
constexpr uint32_t kMostChunks = 8;  // that requests are made for

void Ask(shard::Engine* engine, const v1::Table& table, uint32_t partitions) {
  const DenseLayout layout = LayoutOf(table.spec());
  std::vector<float> payload(layout.chunk_elements);
  for (uint32_t chunk = 0; chunk < std::min(layout.chunks(), kMostChunks); ++chunk) {
    shard::PushRequest push;
    push.worker = kWorker;
    push.table = table.id();
    push.group = {
        PartitionOfChunk(table.id(), chunk, partitions), chunk, 1, 0, layout.elements_of(chunk), 0};
    push.dtype = GradientType(table.spec());
    push.payload = {reinterpret_cast<const std::byte*>(payload.data()),
                    size_t{push.group.count} * layout.gradient_bytes};
    (void)engine->Push(push);
    shard::PullRequest pull;
    pull.worker = kWorker;
    pull.table = table.id();
    pull.group = push.group;
    pull.dtype = ParameterType(table.spec());
    const shard::PullOutcome out = engine->Pull(pull);
    if (out.kind != shard::PullOutcome::Kind::kReady) continue;
    // The first view of a table determines its size.
    FUZZ_CHECK(out.view.bytes <= out.view.buffer.bytes);
    engine->Unpin(out.view.pin);
  }
  // Requests that wait for a lane, whose payload is gone now.
  engine->ForgetLane(0);
}

v1::ClusterView View() {
  v1::ClusterView view;
  view.set_revision(1);
  for (uint32_t p = 0; p < 4; ++p) {
    v1::Partition* partition = view.add_partitions();
    partition->set_id(p);
    partition->set_epoch(1);
    partition->set_primary(kServer);
  }
  v1::Job* job = view.add_jobs();
  job->set_name("j");
  job->set_generation(1);
  job->set_expected_workers(2);
  v1::Worker* worker = job->add_members();
  worker->set_incarnation(kWorker);
  return view;
}

v1::TableSpec Spec(v1::Consistency consistency, v1::DType dtype, v1::DType gradient) {
  v1::TableSpec spec;
  spec.set_name("t");
  spec.set_job("j");
  spec.add_shape(100);
  spec.set_chunk_bytes(256);
  spec.set_consistency(consistency);
  spec.set_dtype(dtype);
  spec.set_gradient_dtype(gradient);
  return *NormalizeTableSpec(spec);
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const auto consistency :
       {v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP}) {
    for (const auto dtype : {v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_F16}) {
      v1::ClusterView first = View();
      v1::Table* table = first.add_tables();
      table->set_id(1);
      *table->mutable_spec() =
          Spec(consistency, dtype, dtype == v1::DTYPE_F16 ? v1::DTYPE_BF16 : v1::DTYPE_F32);
      v1::ClusterView second = first;
      second.set_revision(2);
      second.mutable_partitions(0)->set_epoch(2);
      second.mutable_tables(0)->add_lost_partitions(3);
      second.mutable_jobs(0)->set_generation(2);
      const std::string bytes = first.SerializeAsString();
      seeds.push_back(BytesOf(static_cast<uint16_t>(bytes.size())) + bytes +
                      second.SerializeAsString());
    }
  }
  return seeds;
}

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena;
  using namespace verbena::fuzz;
  google::protobuf::SetLogHandler(nullptr);  // of texts that are no UTF-8: there are many
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size < sizeof(uint16_t)) return 0;
  uint16_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const size_t first = std::min<size_t>(length, size - sizeof(length));
  SmallAllocator allocator(kShardBytes);
  shard::EngineOptions options;
  options.allocator = &allocator;
  options.server = kServer;
  shard::Engine engine(options);
  for (const std::string& part :
       {bytes.substr(sizeof(length), first), bytes.substr(sizeof(length) + first)}) {
    v1::ClusterView view;
    if (!view.ParseFromString(part) || TooManyContributions(view)) return 0;
    (void)engine.ApplyView(view);
    FUZZ_CHECK(engine.counters().resident_bytes <= kShardBytes);
    for (const v1::Table& table : view.tables()) {
      const bool has_layout = table.spec().dim() == 0 && table.spec().chunk_bytes() >= 64;
      const auto partitions = static_cast<uint32_t>(view.partitions_size());
      if (has_layout && partitions > 0) Ask(&engine, table, partitions);
    }
  }
  return 0;
}
