// For tests of the shm transport alone: it is the first of transport_list.cc.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_TESTS_RDMA_TRANSPORT_SHM_H_
#define VERBENA_TESTS_RDMA_TRANSPORT_SHM_H_

#include "tests/rdma/transport_conformance.h"

namespace verbena::rdma {

inline const TransportUnderTest& Shm() { return TransportsUnderTest()[0]; }

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_TRANSPORT_SHM_H_
