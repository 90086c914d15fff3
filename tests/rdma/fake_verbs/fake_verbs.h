// An RDMA device in memory, with limits and failures that soft-RoCE does not have. Linked into a
// test, it takes the place of libibverbs and librdmacm: one device, one port, and connections of
// queue pairs within the process, whose work requests are done when they are posted.
//
// **Thread safety**: one thread; regions may be registered and deregistered by any.
#ifndef VERBENA_TESTS_RDMA_FAKE_VERBS_FAKE_VERBS_H_
#define VERBENA_TESTS_RDMA_FAKE_VERBS_FAKE_VERBS_H_

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace verbena::rdma {

struct FakeVerbs {
  // ---- the device's limits and failures ----
  uint64_t max_bind_bytes = 0;  // binds of more are refused with EOPNOTSUPP, as mlx5 does; 0: any
  bool binds_hang = false;      // they neither complete nor fail
  // The errno of ibv_create_qp(), ibv_create_cq(), ibv_destroy_qp(), ibv_modify_qp(); 0: it works.
  std::function<int(const ibv_qp_init_attr& asked)> create_qp;
  std::function<int(int entries)> create_cq;
  std::function<int(const ibv_qp& qp)> destroy_qp;
  std::function<int(const ibv_qp& qp, ibv_qp_state to)> modify_qp;
  // Called for each registration, before it is made, by the thread that asks for it.
  std::function<void(const void* address, size_t bytes)> on_registration;
  // Called for each event of librdmacm before it is handed out.
  std::function<void(rdma_cm_event_type type)> on_cm_event;
  // GID index that librdmacm chooses; the table has the address at each of gid_indexes.
  int cm_gid_index = 1;
  std::vector<int> gid_indexes = {1};
  // Nonzero: MonotonicClock stands at this value, in place of real time.
  int64_t stopped_at_ns = 0;
  int64_t skipped_ns = 0;  // added to the clocks of the process
  int64_t poll_ns = 0;     // the same, for each look at a completion queue

  // ---- observations ----
  struct Bind {
    uint64_t bytes;
    unsigned access;
  };
  std::vector<Bind> binds;
  std::vector<unsigned> registrations;        // their access flags
  std::vector<size_t> registered_bytes;       // their sizes
  std::vector<ibv_qp_init_attr> queue_pairs;  // as asked for, those that were refused too
  std::vector<int> gid_indexes_used;          // of queue pairs moved to RTR

  // ---- the device's state; events to come ----
  ibv_context* context = nullptr;  // once the device is open
  std::vector<ibv_qp*> live_queue_pairs;
  std::vector<ibv_cq*> live_queues;
  int completion_queues_made = 0;
  std::vector<ibv_async_event> events;  // to be read by ibv_get_async_event()
  int acknowledged = 0;
};

// The device of the process, as it was last reset.
FakeVerbs& fake_verbs();
void ResetFakeVerbs();
// Regions that are registered now.
size_t LiveFakeRegions();

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_FAKE_VERBS_FAKE_VERBS_H_
