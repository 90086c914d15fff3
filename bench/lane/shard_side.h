// The shard's end of the pair: a thread that accepts one lane and answers whatever arrives.
//
// **Thread safety**: one owner thread; Failure(), Expect() and Mismatches() are how it looks at
// the thread it started.
#ifndef VERBENA_BENCH_LANE_SHARD_SIDE_H_
#define VERBENA_BENCH_LANE_SHARD_SIDE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/lane/pair.h"
#include "rdma/lane/shard_lane.h"
#include "rdma/lane/worker_lane.h"
#include "rdma/transport.h"

namespace verbena::bench {

// An endpoint of the pair; one of the two prints the selection. INVALID_ARGUMENT: no such
// transport.
absl::StatusOr<std::unique_ptr<rdma::Endpoint>> NewEndpoint(const PairOptions& options, bool tells);

// Fills a payload so that a page of zeros, or another offset's bytes, cannot pass for it.
void FillPayload(std::byte* to, size_t bytes, uint32_t seed);
bool IsPayload(const std::byte* data, size_t bytes, uint32_t seed);
inline constexpr uint32_t kPushSeed = 1;
inline constexpr uint32_t kPullSeed = 2;

class ShardSide {
 public:
  // `ticket` names the lane to expect; its address is filled in.
  static absl::StatusOr<std::unique_ptr<ShardSide>> Start(const PairOptions& options,
                                                          rdma::LaneTicket* ticket);
  ~ShardSide();

  // Looks at the whole payload of every push from now on, or no longer.
  void Expect(bool whole) { expecting_.store(whole, std::memory_order_release); }
  uint64_t Mismatches() const { return mismatches_.load(std::memory_order_acquire); }
  // OK while the lane works.
  absl::Status Failure() const;

 private:
  ShardSide(const PairOptions& options, const rdma::LaneTicket& ticket);
  void Run(std::promise<absl::StatusOr<std::string>> address);
  absl::StatusOr<std::string> Prepare();
  bool Look(bool events);
  void OnEvent(const rdma::ConnectionEvent& event);
  void OnArrival(const rdma::ShardLane::Arrival& arrival);
  void Fail(const absl::Status& status);

  const PairOptions options_;
  const rdma::LaneTicket ticket_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> expecting_{false};
  std::atomic<uint64_t> mismatches_{0};
  std::atomic<bool> failed_{false};
  absl::Status failure_;  // written before failed_

  // The thread's own.
  std::unique_ptr<rdma::Endpoint> endpoint_;
  std::shared_ptr<rdma::MemoryBlock> source_;  // a payload for each pull in flight
  std::unique_ptr<rdma::ShardLane> lane_;
  rdma::ShardLane::Arrival arrival_;
  std::vector<uint64_t> written_;
  uint32_t next_area_ = 0;

  std::thread thread_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_LANE_SHARD_SIDE_H_
