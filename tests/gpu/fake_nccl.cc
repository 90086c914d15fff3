// An imitation of NCCL (libfake_nccl.so) for one process, for the imitated driver: the declarations
// of worker/cuda/nccl.h, in the streams and with the memory of imitated GPUs. A collective is
// done when the last of its streams has come to it.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/gpu/fake_memory.h"
#include "tests/rdma/fake_cuda/fake_cuda.h"
#include "worker/cuda/nccl.h"

namespace verbena::worker {

struct NcclComm {
  int rank = 0;
  int size = 0;
};

namespace {

constexpr int kInvalidArgument = 4;  // ncclInvalidArgument
constexpr int kInvalidUsage = 5;     // ncclInvalidUsage

// One collective, of all ranks.
struct Collective {
  bool reduces;
  size_t count;
  int root;
  std::vector<const void*> from;  // by rank; null: this one has not been called yet
  std::vector<void*> to;
  std::vector<uintptr_t> streams;
  size_t reached = 0;  // streams that have come to it
};

// Between the start and the end of a group.
std::vector<std::shared_ptr<Collective>> grouped;
bool in_group = false;

int group_error = 0, late_error = 0;
int aborted = 0, destroyed = 0;

void Finish(const Collective& c) {
  std::vector<float> result;
  if (!Read(c.from[static_cast<size_t>(c.root)], c.count, &result)) return;
  if (!c.reduces) {
    for (void* to : c.to) Write(to, result);
    return;
  }
  result.assign(c.count, 0.0f);
  for (const void* from : c.from) {
    std::vector<float> part;
    if (!Read(from, c.count, &part)) return;
    for (size_t i = 0; i < c.count; ++i) result[i] += part[i];
  }
  // The results of the other ranks are undefined.
  for (size_t rank = 0; rank < c.to.size(); ++rank) {
    const bool root = static_cast<int>(rank) == c.root;
    Write(c.to[rank], root ? result : std::vector<float>(c.count, -12345.0f));
  }
}

void Reach(void* argument) {
  Collective& c = **static_cast<std::shared_ptr<Collective>*>(argument);
  if (++c.reached == c.to.size()) Finish(c);
}

int Add(bool reduces, const void* from, void* to, size_t count, int type, int root, NcclComm* comm,
        rdma::cuda::Stream stream) {
  if (!in_group) return kInvalidUsage;  // one thread would wait for itself
  const bool fits = type == kNcclFloat && count > 0 && root >= 0 && root < comm->size &&
                    from != nullptr && to != nullptr;
  if (!fits) return kInvalidArgument;
  const auto rank = static_cast<size_t>(comm->rank);
  // The first that this rank has not been called for.
  for (const auto& c : grouped) {
    if (c->from[rank] != nullptr) continue;
    if (c->reduces != reduces || c->count != count || c->root != root) return kInvalidUsage;
    c->from[rank] = from;
    c->to[rank] = to;
    c->streams[rank] = reinterpret_cast<uintptr_t>(stream);
    return kNcclSuccess;
  }
  const auto size = static_cast<size_t>(comm->size);
  auto made = std::make_shared<Collective>(Collective{reduces, count, root, {}, {}, {}, 0});
  made->from.resize(size);
  made->to.resize(size);
  made->streams.resize(size);
  made->from[rank] = from;
  made->to[rank] = to;
  made->streams[rank] = reinterpret_cast<uintptr_t>(stream);
  grouped.push_back(std::move(made));
  return kNcclSuccess;
}

}  // namespace
}  // namespace verbena::worker

using verbena::worker::NcclComm;

extern "C" {

#define FAKE_NCCL __attribute__((visibility("default")))

FAKE_NCCL int ncclCommInitAll(NcclComm** comms, int count, const int* devices) {
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < i; ++j) {
      if (devices[i] == devices[j]) return verbena::worker::kInvalidUsage;
    }
  }
  for (int i = 0; i < count; ++i) comms[i] = new NcclComm{i, count};
  return 0;
}

FAKE_NCCL int ncclCommDestroy(NcclComm* comm) {
  ++verbena::worker::destroyed;
  delete comm;
  return 0;
}

FAKE_NCCL int ncclCommAbort(NcclComm* comm) {
  ++verbena::worker::aborted;
  delete comm;
  return 0;
}

FAKE_NCCL int ncclCommGetAsyncError(NcclComm*, int* error) {
  *error = verbena::worker::late_error;
  return 0;
}

// ---- for tests, found by name -------------------------------------------------------------------
// The next group ends with this error. Communicators have that one from now on; 0: none.
FAKE_NCCL void fake_nccl_fail_group(int error) { verbena::worker::group_error = error; }
FAKE_NCCL void fake_nccl_fail_late(int error) { verbena::worker::late_error = error; }
// How many communicators have been aborted, and destroyed.
FAKE_NCCL int fake_nccl_aborted() { return verbena::worker::aborted; }
FAKE_NCCL int fake_nccl_destroyed() { return verbena::worker::destroyed; }

FAKE_NCCL const char* ncclGetErrorString(int error) {
  return error == 0 ? "no error" : "invalid usage";
}

FAKE_NCCL const char* ncclGetLastError(NcclComm*) { return ""; }

FAKE_NCCL int ncclGroupStart() {
  verbena::worker::in_group = true;
  return 0;
}

FAKE_NCCL int ncclGroupEnd() {
  using verbena::worker::Collective;
  verbena::worker::in_group = false;
  const std::vector<std::shared_ptr<Collective>> all = std::move(verbena::worker::grouped);
  verbena::worker::grouped.clear();
  if (const int error = std::exchange(verbena::worker::group_error, 0); error != 0) return error;
  for (const auto& c : all) {
    for (const void* from : c->from) {
      if (from == nullptr) return verbena::worker::kInvalidUsage;  // it would hang
    }
  }
  for (const auto& c : all) {
    for (const uintptr_t stream : c->streams) {
      const bool enqueued = verbena::rdma::fake_cuda_enqueue(
          stream, verbena::worker::Reach, new std::shared_ptr<Collective>(c),
          [](void* it) { delete static_cast<std::shared_ptr<Collective>*>(it); });
      if (!enqueued) return verbena::worker::kInvalidArgument;
    }
  }
  return 0;
}

FAKE_NCCL int ncclReduce(const void* from, void* to, size_t count, int type, int operation,
                         int root, NcclComm* comm, verbena::rdma::cuda::Stream stream) {
  if (operation != verbena::worker::kNcclSum) return verbena::worker::kInvalidArgument;
  return verbena::worker::Add(true, from, to, count, type, root, comm, stream);
}

FAKE_NCCL int ncclBroadcast(const void* from, void* to, size_t count, int type, int root,
                            NcclComm* comm, verbena::rdma::cuda::Stream stream) {
  return verbena::worker::Add(false, from, to, count, type, root, comm, stream);
}

}  // extern "C"
