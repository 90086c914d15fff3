// Makes a driver of the imitation and the kernels: what loads the library has both.
#include "tests/gpu/fake_kernels.h"

namespace {

__attribute__((constructor)) void Define() { verbena::worker::DefineFakeKernels(); }

}  // namespace
