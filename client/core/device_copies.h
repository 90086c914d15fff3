// Device memory: chunks that go through staging, and the copies in both directions.
//
// A chunk in device memory is sent like host memory if the lane's transport can access it
// (GPUDirect), after the caller's enqueued work is done. Otherwise it is copied to separate staging
// before its record is posted, in advance while there is room, and from staging after its pull is
// answered (device_staging.h). The last buffer for pushes is reserved for the oldest push that is
// not copied, for the same reason for which lanes reserve a slot for it (Poster::ReserveOf()).
// While such a copy runs, the entry and the caller's memory are kept, even after the call has
// ended.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_DEVICE_COPIES_H_
#define VERBENA_CLIENT_CORE_DEVICE_COPIES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/core/lane_set.h"
#include "client/core/pending_request.h"
#include "client/core/table_state.h"
#include "client/staging/device_staging.h"

namespace verbena::client {

class RequestTracker;

class DeviceCopies {
 public:
  // `direct_only`: calls on device memory end with an error if the transport cannot access it.
  DeviceCopies(RequestTracker* tracker, bool direct_only)
      : tracker_(*tracker), direct_only_(direct_only) {}

  // Null: host memory.
  DeviceStaging* StagingFor(const rdma::MemoryBlock& block);
  void CopyAhead(Stream* stream, TableLane* lane);
  // Transfer path of a chunk that is to be posted.
  enum class Way : uint8_t {
    kDirect,  // like host memory
    kStaged,
    kLater,  // the caller's enqueued work is not done
    kEnded,  // its operation has ended
  };
  Way WayOf(Stream* stream, PendingRequest* entry);
  void Land(PendingRequest* entry);  // copies an answered pull to the device
  // For a push whose call has ended: moves the data owed to the server to another entry.
  PendingRequest* LeaveToCopy(PendingRequest* entry);
  void DropCopies(Stream* stream);  // those that wait for a dead lane
  bool CopiesUse(uint64_t block_id) const;

  bool any() const { return !devices_.empty(); }
  bool RunDevices(int64_t now);
  void Flush();
  int64_t NextTimerNanos() const;

 private:
  void EndWith(Stream* stream, PendingRequest* entry, const absl::Status& status);
  // Whether the lane can access its memory directly, and there is no reason for doubt.
  bool GoesDirect(const Stream& stream, const PendingRequest& entry) const;
  bool StartCopy(Stream* stream, PendingRequest* entry);
  bool OldestToCopy(const PendingRequest& entry) const;
  bool TakeBack(const PendingRequest& entry);  // frees a buffer for this push
  void OnCopied(uint64_t cookie, const absl::Status& status);

  RequestTracker& tracker_;
  const bool direct_only_;
  std::vector<std::unique_ptr<DeviceStaging>> devices_;  // only a few
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_DEVICE_COPIES_H_
