// Temporary copies of inputs that can be read only once (pipes) or only from the start (gzip,
// zstd).
//
// A copy is decoded, has no name and goes with its last descriptor.
//
// **Thread safety**: one thread.
#ifndef VERBENA_WORKER_DATA_SPOOL_H_
#define VERBENA_WORKER_DATA_SPOOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "rdma/base/unique_fd.h"
namespace verbena::worker {

class Spool {
 public:
  // Up to `limit` bytes of all copies together, in $TMPDIR or /tmp.
  explicit Spool(uint64_t limit) : limit_(limit) {}

  // The rest of `fd`, decoded. `name` is the input's, for errors. `copied` is called from
  // time to time, and when a signal came, with the bytes of this copy; its error ends the copy.
  // RESOURCE_EXHAUSTED names the limit, or the full folder.
  absl::StatusOr<rdma::UniqueFd> Copy(int fd, const std::string& name,
                                      const std::function<absl::Status(uint64_t)>& copied);

 private:
  const uint64_t limit_;
  uint64_t used_ = 0;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_SPOOL_H_
