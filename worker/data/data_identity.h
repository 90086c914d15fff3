// Whether two runs train on the same files, without reading all of them.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_WORKER_DATA_DATA_IDENTITY_H_
#define VERBENA_WORKER_DATA_DATA_IDENTITY_H_

#include <cstdint>
#include <string>
#include <vector>

namespace verbena::worker {

struct DataIdentity {
  uint64_t bytes = 0;  // of all files; 0: not known
  uint64_t hash = 0;   // of sizes, beginnings and ends; less than 2^63
};

// The identity of these files in this order, independent of their location. Not known if one is no
// regular file or cannot be read.
DataIdentity IdentityOf(const std::vector<std::string>& paths);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_DATA_DATA_IDENTITY_H_
