// The client side of one operation: the contents of its records, and the effect of their replies.
//
// The generic code (client/core: order, posting, resending, settlement, lane loss, failover) reads
// the traits and calls the handler of a record; it does not ask which operation the record is of.
// client/operations/operations.h has the list.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_REQUEST_HANDLER_H_
#define VERBENA_CLIENT_OPERATIONS_REQUEST_HANDLER_H_

#include <cstdint>
#include <string_view>

#include "client/core/pending_request.h"
#include "proto/wire/record.h"

namespace verbena::client {

class RequestTracker;

class RequestHandler {
 public:
  // The queue in which a record waits to be posted.
  enum class Queue : uint8_t {
    kOrdered,  // its table's on its lane, in the order of creation: for changes of data
    kPulls,    // its lane's: the server may defer it, and it changes no data
    kNorms,    // its lane's, without a limit: no step commits without it
  };
  // The counter that a posted record is in.
  enum class Counted : uint8_t { kOrdered, kPulls, kAwaits, kNothing };
  // The buffers that it may take.
  enum class Buffers : uint8_t { kReceived, kPacked, kNorms };
  // The resources of its lane that it leaves free for others (Poster::ReserveOf()).
  enum class Leaves : uint8_t { kNothing, kOperations, kSlots };

  struct Traits {
    RecordType type;
    Queue queue;
    Counted counted;
    Buffers buffers = Buffers::kReceived;
    Leaves leaves = Leaves::kNothing;
    bool contributes = false;  // carries the caller's data; empty ones settle it
    bool assigns = false;      // these are parameters or state, which replace those of the table
    bool state = false;        // of an array of the optimizer's state
    bool chunk = false;        // of one chunk of a dense table
    bool reads = false;        // waits for a version of the data that it returns
    bool awaits = false;       // waits for a commit, and returns no data; posted before pulls
    bool ends_step = false;
    bool in_any_step = false;  // sync: it waits for no commit, and no commit makes it pointless
  };

  RequestHandler(const Traits& traits, RequestTracker* tracker)
      : traits_(traits), tracker_(*tracker) {}
  RequestHandler(const RequestHandler&) = delete;
  RequestHandler& operator=(const RequestHandler&) = delete;

  const Traits& traits() const { return traits_; }
  std::string_view name() const;  // in errors

  // Posts a queued record if its lane has room. False: not now, or its operation has ended.
  virtual bool Post(Stream* stream, PendingRequest* entry) = 0;
  // The record was answered; it is in no queue (PendingRequest::State::kAnswered).
  virtual void OnReply(Stream* stream, PendingRequest* entry, const Reply& reply) = 0;
  // The lane of a posted or accepted record is dead: it is posted again, unless it is not needed.
  virtual void OnLaneLost(PendingRequest* entry) = 0;
  // The record's operation has ended; the record may be in any state. By default it stays.
  virtual void OnOperationEnd(PendingRequest*) {}
  // Bytes that one key of a posted record moves, or all of a record without groups; 0: none.
  virtual uint64_t BytesOf(const PendingRequest&) const { return 0; }

 protected:
  ~RequestHandler() = default;

  const Traits traits_;
  RequestTracker& tracker_;
};

inline const RequestHandler::Traits& TraitsOf(const PendingRequest& entry) {
  return entry.handler->traits();
}
// Whether a record uses the queue of pulls: the server may defer it, and it changes no data.
inline bool IsPull(const PendingRequest& entry) {
  return TraitsOf(entry).queue == RequestHandler::Queue::kPulls;
}
inline bool IsNorms(const PendingRequest& entry) {
  return TraitsOf(entry).queue == RequestHandler::Queue::kNorms;
}
// Whether it pushes a chunk of a dense table.
inline bool PushesChunk(const PendingRequest& entry) {
  return TraitsOf(entry).contributes && TraitsOf(entry).chunk;
}

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_REQUEST_HANDLER_H_
