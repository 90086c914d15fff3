// The instruction sets of this machine, for tests that compare them.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_TESTS_SHARD_ISAS_H_
#define VERBENA_TESTS_SHARD_ISAS_H_

#include <vector>

#include "shard/codec/isa.h"

namespace verbena::shard {

inline std::vector<Isa> SupportedIsas() {
  std::vector<Isa> supported;
  for (const Isa isa : kAllIsas) {
    if (IsaSupported(isa)) supported.push_back(isa);
  }
  return supported;
}

}  // namespace verbena::shard

#endif  // VERBENA_TESTS_SHARD_ISAS_H_
