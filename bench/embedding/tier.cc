#include "bench/embedding/tier.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace verbena::bench {
namespace {

// The time of a step's computation, for example on a GPU.
constexpr std::chrono::milliseconds kCompute(10);

}  // namespace

absl::Status TierBench::Run() {
  auto cluster = Cluster::Start({.verbenad = settings_.verbenad,
                                 .wire = settings_.wire,
                                 .servers = 1,
                                 .shards = settings_.shards,
                                 .cold = true});
  if (!cluster.ok()) return cluster.status();
  const uint64_t bytes = settings_.rows * settings_.dim * sizeof(float);
  std::printf("%llu bytes of rows, %llu of them in memory; Zipf %.2f\n",
              static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(bytes / 4),
              kZipf);
  const std::string& address = (*cluster)->address();
  auto memory = Worker::Connect(settings_, address, "memory");
  if (!memory.ok()) return memory.status();
  auto tiered = Worker::Connect(settings_, address, "tiered", v1::CODEC_NONE, bytes / 4);
  if (!tiered.ok()) return tiered.status();
  absl::Status status = Load(memory->get(), tiered->get());
  for (const bool push : {false, true}) {
    if (status.ok()) status = Random(memory->get(), tiered->get(), push);
  }
  return status.ok() ? Steps(tiered->get()) : status;
}

absl::Status TierBench::Load(Worker* memory, Worker* tiered) {
  Row row = RowOf(absl::StrCat("tier: load ", settings_.rows, " rows of ", settings_.dim));
  for (Worker* worker : {memory, tiered}) {
    auto rate = worker->Run(/*push=*/true, keys_.All());
    if (!rate.ok()) return rate.status();
    (worker == tiered ? row.value : row.limit).Add(*rate / 1e6);
  }
  report_.Add(std::move(row));
  return absl::OkStatus();
}

absl::Status TierBench::Random(Worker* memory, Worker* tiered, bool push) {
  Row row = RowOf(absl::StrCat("tier: ", push ? "push" : "look up", ", Zipf 1.05"));
  const uint64_t batches = std::max<uint64_t>(1'000'000 / settings_.batch, 8);
  // The first run finds the rows that loading has left in memory.
  for (int repeat = -1; repeat < settings_.repeats; ++repeat) {
    for (Worker* worker : {memory, tiered}) {
      auto rate = worker->Run(push, keys_.Some(batches, /*zipf=*/true));
      if (!rate.ok()) return rate.status();
      if (repeat >= 0) (worker == tiered ? row.value : row.limit).Add(*rate / 1e6);
    }
  }
  report_.Add(std::move(row));
  return absl::OkStatus();
}

absl::Status TierBench::Steps(Worker* tiered) {
  Row row = {kBench,   absl::StrCat("tier: steps that compute ", kCompute.count(), " ms, intended"),
             "step/s", Better::kHigher,
             {},       {}};
  for (int repeat = 0; repeat < settings_.repeats; ++repeat) {
    for (const bool intends : {true, false}) {
      auto rate = tiered->Steps(intends, kCompute, keys_.Some(100, /*zipf=*/true));
      if (!rate.ok()) return rate.status();
      (intends ? row.value : row.limit).Add(*rate);
    }
  }
  report_.Add(std::move(row));
  return absl::OkStatus();
}

}  // namespace verbena::bench
