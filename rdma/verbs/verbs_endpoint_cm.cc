// Events of librdmacm (connections, removal of the device) and of the device.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/verbs/verbs_endpoint_impl.h"
#include "rdma/verbs/verbs_errors.h"

namespace verbena::rdma {
namespace {

// Checking a descriptor is a system call, so during traffic it is done once in this many turns.
constexpr uint32_t kTurnsPerLook = 64;
constexpr int kEventsPerLook = 64;
constexpr uint64_t kEventsOfConnection = 4;  // maximum number of unread librdmacm events per
                                             // connection
// While this many events are not taken, librdmacm's events stay in the kernel, which refuses
// requests beyond the backlog. So the number of events is bounded for any number of peers.
constexpr size_t kMostEvents = 64;
constexpr int kInvalidServiceId = 8;  // REJ reason codes: IBTA vol. 1, 12.6.7.2
constexpr int kConsumerReject = 28;

// The peer's text in a refusal; only printable characters, because it is untrusted.
std::string Printable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\0') break;
    out.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  return out;
}

absl::Status RejectedStatus(int reason, const std::string& private_data, const std::string& peer) {
  if (reason == kInvalidServiceId) {
    return absl::UnavailableError(absl::StrCat("nothing listens at ", peer));
  }
  const std::string text = Printable(private_data);
  // Without a text the refusal comes from the kernel: its queue for the listener is full.
  if (reason == kConsumerReject && text.empty()) {
    return absl::AbortedError(
        absl::StrCat("refused by ", peer, ": too many connection requests wait there; try again"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("refused by ", peer, text.empty() ? "" : ": ", text,
                   reason == kConsumerReject ? "" : absl::StrCat(" (REJ reason ", reason, ")")));
}

}  // namespace

int64_t VerbsEndpointImpl::DeadlineFromNow() const {
  return clock_.NowNanos() + absl::ToInt64Nanoseconds(options_.connect_timeout);
}

size_t VerbsEndpointImpl::PollEvents(absl::Span<ConnectionEvent> out) {
  if (look_ || !connecting_.empty() || ++turns_ % kTurnsPerLook == 0) {
    look_ = false;
    if (device_ == nullptr) {
      (void)NeedDevice();
    } else {
      const bool read_all = PollCm();
      if (!read_all) look_ = true;
      PollDeviceEvents();
      CheckTimers(read_all);
    }
    RetryStuck();
    LetGo();
  }
  LoseFailing();
  std::erase_if(queues_, [this](const auto& queue) {
    if (!queue->broken || queue->used != 0) return false;
    if (device_ != nullptr) device_->Unwatch(queue->cq.get());
    return true;
  });
  size_t n = 0;
  while (n < out.size() && !events_.empty()) {
    out[n] = events_.pop();
    if (out[n].kind == ConnectionEvent::Kind::kEstablished) {
      if (VerbsConnection* connection = Find(out[n].connection)) {
        connection->reported = true;
        for (const Completion& completion : connection->held) ready_.push(completion);
        connection->held.clear();
      }
    }
    ++n;
  }
  return n;
}

bool VerbsEndpointImpl::PollCm() {
  for (int i = 0; i < kEventsPerLook && device_ != nullptr; ++i) {
    if (events_.size() >= kMostEvents) return false;
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(events_channel_.get(), &event) != 0) return true;
    ++cm_events_;
    const rdma_cm_event_type type = event->event;
    const int status = event->status;
    rdma_cm_id* const id = event->id;
    std::string private_data;
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST || type == RDMA_CM_EVENT_REJECTED) {
      private_data.assign(static_cast<const char*>(event->param.conn.private_data),
                          event->param.conn.private_data_len);
    }
    // Before any id is destroyed, because that waits for the acknowledgement.
    rdma_ack_cm_event(event);
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      OnRequest(id, std::move(private_data));
    } else if (type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
      const std::string text = absl::StrCat("RDMA device ", device(), " was removed");
      Log(text);
      device_->SetRemoved();
      CloseDevice(text);
    } else if (id->context != nullptr) {
      OnCmEvent(static_cast<VerbsConnection*>(id->context), type, status, private_data);
    }
  }
  return device_ == nullptr;
}

