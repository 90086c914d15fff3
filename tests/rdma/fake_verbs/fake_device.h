// The objects behind the handles of fake_verbs.h.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_RDMA_FAKE_VERBS_FAKE_DEVICE_H_
#define VERBENA_TESTS_RDMA_FAKE_VERBS_FAKE_DEVICE_H_

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <deque>

namespace verbena::rdma {

struct FakeCq : ibv_cq {
  std::deque<ibv_wc> completions;
};

struct FakeMw : ibv_mw {
  uint32_t qp_num = 0;  // it is bound to; 0: to none
  uint64_t address = 0;
  uint64_t bytes = 0;
};

struct FakeMr : ibv_mr {
  int access = 0;
};

struct FakeQp : ibv_qp {
  uint32_t dest_qp_num = 0;
  std::deque<uint64_t> receives;  // wr_ids
};

FakeQp* FindFakeQp(uint32_t qp_num);

// The one context; made when it is first bound to, as librdmacm does.
ibv_context* OpenFakeDevice();

// The result of a library's function that has failed.
inline int FakeError(int error) {
  errno = error;
  return -1;
}

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_FAKE_VERBS_FAKE_DEVICE_H_
