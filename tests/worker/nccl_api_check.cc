// That our declarations of NCCL (worker/cuda/nccl.h) are those of nccl.h: compiling is the test.
#include <nccl.h>

#include "tests/support/same_function.h"
#include "worker/cuda/nccl.h"

namespace verbena::worker {
namespace {

using test::SameFunction;

#define CHECK_FUNCTION(name, result, parameters) \
  static_assert(SameFunction<decltype(NcclApi::name), decltype(&::name)>::value, #name);
VERBENA_NCCL_FUNCTIONS(CHECK_FUNCTION)
#undef CHECK_FUNCTION
static_assert(kNcclSuccess == ncclSuccess);
static_assert(kNcclInProgress == ncclInProgress);
static_assert(kNcclFloat == ncclFloat32);
static_assert(kNcclSum == ncclSum);

}  // namespace
}  // namespace verbena::worker
