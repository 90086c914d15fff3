// How connections of a verbs endpoint come to be: the events of librdmacm, and the time that each
// stage may take.
//
// **Thread safety**: the endpoint's thread.
#ifndef VERBENA_RDMA_VERBS_VERBS_CM_H_
#define VERBENA_RDMA_VERBS_VERBS_CM_H_

#include <rdma/rdma_cma.h>

#include <cstdint>
#include <string>
#include <vector>

#include "rdma/verbs/verbs_connection.h"

namespace verbena::rdma {

class VerbsEndpointImpl;

class VerbsCm {
 public:
  explicit VerbsCm(VerbsEndpointImpl* core) : core_(*core) {}

  // Whether it has read every event that was available.
  bool Poll();
  // A connection begins a stage, with a deadline; it has ended.
  void Add(VerbsConnection* connection);
  void Remove(VerbsConnection* connection);
  bool busy() const { return !connecting_.empty(); }
  // The windows are bound, so their keys are valid from now on and the connection can be completed.
  void FinishBinding(VerbsConnection* connection);
  // Connections that are late fail.
  void CheckTimers(bool read_all);
  // Settings of the last connection's path, as logged.
  const std::string& settings() const { return settings_; }

 private:
  void OnEvent(VerbsConnection* connection, rdma_cm_event_type type, int status,
               const std::string& private_data);
  void OnRequest(rdma_cm_id* id, std::string private_data);
  void NextStage(VerbsConnection* connection);   // restarts connect_timeout
  void Connecting(VerbsConnection* connection);  // its route is resolved
  void OnResponse(VerbsConnection* connection);
  void Established(VerbsConnection* connection);
  // A peer whose reply waits to be read is not late. So while events are unread, an overdue
  // connection waits until all events that may have been there by then are read. Events come in
  // order, so continuous new events do not delay a timer.
  bool IsLate(VerbsConnection* connection, bool read_all) const;
  int64_t DeadlineFromNow() const;

  VerbsEndpointImpl& core_;
  std::vector<VerbsConnection*> connecting_;  // with a deadline
  uint64_t cm_events_ = 0;                    // number of librdmacm events read so far
  std::string settings_;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_CM_H_
