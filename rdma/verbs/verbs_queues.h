// The completion queues of a verbs endpoint.
//
// **Thread safety**: the endpoint's thread.
#ifndef VERBENA_RDMA_VERBS_VERBS_QUEUES_H_
#define VERBENA_RDMA_VERBS_VERBS_QUEUES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rdma/base/ring_queue.h"
#include "rdma/transport.h"
#include "rdma/verbs/verbs_connection.h"

namespace verbena::rdma {

class VerbsEndpointImpl;

class VerbsQueues {
 public:
  explicit VerbsQueues(VerbsEndpointImpl* core) : core_(*core) {}

  absl::StatusOr<CompletionQueue*> WithRoom(uint32_t entries);
  size_t Poll(absl::Span<Completion> out);
  // Reads all that is complete.
  void Drain(CompletionQueue* queue);
  void Report(Completion completion);
  // The owner knows that the connection is established: its receives are reported.
  void Release(VerbsConnection* connection);
  // Completions of a connection that its owner has destroyed.
  void Forget(ConnectionId id);
  // Completions may be missing from now on, so no connection of the queue can continue. Completions
  // that are in it are valid and are read.
  void OnError(const ibv_cq* cq);
  // Destroys broken queues that no connection uses.
  void DropBroken();
  // Waits until there is room for another bind, for a limited time. After a timeout it does not
  // wait again before one of the connection's binds has completed.
  void WaitForBinds(VerbsConnection* connection);
  void Close();

  // No completion waits to be taken.
  bool idle() const { return ready_.empty(); }
  // Asks for an event at the next completion, and reads those that came before.
  void Arm();
  void DrainChannel();

 private:
  void PollQueue(CompletionQueue* queue, size_t budget);
  void HandleCompletion(const ibv_wc& completion);

  VerbsEndpointImpl& core_;
  std::vector<std::unique_ptr<CompletionQueue>> queues_;
  RingQueue<Completion> ready_;
  std::vector<Completion> scratch_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_QUEUES_H_
