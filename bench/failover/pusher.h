// A worker that pushes to one async table.
//
// **Thread safety**: as verbena::Client.
#ifndef VERBENA_BENCH_FAILOVER_PUSHER_H_
#define VERBENA_BENCH_FAILOVER_PUSHER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/cluster_view.h"
#include "verbena/client.h"

namespace verbena::bench {

class Pusher {
 public:
  // A table of `chunks` chunks of `chunk_bytes`; pushes read one region of `region_chunks`.
  static absl::StatusOr<std::unique_ptr<Pusher>> Connect(const Wire& wire,
                                                         const std::string& cluster,
                                                         uint64_t chunks, uint32_t chunk_bytes,
                                                         uint64_t region_chunks);
  // Pushes `count` <= region_chunks chunks, from `first` on.
  Ticket Push(uint64_t first, uint64_t count);
  uint32_t table_id() const { return table_.id(); }

 private:
  std::unique_ptr<Client> client_;
  Table table_;
  Region region_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_FAILOVER_PUSHER_H_
