// Many clients of one process, a thread each: their rounds together, and the memory that they take.
//
// **Thread safety**: one owner thread; Run() starts a thread for each client and joins them.
#ifndef VERBENA_BENCH_WORKERS_CROWD_H_
#define VERBENA_BENCH_WORKERS_CROWD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/cluster.h"
#include "verbena/client.h"

namespace verbena::bench {

// The work of a client in a round: one push and one pull, one round in flight.
enum class Work {
  kDense,  // of an async table
  kSteps,  // of a sync table: a round is a step of all
  kRows,   // of an async embedding table: keys of its own, pushed, then looked up
};

struct CrowdOptions {
  std::string cluster;
  Wire wire;
  size_t dense_bytes = 64 << 10;
  uint32_t dim = 16;
  uint32_t keys = 32;  // of a batch of rows
};

class Crowd {
 public:
  // Connects `clients` clients, sixteen at a time, as workers of one job.
  static absl::StatusOr<std::unique_ptr<Crowd>> Connect(const CrowdOptions& options, int clients);
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  // Makes or opens the table of `work` for every client. Their lanes are open after a Run().
  absl::Status UseTable(Work work);
  // Rounds a second of all together; each does `rounds / clients` of them, at least 2. By so many
  // threads, each of which makes a round of one member after the other; of Work::kSteps, whose
  // rounds wait for those of all members, by one of each.
  absl::StatusOr<double> Run(int rounds, int threads);
  absl::StatusOr<double> Run(int rounds) { return Run(rounds, clients()); }

  int clients() const { return static_cast<int>(members_.size()); }
  // Lanes that are open, of all clients.
  size_t lanes() const;

 private:
  struct Member {
    std::unique_ptr<Client> client;
    Table table;
    Region gradient;
    Region result;
    std::vector<uint64_t> row_keys;
  };
  explicit Crowd(const CrowdOptions& options) : options_(options) {}
  absl::Status ConnectOne(size_t index, size_t clients);
  absl::Status UseTableOf(Member* member) const;
  absl::Status Round(Member* member, int round) const;

  CrowdOptions options_;
  Work work_ = Work::kDense;
  std::vector<Member> members_;
};

// Memory this process has in use, shared pages included (/proc/self/statm).
int64_t OwnResidentBytes();

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_WORKERS_CROWD_H_
