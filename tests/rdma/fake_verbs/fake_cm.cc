// The fake of librdmacm, and the one network interface that its device is on.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <string>

#include "tests/rdma/fake_verbs/fake_device.h"
#include "tests/rdma/fake_verbs/fake_verbs.h"

namespace verbena::rdma {

namespace {

struct Event {
  rdma_cm_event event = {};
  std::string private_data;
};

struct Channel : rdma_event_channel {
  std::deque<Event*> events;
};

struct Id : rdma_cm_id {
  Id* peer = nullptr;
  Id* listener = nullptr;
  uint16_t listens_at = 0;
  int backlog = 0;  // requests that may wait to be read
  uint16_t connects_to = 0;
  uint32_t qp_num = 0;
};

std::vector<Id*>& ids() {
  static auto* const all = new std::vector<Id*>;
  return *all;
}

void Report(Id* id, rdma_cm_event_type type, int status = 0, std::string private_data = {},
            Id* listener = nullptr) {
  auto* const event = new Event;
  event->private_data = std::move(private_data);
  event->event.id = id;
  event->event.listen_id = listener;
  event->event.event = type;
  event->event.status = status;
  event->event.param.conn.private_data = event->private_data.data();
  event->event.param.conn.private_data_len = static_cast<uint8_t>(event->private_data.size());
  static_cast<Channel*>(id->channel)->events.push_back(event);
}

// Requests that wait to be read.
int RequestsOf(const Id* listener) {
  const auto& events = static_cast<Channel*>(listener->channel)->events;
  return static_cast<int>(std::count_if(events.begin(), events.end(), [listener](const Event* e) {
    return e->event.listen_id == listener;
  }));
}

uint16_t PortOf(const sockaddr* address) {
  return be16toh(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
}

sockaddr_in FakeAddress() {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, "10.99.0.1", &address.sin_addr);
  return address;
}

}  // namespace
}  // namespace verbena::rdma

using namespace verbena::rdma;  // NOLINT: the libraries' interface is global

extern "C" {

int getifaddrs(ifaddrs** list) noexcept {
  static sockaddr_in address = FakeAddress();
  static char name[] = "fake-net0";
  static ifaddrs entry = {};
  entry.ifa_name = name;
  entry.ifa_flags = IFF_UP;
  entry.ifa_addr = reinterpret_cast<sockaddr*>(&address);
  *list = &entry;
  return 0;
}
void freeifaddrs(ifaddrs* /*list*/) noexcept {}

rdma_event_channel* rdma_create_event_channel() {
  auto* const channel = new Channel;
  channel->fd = eventfd(0, EFD_CLOEXEC);
  return channel;
}
void rdma_destroy_event_channel(rdma_event_channel* channel) {
  // Requests that nobody has read: as the kernel, which has made no id for them yet.
  const std::vector<Id*> all = ids();
  for (Id* const id : all) {
    if (id->channel == channel) rdma_destroy_id(id);
  }
  close(channel->fd);
  delete static_cast<Channel*>(channel);
}

int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** out, void* context,
                   rdma_port_space space) {
  auto* const id = new Id;
  static_cast<rdma_cm_id&>(*id) = {};
  id->channel = channel;
  id->context = context;
  id->ps = space;
  ids().push_back(id);
  *out = id;
  return 0;
}

int rdma_destroy_id(rdma_cm_id* handle) {
  auto* const id = static_cast<Id*>(handle);
  auto& events = static_cast<Channel*>(id->channel)->events;
  std::erase_if(events, [id](Event* event) {
    if (event->event.id != id) return false;
    delete event;
    return true;
  });
  if (id->peer != nullptr) id->peer->peer = nullptr;
  std::erase(ids(), id);
  delete id;
  return 0;
}

int rdma_bind_addr(rdma_cm_id* id, sockaddr* address) {
  id->verbs = OpenFakeDevice();
  id->port_num = 1;
  std::memcpy(&id->route.addr.src_addr, address, sizeof(sockaddr_in));
  return 0;
}

int rdma_listen(rdma_cm_id* handle, int backlog) {
  static uint16_t next_port = 7000;
  auto* const id = static_cast<Id*>(handle);
  id->backlog = backlog;
  id->listens_at = PortOf(&id->route.addr.src_addr);
  if (id->listens_at == 0) id->listens_at = ++next_port;
  return 0;
}
__be16 rdma_get_src_port(rdma_cm_id* id) { return htobe16(static_cast<Id*>(id)->listens_at); }

