// Ranges for profilers, received by a profiler that is linked into this program.
#define NVTX_NO_IMPL  // of the part of programs that are traced
#include "client/trace/trace.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace {

constexpr uint32_t kChunkElements = 1024;

// A range, with its place in the order of all beginnings and ends; `ended` is 0 until it has ended.
struct Range {
  std::string name;
  uint64_t bytes;
  int began, ended = 0;
};
// One thread: all these tests have.
struct Profiler {
  std::string domain;
  std::vector<Range> ranges;  // by id - 1
  int events = 0;
  int ended_twice = 0;

  std::vector<Range> Of(const std::string& name) const {
    std::vector<Range> found;
    std::copy_if(ranges.begin(), ranges.end(), std::back_inserter(found),
                 [&name](const Range& range) { return range.name == name; });
    return found;
  }
  bool AllEnded() const {
    return ended_twice == 0 && std::all_of(ranges.begin(), ranges.end(),
                                           [](const Range& range) { return range.ended != 0; });
  }
};
Profiler* ThisProfiler() {
  static Profiler profiler;
  return &profiler;
}

nvtxDomainHandle_t CreateDomain(const char* name) {
  ThisProfiler()->domain = name;
  return reinterpret_cast<nvtxDomainHandle_t>(ThisProfiler());
}
nvtxRangeId_t StartRange(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  Profiler& profiler = *ThisProfiler();
  if (domain != reinterpret_cast<nvtxDomainHandle_t>(&profiler)) return 0;
  const bool has_bytes = attributes->payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  profiler.ranges.push_back(
      {attributes->message.ascii, has_bytes ? attributes->payload.ullValue : 0, ++profiler.events});
  return profiler.ranges.size();
}
void StopRange(nvtxDomainHandle_t, nvtxRangeId_t id) {
  Profiler& profiler = *ThisProfiler();
  Range& range = profiler.ranges.at(id - 1);
  profiler.ended_twice += range.ended != 0 ? 1 : 0;
  range.ended = ++profiler.events;
}

// As nvToolsExt's documentation of injection libraries has it.
int Attach(NvtxGetExportTableFunc_t export_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) {
    return 0;
  }
  const auto set = [table](int id, auto* function) {
    *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
  };
  set(NVTX_CBID_CORE2_DomainCreateA, CreateDomain);
  set(NVTX_CBID_CORE2_DomainRangeStartEx, StartRange);
  set(NVTX_CBID_CORE2_DomainRangeEnd, StopRange);
  return 1;
}

// A cluster whose worker has a lane, and a profiler that has seen nothing yet.
struct Traced {
  explicit Traced(uint32_t chunks) {
    table = cluster.AddTable(v1::CONSISTENCY_ASYNC, chunks);
    cluster.Join();
    REQUIRE(cluster.Wait(cluster.Pull(table, cluster.Memory(table, 0.0f))));
    REQUIRE(client::Tracing());
    profiler->ranges.clear();
    profiler->events = 0;
  }
  FakeCluster cluster;
  Profiler* const profiler = ThisProfiler();
  uint32_t table;
};

TEST_CASE("trace: a push from a device is a range of its own, with its copies and records in it") {
  Traced t(3);
  t.cluster.device->holds[0] = true;
  auto push = t.cluster.Push(t.table, t.cluster.DeviceMemory(t.table, 1.0f));
  CHECK(t.profiler->domain == "verbena");
  t.cluster.RunFor(10 * kMilli);
  // The call has returned, and its copies go on.
  REQUIRE(t.profiler->Of("push").size() == 1);
  REQUIRE(t.profiler->Of("copy to host").size() == 3);
  CHECK(t.profiler->Of("record").empty());
  CHECK(t.profiler->Of("copy to host")[0].ended == 0);
  t.cluster.device->holds[0] = false;
  REQUIRE(t.cluster.Wait(push));
  REQUIRE(push->status.ok());
  CHECK(t.profiler->AllEnded());
  const std::vector<Range> copies = t.profiler->Of("copy to host");
  const std::vector<Range> records = t.profiler->Of("record");
  const Range whole = t.profiler->Of("push")[0];
  REQUIRE(records.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(copies[i].bytes == kChunkElements * 4);
    CHECK(records[i].bytes == kChunkElements * 4);
    CHECK(whole.began < copies[i].began);
    CHECK(copies[i].ended < records[i].began);
    CHECK(records[i].ended < whole.ended);
  }
}

TEST_CASE("trace: a pull to a device copies the payload of its records") {
  Traced t(2);
  auto pull = t.cluster.Pull(t.table, t.cluster.DeviceMemory(t.table, 1.0f));
  REQUIRE(t.cluster.Wait(pull));
  REQUIRE(pull->status.ok());
  CHECK(t.profiler->AllEnded());
  REQUIRE(t.profiler->Of("pull").size() == 1);
  const std::vector<Range> copies = t.profiler->Of("copy to device");
  const std::vector<Range> records = t.profiler->Of("record");
  REQUIRE(copies.size() == 2);
  REQUIRE(records.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(copies[i].bytes == kChunkElements * 4);
    CHECK(records[i].ended < copies[i].began);
    CHECK(copies[i].ended < t.profiler->Of("pull")[0].ended);
  }
}

TEST_CASE("trace: calls that end early leave no range open") {
  Traced t(2);
  t.cluster.servers[0]->hold_pushes = true;
  auto push = t.cluster.Push(t.table, t.cluster.Memory(t.table, 1.0f), 20 * kMilli);
  REQUIRE(t.cluster.Wait(push));
  CHECK(push->status.code() == absl::StatusCode::kDeadlineExceeded);
  REQUIRE(t.profiler->Of("push").size() == 1);
  CHECK(t.profiler->Of("push")[0].ended != 0);
  // Its records are settled all the same.
  t.cluster.servers[0]->hold_pushes = false;
  t.cluster.RunUntil([&t] { return t.profiler->AllEnded(); });
  CHECK(t.profiler->AllEnded());
  CHECK(t.profiler->Of("record").size() >= 2);
}

TEST_CASE("trace: encoding and decoding have ranges with their bytes on the wire") {
  FakeCluster cluster;
  v1::TableSpec spec;
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.set_push_codec(v1::CODEC_BF16);
  spec.set_pull_codec(v1::CODEC_BF16);
  const uint32_t table = cluster.AddTyped(spec, 2 * kChunkElements);
  cluster.Join();
  REQUIRE(client::Tracing());
  ThisProfiler()->ranges.clear();
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f));
  REQUIRE(cluster.Wait(push));
  INFO(push->status);
  REQUIRE(push->status.ok());
  CHECK(ThisProfiler()->AllEnded());
  REQUIRE(ThisProfiler()->Of("encode").size() == 1);
  CHECK(ThisProfiler()->Of("encode")[0].bytes == 2 * kChunkElements * 2);
  for (uint32_t c = 0; c < 2; ++c)
    cluster.servers[0]->stored[{table, c}].resize(kChunkElements * 2);
  auto pull = cluster.Pull(table, cluster.Memory(table, 1.0f));
  REQUIRE(cluster.Wait(pull));
  INFO(pull->status);
  REQUIRE(pull->status.ok());
  CHECK(ThisProfiler()->AllEnded());
  const std::vector<Range> decoded = ThisProfiler()->Of("decode");
  REQUIRE(!decoded.empty());
  CHECK(std::all_of(decoded.begin(), decoded.end(), [](const Range& r) { return r.bytes > 0; }));
}

}  // namespace
}  // namespace verbena::test

extern "C" {
// The symbol that the NVTX headers look for in a program.
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = verbena::test::Attach;
}
