// GPU memory to servers and back through the client, on the servers' host, beside one copy of
// page-locked memory a transfer.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_GPU_SERVERS_H_
#define VERBENA_BENCH_GPU_SERVERS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "bench/cluster.h"
#include "verbena/client.h"

namespace verbena::bench {

class ServersWorld {
 public:
  // One server with `shards`, over shm; `staging` as ClientOptions::staging_bytes.
  static absl::StatusOr<std::unique_ptr<ServersWorld>> Make(const std::string& verbenad, int shards,
                                                            int device, uint64_t staging);
  // An async table (sgd) of so many bytes, and regions on the GPU for it, in place of those before.
  absl::Status UseTable(uint64_t bytes);

  // Bytes per second of whole tables, two in flight at once, for about so long. A push ends when it
  // is applied, a pull when it is on the GPU.
  enum class What { kPush, kPull };
  absl::StatusOr<double> Run(What what, int milliseconds);

 private:
  static constexpr int kDepth = 2;
  ServersWorld() = default;
  Ticket Start(What what, int slot);

  int device_ = 0;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Client> client_;
  Table table_;
  Region regions_[kDepth];
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_GPU_SERVERS_H_
