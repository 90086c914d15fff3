// The memory of a verbs endpoint: registrations with the device, and regions for exposures.
//
// **Thread safety**: the endpoint's thread. Any thread may execute the steps of a started
// registration or exposure: they use the domain (verbs_domain.h) but not the endpoint.
#ifndef VERBENA_RDMA_VERBS_VERBS_MEMORY_H_
#define VERBENA_RDMA_VERBS_VERBS_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/slab_pool.h"
#include "rdma/transport.h"
#include "rdma/verbs/verbs_connection.h"

namespace verbena::rdma {

class VerbsEndpointImpl;

class VerbsMemory {
 public:
  explicit VerbsMemory(VerbsEndpointImpl* core) : core_(*core) {}

  // Makes the slabs for lanes on the device that was opened.
  absl::Status Open(int numa_node);
  void Close();
  absl::StatusOr<std::shared_ptr<DomainView>> View(uint64_t key);
  void LetGo();  // releases the domains of finished steps

  // ---- calls of Endpoint ----
  absl::StatusOr<std::shared_ptr<MemoryBlock>> Allocate(size_t bytes, std::string_view label);
  absl::Status Register(const std::shared_ptr<MemoryBlock>& block);
  absl::StatusOr<std::unique_ptr<Registration>> StartRegistration(
      const std::shared_ptr<MemoryBlock>& block);
  size_t max_exposure() const;
  Endpoint::ExposurePieces exposure_pieces() const;  // while there is a device
  absl::StatusOr<std::unique_ptr<Registration>> StartExposure(
      ConnectionId id, const std::shared_ptr<MemoryBlock>& block, size_t offset, size_t bytes);
  absl::StatusOr<RemoteMemory> FinishExposure(std::unique_ptr<Registration> complete);

 private:
  struct Stepped {
    std::weak_ptr<VerbsDomain::MemorySteps> steps;
    std::shared_ptr<DomainView> view;
  };

  // Keeps the domain as long as the steps exist, because its destructor would wait for a step in
  // progress.
  void Keep(std::shared_ptr<DomainView> view,
            const std::shared_ptr<VerbsDomain::MemorySteps>& steps);

  VerbsEndpointImpl& core_;
  std::shared_ptr<SlabPool> slabs_;
  std::map<uint64_t, std::weak_ptr<DomainView>> views_;
  std::shared_ptr<DomainView> common_view_;  // with windows: shared by every connection
  std::vector<Stepped> stepped_;             // entries of Keep()
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_MEMORY_H_
