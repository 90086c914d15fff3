// Adds the kernels to the imitated driver: a program that loads this library has both.
#include "tests/gpu/fake_kernels.h"

namespace {

__attribute__((constructor)) void Define() { verbena::worker::DefineFakeKernels(); }

}  // namespace