int rdma_resolve_addr(rdma_cm_id* handle, sockaddr* /*from*/, sockaddr* to, int /*timeout*/) {
  auto* const id = static_cast<Id*>(handle);
  std::memcpy(&id->route.addr.dst_addr, to, sizeof(sockaddr_in));
  id->connects_to = PortOf(to);
  Report(id, RDMA_CM_EVENT_ADDR_RESOLVED);
  return 0;
}
int rdma_resolve_route(rdma_cm_id* id, int /*timeout*/) {
  Report(static_cast<Id*>(id), RDMA_CM_EVENT_ROUTE_RESOLVED);
  return 0;
}

int rdma_connect(rdma_cm_id* handle, rdma_conn_param* parameters) {
  auto* const id = static_cast<Id*>(handle);
  id->qp_num = parameters->qp_num;
  const auto listener = std::find_if(ids().begin(), ids().end(), [id](const Id* other) {
    return other->listens_at != 0 && other->listens_at == id->connects_to;
  });
  if (listener == ids().end()) {
    Report(id, RDMA_CM_EVENT_REJECTED, 8);
    return 0;
  }
  rdma_cm_id* made = nullptr;
  Id* const parent = *listener;
  // As the kernel does (ucma_connect_event_handler): without private data.
  if (RequestsOf(parent) >= parent->backlog) {
    Report(id, RDMA_CM_EVENT_REJECTED, 28);
    return 0;
  }
  rdma_create_id(parent->channel, &made, parent->context, parent->ps);
  auto* const child = static_cast<Id*>(made);
  child->verbs = parent->verbs;
  child->port_num = 1;
  child->peer = id;
  id->peer = child;
  child->route.addr.src_addr = parent->route.addr.src_addr;
  std::memcpy(&child->route.addr.dst_addr, &id->route.addr.src_addr, sizeof(sockaddr_in));
  Report(
      child, RDMA_CM_EVENT_CONNECT_REQUEST, 0,
      std::string(static_cast<const char*>(parameters->private_data), parameters->private_data_len),
      parent);
  return 0;
}

int rdma_accept(rdma_cm_id* handle, rdma_conn_param* parameters) {
  auto* const id = static_cast<Id*>(handle);
  if (id->peer == nullptr) return FakeError(ENOTCONN);
  id->qp_num = parameters->qp_num;
  Report(id->peer, RDMA_CM_EVENT_CONNECT_RESPONSE);
  return 0;
}
int rdma_establish(rdma_cm_id* handle) {
  auto* const id = static_cast<Id*>(handle);
  if (id->peer == nullptr) return FakeError(ENOTCONN);
  Report(id->peer, RDMA_CM_EVENT_ESTABLISHED);
  return 0;
}
int rdma_reject(rdma_cm_id* handle, const void* data, uint8_t bytes) {
  auto* const id = static_cast<Id*>(handle);
  if (id->peer == nullptr) return FakeError(ENOTCONN);
  Report(id->peer, RDMA_CM_EVENT_REJECTED, 28, std::string(static_cast<const char*>(data), bytes));
  return 0;
}
int rdma_disconnect(rdma_cm_id* handle) {
  auto* const id = static_cast<Id*>(handle);
  if (id->peer == nullptr) return FakeError(EINVAL);
  Report(id->peer, RDMA_CM_EVENT_DISCONNECTED);
  id->peer->peer = nullptr;
  id->peer = nullptr;
  return 0;
}

int rdma_init_qp_attr(rdma_cm_id* handle, ibv_qp_attr* attributes, int* mask) {
  const auto* const id = static_cast<Id*>(handle);
  *mask = IBV_QP_STATE;
  if (attributes->qp_state == IBV_QPS_RTR) {
    *mask |= IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_PATH_MTU;
    attributes->path_mtu = IBV_MTU_4096;
    attributes->ah_attr.is_global = 1;
    attributes->ah_attr.port_num = 1;
    attributes->ah_attr.grh.sgid_index = static_cast<uint8_t>(fake_verbs().cm_gid_index);
    if (id->peer != nullptr) attributes->dest_qp_num = id->peer->qp_num;
  }
  return 0;
}

int rdma_get_cm_event(rdma_event_channel* handle, rdma_cm_event** event) {
  auto* const channel = static_cast<Channel*>(handle);
  if (channel->events.empty()) return FakeError(EAGAIN);
  Event* const first = channel->events.front();
  channel->events.pop_front();
  if (fake_verbs().on_cm_event) fake_verbs().on_cm_event(first->event.event);
  *event = &first->event;
  return 0;
}
int rdma_ack_cm_event(rdma_cm_event* event) {
  delete reinterpret_cast<Event*>(event);  // its first member
  return 0;
}

}  // extern "C"