void VerbsEndpointImpl::NextStage(VerbsConnection* connection) {
  connection->deadline_ns = DeadlineFromNow();
  connection->last_event = 0;
}

void VerbsEndpointImpl::OnRequest(rdma_cm_id* id, std::string private_data) {
  CmIdHandle cm_id(id);
  if (id->verbs != device_->context()) {
    constexpr std::string_view kWhy = "the request came in over another device";
    (void)rdma_reject(id, kWhy.data(), static_cast<uint8_t>(kWhy.size()));
    return;
  }
  const ConnectionId connection = Adopt(std::move(cm_id), State::kRequested);
  // The data arrives padded to the size of the message.
  private_data.resize(std::min(private_data.size(), kMaxPrivateData));
  Report(ConnectionEvent::Kind::kRequest, connection, {}, std::move(private_data));
}

void VerbsEndpointImpl::OnCmEvent(VerbsConnection* connection, rdma_cm_event_type type, int status,
                                  const std::string& private_data) {
  if (connection->state == State::kClosed || connection->state == State::kLost) return;
  const std::string peer = connection->Path().remote;
  switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED: {
      NextStage(connection);
      const int timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(options_.connect_timeout));
      if (rdma_resolve_route(connection->cm_id(), timeout_ms) != 0) {
        Lose(connection, ErrnoStatus(absl::StrCat("no route to ", peer), errno));
      }
      break;
    }
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      Connecting(connection);
      break;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      OnResponse(connection);
      break;
    case RDMA_CM_EVENT_ESTABLISHED:
      if (connection->state == State::kConnecting) Established(connection);
      break;
    case RDMA_CM_EVENT_REJECTED:
      Lose(connection, RejectedStatus(status, private_data, peer));
      break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_CONNECT_ERROR:
      Lose(connection, ErrnoStatus(absl::StrCat("cannot reach ", peer, " from ", device(), " (",
                                                rdma_event_str(type), ")"),
                                   status < 0 ? -status : EHOSTUNREACH));
      break;
    case RDMA_CM_EVENT_DISCONNECTED:
      Lose(connection, absl::UnavailableError(absl::StrCat("the peer ", peer, " disconnected")));
      break;
    default:
      break;  // ADDR_CHANGE, TIMEWAIT_EXIT: no action
  }
}

void VerbsEndpointImpl::Connecting(VerbsConnection* connection) {
  rdma_conn_param parameters = {};
  parameters.private_data = connection->private_data.data();
  parameters.private_data_len = static_cast<uint8_t>(connection->private_data.size());
  parameters.responder_resources = 1;
  parameters.initiator_depth = 1;
  parameters.flow_control = 1;
  parameters.retry_count = static_cast<uint8_t>(options_.retries);
  parameters.rnr_retry_count = 0;
  parameters.qp_num = connection->qp()->qp_num;
  if (rdma_connect(connection->cm_id(), &parameters) != 0) {
    Lose(connection, ErrnoStatus("rdma_connect", errno));
    return;
  }
  NextStage(connection);
  connection->state = State::kConnecting;
}

// The peer has accepted: this queue pair must be able to receive before the peer may write.
void VerbsEndpointImpl::OnResponse(VerbsConnection* connection) {
  if (connection->state != State::kConnecting || !connection->initiator) return;
  NextStage(connection);
  if (absl::Status s = connection->MakeReady(options_); !s.ok()) {
    Lose(connection, std::move(s));
  } else if (!connection->binding()) {
    FinishBinding(connection);
  }
}

// The windows are bound, so their keys are valid from now on and the connection can be completed.
void VerbsEndpointImpl::FinishBinding(VerbsConnection* connection) {
  if (connection->initiator) {
    if (rdma_establish(connection->cm_id()) != 0) {
      connection->Fail(ErrnoStatus("rdma_establish", errno));
      failing_.push_back(connection->id());
      return;
    }
    Established(connection);
    return;
  }
  rdma_conn_param parameters = {};
  parameters.responder_resources = 1;
  parameters.initiator_depth = 1;
  parameters.flow_control = 1;
  parameters.rnr_retry_count = 0;
  parameters.qp_num = connection->qp()->qp_num;
  if (rdma_accept(connection->cm_id(), &parameters) != 0) {
    connection->Fail(ErrnoStatus("rdma_accept", errno));
    failing_.push_back(connection->id());
    return;
  }
  NextStage(connection);
  connection->state = State::kConnecting;
}

