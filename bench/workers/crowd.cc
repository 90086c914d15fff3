#include "bench/workers/crowd.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <fstream>
#include <functional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::bench {
namespace {

constexpr size_t kConnectingAtATime = 16;
constexpr int kWarmUpRounds = 2;
constexpr char kJob[] = "crowd";
constexpr uint64_t kRowsOfTable = 1 << 20;

const char* NameOf(Work work) {
  switch (work) {
    case Work::kDense:
      return "dense";
    case Work::kSteps:
      return "steps";
    case Work::kRows:
      return "rows";
  }
  return "";
}

// Calls `work(i)` for each i below `count` from up to `threads` threads; the first error of all.
absl::Status ForEach(size_t count, size_t threads,
                     const std::function<absl::Status(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::vector<absl::Status> statuses(std::min(threads, count));
  std::vector<std::thread> running;
  for (absl::Status& status : statuses) {
    running.emplace_back([&] {
      for (size_t i = next++; i < count && status.ok(); i = next++) status = work(i);
    });
  }
  for (std::thread& thread : running) thread.join();
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

int64_t OwnResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  return file >> size >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

absl::StatusOr<std::unique_ptr<Crowd>> Crowd::Connect(const CrowdOptions& options, int clients) {
  std::unique_ptr<Crowd> crowd(new Crowd(options));
  const auto count = static_cast<size_t>(clients);
  crowd->members_.resize(count);
  const absl::Status status =
      ForEach(count, kConnectingAtATime, [&](size_t i) { return crowd->ConnectOne(i, count); });
  if (!status.ok()) return status;
  return crowd;
}

absl::Status Crowd::ConnectOne(size_t index, size_t clients) {
  ClientOptions options;
  options.cluster = options_.cluster;
  options.job = kJob;
  options.name = absl::StrCat("client-", index);
  options.expected_workers = static_cast<uint32_t>(clients);
  options.transport = options_.wire.transport;
  options.rdma.device = options_.wire.device;
  auto connected = Client::Connect(options);
  if (!connected.ok()) return connected.status();
  members_[index].client = *std::move(connected);
  // Keys of its own, spread over 64 bits as hashed categories are, and so over all partitions.
  for (uint64_t k = 0; k < options_.keys; ++k) {
    const uint64_t row = (index * options_.keys + k) % kRowsOfTable;
    members_[index].row_keys.push_back(row * 0x9e3779b97f4a7c15u);
  }
  return absl::OkStatus();
}

absl::Status Crowd::UseTable(Work work) {
  work_ = work;
  return ForEach(members_.size(), kConnectingAtATime,
                 [&](size_t i) { return UseTableOf(&members_[i]); });
}

absl::Status Crowd::UseTableOf(Member* member) const {
  v1::TableSpec spec;
  spec.set_name(NameOf(work_));
  spec.set_job(kJob);
  const size_t floats = work_ == Work::kRows ? size_t{options_.keys} * options_.dim
                                             : options_.dense_bytes / sizeof(float);
  if (work_ == Work::kRows) {
    spec.set_dim(options_.dim);
  } else {
    spec.add_shape(floats);
  }
  spec.set_consistency(work_ == Work::kSteps ? v1::CONSISTENCY_SYNC : v1::CONSISTENCY_ASYNC);
  spec.set_reduction(v1::REDUCTION_SUM);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1e-3);
  auto table = member->client->CreateTable(spec);
  if (!table.ok()) return table.status();
  member->table = *table;
  auto gradient = member->client->AllocateRegion(floats * sizeof(float));
  if (!gradient.ok()) return gradient.status();
  member->gradient = *std::move(gradient);
  auto result = member->client->AllocateRegion(floats * sizeof(float));
  if (!result.ok()) return result.status();
  member->result = *std::move(result);
  return absl::OkStatus();
}

absl::Status Crowd::Round(Member* member, int round) const {
  Client* const client = member->client.get();
  std::fill_n(member->gradient.floats(), member->gradient.size() / sizeof(float),
              static_cast<float>(round % 7) * 0x1p-10f);
  if (work_ != Work::kRows) {
    return client->PushPull(member->table, member->gradient, member->result).Wait();
  }
  Ticket push = client->PushRows(member->table, member->row_keys, member->gradient);
  Ticket pull = client->Lookup(member->table, member->row_keys, member->result);
  const absl::Status pushed = push.Wait();
  const absl::Status pulled = pull.Wait();
  return pushed.ok() ? pulled : pushed;
}

absl::StatusOr<double> Crowd::Run(int rounds, int threads) {
  using Clock = std::chrono::steady_clock;
  const int each = std::max(2, rounds / clients());
  const auto step = static_cast<size_t>(threads);
  Clock::time_point start;
  // Lanes are open and pages there before the clock starts.
  std::barrier ready(threads, [&]() noexcept { start = Clock::now(); });
  const absl::Status status = ForEach(step, step, [&](size_t t) {
    absl::Status first;
    // One that fails still comes to the barrier: the others wait there.
    for (int r = -kWarmUpRounds; r < each; ++r) {
      if (r == 0) ready.arrive_and_wait();
      for (size_t i = t; i < members_.size() && first.ok(); i += step) {
        first = Round(&members_[i], r + kWarmUpRounds);
      }
    }
    return first;
  });
  if (!status.ok()) return status;
  return static_cast<double>(each) * clients() /
         std::chrono::duration<double>(Clock::now() - start).count();
}

size_t Crowd::lanes() const {
  size_t count = 0;
  for (const Member& member : members_) count += member.client->statistics().lanes.size();
  return count;
}

}  // namespace verbena::bench
