#include "rdma/verbs/verbs_cm.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/verbs/verbs_endpoint_impl.h"
#include "rdma/verbs/verbs_errors.h"

namespace verbena::rdma {
namespace {

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

int64_t VerbsCm::DeadlineFromNow() const {
  return core_.clock.NowNanos() + absl::ToInt64Nanoseconds(core_.options.connect_timeout);
}

bool VerbsCm::Poll() {
  for (int i = 0; i < kEventsPerLook && core_.nic != nullptr; ++i) {
    if (core_.events.size() >= kMostEvents) return false;
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(core_.events_channel.get(), &event) != 0) return true;
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
      const std::string text = absl::StrCat("RDMA device ", core_.device(), " was removed");
      core_.Log(text);
      core_.nic->SetRemoved();
      core_.CloseDevice(text);
    } else if (id->context != nullptr) {
      OnEvent(static_cast<VerbsConnection*>(id->context), type, status, private_data);
    }
  }
  return core_.nic == nullptr;
}

void VerbsCm::Add(VerbsConnection* connection) {
  connection->deadline_ns = DeadlineFromNow();
  connecting_.push_back(connection);
}

void VerbsCm::Remove(VerbsConnection* connection) { std::erase(connecting_, connection); }

void VerbsCm::NextStage(VerbsConnection* connection) {
  connection->deadline_ns = DeadlineFromNow();
  connection->last_event = 0;
}

void VerbsCm::OnRequest(rdma_cm_id* id, std::string private_data) {
  CmIdHandle cm_id(id);
  if (id->verbs != core_.nic->context()) {
    constexpr std::string_view kWhy = "the request came in over another device";
    (void)rdma_reject(id, kWhy.data(), static_cast<uint8_t>(kWhy.size()));
    return;
  }
  const ConnectionId connection = core_.Adopt(std::move(cm_id), VerbsConnection::State::kRequested);
  // The data arrives padded to the size of the message.
  private_data.resize(std::min(private_data.size(), kMaxPrivateData));
  core_.Report(ConnectionEvent::Kind::kRequest, connection, {}, std::move(private_data));
}

void VerbsCm::OnEvent(VerbsConnection* connection, rdma_cm_event_type type, int status,
                      const std::string& private_data) {
  if (connection->state == VerbsConnection::State::kClosed ||
      connection->state == VerbsConnection::State::kLost)
    return;
  const std::string peer = connection->Path().remote;
  switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED: {
      NextStage(connection);
      const int timeout_ms =
          static_cast<int>(absl::ToInt64Milliseconds(core_.options.connect_timeout));
      if (rdma_resolve_route(connection->cm_id(), timeout_ms) != 0) {
        core_.ends.Lose(connection, ErrnoStatus(absl::StrCat("no route to ", peer), errno));
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
      if (connection->state == VerbsConnection::State::kConnecting) Established(connection);
      break;
    case RDMA_CM_EVENT_REJECTED:
      core_.ends.Lose(connection, RejectedStatus(status, private_data, peer));
      break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_CONNECT_ERROR:
      core_.ends.Lose(connection,
                      ErrnoStatus(absl::StrCat("cannot reach ", peer, " from ", core_.device(),
                                               " (", rdma_event_str(type), ")"),
                                  status < 0 ? -status : EHOSTUNREACH));
      break;
    case RDMA_CM_EVENT_DISCONNECTED:
      core_.ends.Lose(connection,
                      absl::UnavailableError(absl::StrCat("the peer ", peer, " disconnected")));
      break;
    default:
      break;  // ADDR_CHANGE, TIMEWAIT_EXIT: no action
  }
}

void VerbsCm::Connecting(VerbsConnection* connection) {
  rdma_conn_param parameters = {};
  parameters.private_data = connection->private_data.data();
  parameters.private_data_len = static_cast<uint8_t>(connection->private_data.size());
  parameters.responder_resources = 1;
  parameters.initiator_depth = 1;
  parameters.flow_control = 1;
  parameters.retry_count = static_cast<uint8_t>(core_.options.retries);
  parameters.rnr_retry_count = 0;
  parameters.qp_num = connection->qp()->qp_num;
  if (rdma_connect(connection->cm_id(), &parameters) != 0) {
    core_.ends.Lose(connection, ErrnoStatus("rdma_connect", errno));
    return;
  }
  NextStage(connection);
  connection->state = VerbsConnection::State::kConnecting;
}

// The peer has accepted: this queue pair must be able to receive before the peer may write.
void VerbsCm::OnResponse(VerbsConnection* connection) {
  if (connection->state != VerbsConnection::State::kConnecting || !connection->initiator) return;
  NextStage(connection);
  if (absl::Status s = connection->MakeReady(core_.options); !s.ok()) {
    core_.ends.Lose(connection, std::move(s));
  } else if (!connection->binding()) {
    FinishBinding(connection);
  }
}

void VerbsCm::FinishBinding(VerbsConnection* connection) {
  if (connection->initiator) {
    if (rdma_establish(connection->cm_id()) != 0) {
      connection->Fail(ErrnoStatus("rdma_establish", errno));
      core_.ends.Fail(connection->id());
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
    core_.ends.Fail(connection->id());
    return;
  }
  NextStage(connection);
  connection->state = VerbsConnection::State::kConnecting;
}

void VerbsCm::Established(VerbsConnection* connection) {
  connection->state = VerbsConnection::State::kEstablished;
  if (connection->settings() != settings_) {
    settings_ = connection->settings();
    core_.Log(absl::StrCat("verbs on ", core_.device(), ": ", settings_));
  }
  Remove(connection);
  core_.Report(ConnectionEvent::Kind::kEstablished, connection->id());
}

bool VerbsCm::IsLate(VerbsConnection* connection, bool read_all) const {
  if (read_all) return true;
  if (connection->last_event == 0) {
    connection->last_event = cm_events_ + kEventsOfConnection * core_.connections.size() +
                             static_cast<uint64_t>(core_.options.backlog);
  }
  return cm_events_ >= connection->last_event;
}

void VerbsCm::CheckTimers(bool read_all) {
  if (connecting_.empty()) return;
  const int64_t now = core_.clock.NowNanos();
  for (size_t i = 0; i < connecting_.size();) {
    VerbsConnection* connection = connecting_[i];
    if (connection->deadline_ns > now || !IsLate(connection, read_all)) {
      ++i;
      continue;
    }
    // Lose() removes it from the list.
    core_.ends.Lose(connection,
                    absl::DeadlineExceededError(absl::StrCat(
                        "no connection with ", connection->Path().remote, " from ", core_.device(),
                        " within ", absl::FormatDuration(core_.options.connect_timeout))));
  }
}

}  // namespace verbena::rdma
