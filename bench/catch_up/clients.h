// Clients of a cluster, each a process, that push as fast as they can to an async dense table and
// an async embedding table.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_CATCH_UP_CLIENTS_H_
#define VERBENA_BENCH_CATCH_UP_CLIENTS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::bench {

inline constexpr int kBucketMs = 100;

struct ClientsOptions {
  int clients = 3;
  std::string cluster;  // host:port of the coordinator
  std::string transport = "shm";
  uint64_t dense_bytes = 1'200'000;
  uint64_t rows = 5000;  // keys that are pushed
  uint32_t dim = 64;
  std::string optimizer = "adam";
  // Keys that no push has named before, of each push: rows are made all the time.
  int new_keys = 0;
};

// The main function of a process of Clients::Start(), with the `fd` and `index` it was started
// with. Returns the exit status.
int RunClient(const ClientsOptions& options, int fd, int index);

class Clients {
 public:
  // Starts this program again for each, with arguments that lead to RunClient(). Returns once all
  // have opened their tables.
  static absl::StatusOr<std::unique_ptr<Clients>> Start(const ClientsOptions& options);
  ~Clients();
  Clients(const Clients&) = delete;
  Clients& operator=(const Clients&) = delete;

  // Whether they push. With false, returns once nothing is in flight any more.
  absl::Status SetLoad(bool load);
  // The bucket that counts now.
  int Now() const;
  // Acknowledged pushes a second in windows of `width` buckets that lie in [from, to).
  std::vector<double> Windows(int from, int to, int width) const;
  // The error of a client, if one has failed.
  absl::Status status() const;

 private:
  friend int RunClient(const ClientsOptions& options, int fd, int index);
  struct Shared;
  Clients() = default;

  Shared* shared_ = nullptr;
  std::vector<pid_t> pids_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_CATCH_UP_CLIENTS_H_
