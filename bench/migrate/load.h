// Workers that constantly push ones to a dense table and an embedding table, and know the expected
// value of each element.
//
// **Thread safety**: one owner thread; each table has a thread that pushes.
#ifndef VERBENA_BENCH_MIGRATE_LOAD_H_
#define VERBENA_BENCH_MIGRATE_LOAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/cluster_view.h"
#include "verbena/client.h"

namespace verbena::bench {

inline constexpr int kBucketMs = 100;

struct LoadOptions {
  Wire wire;
  uint64_t dense_bytes = uint64_t{1} << 30;  // a multiple of 1 MiB
  uint64_t rows = 10'000'000;
  uint32_t dim = 16;
};

class Load {
 public:
  // Creates both tables in the cluster, and all rows.
  static absl::StatusOr<std::unique_ptr<Load>> Start(const LoadOptions& options,
                                                     const std::string& cluster);
  ~Load() { End().IgnoreError(); }

  // The bucket that counts now, from Run() on.
  int Now() const { return static_cast<int>(MillisecondsSince(start_) / kBucketMs); }
  // Pushes until End(), which returns the first error of a call.
  void Run();
  absl::Status End();
  // DATA_LOSS: an element of a table is not the number of its pushes. After End().
  absl::Status Check();

  // Milliseconds of each push to the dense table that ended in [from, to). After End().
  std::vector<double> Latencies(int from, int to) const;
  // Bytes of acknowledged gradients a second in windows of `width` buckets that lie in [from, to).
  std::vector<double> Dense(int from, int to, int width) const;
  std::vector<double> Rows(int from, int to, int width) const;

 private:
  static constexpr int kBuckets = 36'000;  // an hour
  using Counts = std::vector<std::atomic<uint64_t>>;

  explicit Load(const LoadOptions& options) : options_(options) {}
  absl::Status Connect(const std::string& cluster);
  absl::Status MakeRows();
  // Keeps several pushes in flight; `bytes` of each are counted.
  void PushAll(const std::function<Ticket()>& push, uint64_t bytes, Counts* counts,
               std::vector<std::pair<int, float>>* latencies);
  Ticket PushDense();
  Ticket PushRows();
  void Note(const absl::Status& status);
  absl::Status CheckDense();
  absl::Status CheckRows();

  const LoadOptions options_;
  std::unique_ptr<Client> client_;
  Table dense_, rows_;
  Region dense_ones_, row_ones_, answers_;
  std::atomic<bool> stop_ = false;
  steady_clock::time_point start_ = steady_clock::now();
  Counts dense_bytes_ = Counts(kBuckets), row_bytes_ = Counts(kBuckets);
  std::vector<std::thread> threads_;
  // Of the thread that pushes, until End().
  uint64_t next_range_ = 0;
  std::vector<uint64_t> range_pushes_;
  std::vector<std::pair<int, float>> latencies_;  // bucket, milliseconds
  uint64_t random_ = 1;
  std::vector<uint32_t> row_pushes_;

  std::mutex mutex_;
  absl::Status failed_;  // guarded by mutex_
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_MIGRATE_LOAD_H_