void VerbsEndpointImpl::Established(VerbsConnection* connection) {
  connection->state = State::kEstablished;
  if (connection->settings() != settings_) {
    settings_ = connection->settings();
    Log(absl::StrCat("verbs on ", device(), ": ", settings_));
  }
  connecting_.erase(std::remove(connecting_.begin(), connecting_.end(), connection),
                    connecting_.end());
  Report(ConnectionEvent::Kind::kEstablished, connection->id());
}

void VerbsEndpointImpl::PollDeviceEvents() {
  if (device_ == nullptr) return;
  bool fatal = false;
  for (const std::string& text : device_->PollAsync(&fatal)) Log(text);
  uint64_t count = 0;
  (void)!read(wake_.get(), &count, sizeof(count));
  std::vector<AsyncInbox::Event> events;
  {
    const std::lock_guard<std::mutex> lock(inbox_->mutex);
    events.swap(inbox_->events);
  }
  for (const auto& [id, queue, type] : events) {
    if (type == IBV_EVENT_CQ_ERR) {
      OnQueueError(queue);
      continue;
    }
    VerbsConnection* connection = Find(static_cast<ConnectionId>(id));
    if (connection == nullptr || !connection->has_queue_pair()) continue;
    // A completion of the same failure has more details, so those are read first.
    DrainQueue(connection->queue());
    const PathText path = connection->Path();
    connection->Fail(absl::UnavailableError(absl::StrCat(
        ibv_event_type_str(type), " on ", path.local, ", peer ", path.remote,
        type == IBV_EVENT_QP_ACCESS_ERR
            ? "; the peer wrote to memory that is not exposed to this queue pair (any more)"
            : "")));
    failing_.push_back(connection->id());
  }
  if (fatal) CloseDevice(absl::StrCat("RDMA device ", device(), " has failed"));
}

// Completions may be missing from now on, so no connection of the queue can continue. Completions
// that are in it are valid and are read.
void VerbsEndpointImpl::OnQueueError(const ibv_cq* cq) {
  const auto queue = std::find_if(queues_.begin(), queues_.end(),
                                  [cq](const auto& one) { return one->cq.get() == cq; });
  if (queue == queues_.end()) return;
  (*queue)->broken = true;
  DrainQueue(queue->get());
  const std::string text = absl::StrCat(
      "verbs on ", device(), ": a completion queue of ", (*queue)->capacity,
      " entries has failed (IBV_EVENT_CQ_ERR: an overrun, or an error of the device; see the "
      "kernel's log); its lanes end, and open again on a new queue");
  Log(text);
  for (const auto& [id, connection] : connections_) {
    if (connection->queue() != queue->get() || connection->state == State::kClosed) continue;
    connection->Fail(absl::UnavailableError(text));
    failing_.push_back(connection->id());
  }
}

// A peer whose reply waits to be read is not late. So while events are unread, an overdue
// connection waits until all events that may have been there by then are read. Events come in
// order, so continuous new events do not delay a timer.
bool VerbsEndpointImpl::IsLate(VerbsConnection* connection, bool read_all) const {
  if (read_all) return true;
  if (connection->last_event == 0) {
    connection->last_event = cm_events_ + kEventsOfConnection * connections_.size() +
                             static_cast<uint64_t>(options_.backlog);
  }
  return cm_events_ >= connection->last_event;
}

void VerbsEndpointImpl::CheckTimers(bool read_all) {
  if (connecting_.empty()) return;
  const int64_t now = clock_.NowNanos();
  for (size_t i = 0; i < connecting_.size();) {
    VerbsConnection* connection = connecting_[i];
    if (connection->deadline_ns > now || !IsLate(connection, read_all)) {
      ++i;
      continue;
    }
    // Lose() removes it from the list.
    Lose(connection, absl::DeadlineExceededError(absl::StrCat(
                         "no connection with ", connection->Path().remote, " from ", device(),
                         " within ", absl::FormatDuration(options_.connect_timeout))));
  }
}

}  // namespace verbena::rdma
