// The fake of libibverbs: objects, work requests, asynchronous events.
#include "tests/rdma/fake_verbs/fake_device.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "tests/rdma/fake_verbs/fake_verbs.h"

namespace verbena::rdma {
namespace {

struct Objects {
  ibv_device device = {};
  ibv_context context = {};
  uint32_t next_number = 100;
  std::map<uint32_t, FakeQp*> queue_pairs;
  std::map<uint32_t, FakeMw*> windows;  // by the key they are bound with
  std::mutex regions_mutex;
  std::map<uint32_t, FakeMr*> regions;  // by rkey; under regions_mutex
};

Objects& objects() {
  static auto* const all = new Objects;
  return *all;
}

void Complete(ibv_cq* cq, uint64_t wr_id, uint32_t qp_num, ibv_wc_status status,
              ibv_wc_opcode opcode, uint32_t immediate = 0) {
  ibv_wc completion = {};
  completion.wr_id = wr_id;
  completion.status = status;
  completion.opcode = opcode;
  completion.qp_num = qp_num;
  if (opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    completion.wc_flags = IBV_WC_WITH_IMM;
    completion.imm_data = immediate;
  }
  static_cast<FakeCq*>(cq)->completions.push_back(completion);
}

void FlushReceives(FakeQp* qp) {
  for (const uint64_t wr_id : qp->receives) {
    Complete(qp->recv_cq, wr_id, qp->qp_num, IBV_WC_WR_FLUSH_ERR, IBV_WC_RECV);
  }
  qp->receives.clear();
}

bool MayWrite(const FakeQp& peer, uint32_t key, uint64_t address, uint64_t bytes) {
  if (bytes == 0) return true;
  const auto window = objects().windows.find(key);
  if (window != objects().windows.end()) {
    const FakeMw& mw = *window->second;
    return mw.qp_num == peer.qp_num && address >= mw.address &&
           address + bytes <= mw.address + mw.bytes;
  }
  const std::lock_guard<std::mutex> lock(objects().regions_mutex);
  const auto region = objects().regions.find(key);
  if (region == objects().regions.end()) return false;
  const FakeMr& mr = *region->second;
  const auto base = reinterpret_cast<uint64_t>(mr.addr);
  return (mr.access & IBV_ACCESS_REMOTE_WRITE) != 0 && mr.pd == peer.pd && address >= base &&
         address + bytes <= base + mr.length;
}

ibv_wc_status Write(FakeQp* qp, const ibv_send_wr& request) {
  FakeQp* const peer = FindFakeQp(qp->dest_qp_num);
  if (peer == nullptr || peer->state == IBV_QPS_ERR) return IBV_WC_RETRY_EXC_ERR;
  uint64_t bytes = 0;
  for (int i = 0; i < request.num_sge; ++i) bytes += request.sg_list[i].length;
  if (!MayWrite(*peer, request.wr.rdma.rkey, request.wr.rdma.remote_addr, bytes)) {
    peer->state = IBV_QPS_ERR;
    FlushReceives(peer);
    return IBV_WC_REM_ACCESS_ERR;
  }
  auto* to = reinterpret_cast<std::byte*>(request.wr.rdma.remote_addr);
  for (int i = 0; i < request.num_sge; ++i) {
    const ibv_sge& sge = request.sg_list[i];
    std::memcpy(to, reinterpret_cast<const void*>(sge.addr), sge.length);
    to += sge.length;
  }
  if (request.opcode != IBV_WR_RDMA_WRITE_WITH_IMM) return IBV_WC_SUCCESS;
  if (peer->receives.empty()) return IBV_WC_RNR_RETRY_EXC_ERR;
  Complete(peer->recv_cq, peer->receives.front(), peer->qp_num, IBV_WC_SUCCESS,
           IBV_WC_RECV_RDMA_WITH_IMM, request.imm_data);
  peer->receives.pop_front();
  return IBV_WC_SUCCESS;
}

int Bind(FakeQp* qp, const ibv_send_wr& request) {
  const auto& bind = request.bind_mw;
  const uint64_t most = fake_verbs().max_bind_bytes;
  if (most != 0 && bind.bind_info.length > most) return EOPNOTSUPP;
  fake_verbs().binds.push_back({bind.bind_info.length, bind.bind_info.mw_access_flags});
  auto* const mw = static_cast<FakeMw*>(bind.mw);
  mw->qp_num = qp->qp_num;
  mw->address = bind.bind_info.addr;
  mw->bytes = bind.bind_info.length;
  mw->rkey = bind.rkey;
  objects().windows[bind.rkey] = mw;
  return 0;
}

int PostSend(ibv_qp* handle, ibv_send_wr* request, ibv_send_wr** bad) {
  auto* const qp = static_cast<FakeQp*>(handle);
  for (; request != nullptr; request = request->next) {
    const bool bind = request->opcode == IBV_WR_BIND_MW;
    ibv_wc_status status = IBV_WC_SUCCESS;
    if (qp->state == IBV_QPS_ERR) {
      status = IBV_WC_WR_FLUSH_ERR;
    } else if (qp->state != IBV_QPS_RTS) {
      *bad = request;
      return EINVAL;
    } else if (bind) {
      if (const int error = Bind(qp, *request); error != 0) {
        *bad = request;
        return error;
      }
    } else {
      status = Write(qp, *request);
    }
    if (bind && status == IBV_WC_SUCCESS && fake_verbs().binds_hang) continue;
    if (status != IBV_WC_SUCCESS || (request->send_flags & IBV_SEND_SIGNALED) != 0) {
      Complete(qp->send_cq, request->wr_id, qp->qp_num, status,
               bind ? IBV_WC_BIND_MW : IBV_WC_RDMA_WRITE);
    }
    if (status != IBV_WC_SUCCESS && qp->state != IBV_QPS_ERR) {
      qp->state = IBV_QPS_ERR;
      FlushReceives(qp);
    }
  }
  return 0;
}

int PostReceive(ibv_qp* handle, ibv_recv_wr* request, ibv_recv_wr** /*bad*/) {
  auto* const qp = static_cast<FakeQp*>(handle);
  for (; request != nullptr; request = request->next) qp->receives.push_back(request->wr_id);
  if (qp->state == IBV_QPS_ERR) FlushReceives(qp);
  return 0;
}

int PollQueue(ibv_cq* handle, int most, ibv_wc* out) {
  auto* const cq = static_cast<FakeCq*>(handle);
  fake_verbs().skipped_ns += fake_verbs().poll_ns;
  int count = 0;
  for (; count < most && !cq->completions.empty(); ++count) {
    out[count] = cq->completions.front();
    cq->completions.pop_front();
  }
  return count;
}

ibv_mw* AllocateWindow(ibv_pd* pd, ibv_mw_type type) {
  auto* const mw = new FakeMw;
  mw->context = pd->context;
  mw->pd = pd;
  mw->type = type;
  mw->rkey = ++objects().next_number << 8;
  return mw;
}

int DeallocateWindow(ibv_mw* handle) {
  auto* const mw = static_cast<FakeMw*>(handle);
  objects().windows.erase(mw->rkey);
  delete mw;
  return 0;
}

}  // namespace

FakeVerbs& fake_verbs() {
  static auto* const fake = new FakeVerbs;
  return *fake;
}

void ResetFakeVerbs() {
  ibv_context* const context = fake_verbs().context;
  fake_verbs() = FakeVerbs();
  fake_verbs().context = context;
}

FakeQp* FindFakeQp(uint32_t qp_num) {
  const auto it = objects().queue_pairs.find(qp_num);
  return it == objects().queue_pairs.end() ? nullptr : it->second;
}

ibv_context* OpenFakeDevice() {
  Objects& all = objects();
  if (fake_verbs().context != nullptr) return fake_verbs().context;
  std::strcpy(all.device.name, "fake0");
  all.device.transport_type = IBV_TRANSPORT_IB;
  all.context.device = &all.device;
  all.context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  all.context.cmd_fd = -1;
  all.context.ops.alloc_mw = AllocateWindow;
  all.context.ops.dealloc_mw = DeallocateWindow;
  all.context.ops.poll_cq = PollQueue;
  all.context.ops.req_notify_cq = [](ibv_cq*, int) { return 0; };
  all.context.ops.post_send = PostSend;
  all.context.ops.post_recv = PostReceive;
  fake_verbs().context = &all.context;
  return fake_verbs().context;
}

size_t LiveFakeRegions() {
  const std::lock_guard<std::mutex> lock(objects().regions_mutex);
  return objects().regions.size();
}

}  // namespace verbena::rdma

using namespace verbena::rdma;  // NOLINT: the libraries' interface is global

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  // The clock of MonotonicClock.
  if (clock == CLOCK_BOOTTIME && fake_verbs().stopped_at_ns != 0) {
    time->tv_sec = fake_verbs().stopped_at_ns / 1'000'000'000;
    time->tv_nsec = fake_verbs().stopped_at_ns % 1'000'000'000;
  }
  const int64_t ns = time->tv_nsec + fake_verbs().skipped_ns;
  time->tv_sec += ns / 1'000'000'000;
  time->tv_nsec = ns % 1'000'000'000;
  return result;
}

ibv_device** ibv_get_device_list(int* count) {
  OpenFakeDevice();
  auto** const list = new ibv_device* [2] { &objects().device, nullptr };
  if (count != nullptr) *count = 1;
  return list;
}
void ibv_free_device_list(ibv_device** list) { delete[] list; }

int ibv_query_device(ibv_context* /*context*/, ibv_device_attr* attributes) {
  *attributes = {};
  attributes->max_qp = 1000;
  attributes->max_qp_wr = 16384;
  attributes->max_sge = 30;
  attributes->max_cqe = 1 << 20;
  attributes->max_mr_size = ~uint64_t{0};
  attributes->device_cap_flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  return 0;
}

int(ibv_query_port)(ibv_context* /*context*/, uint8_t /*port*/, _compat_ibv_port_attr* out) {
  auto* const attributes = reinterpret_cast<ibv_port_attr*>(out);
  attributes->state = IBV_PORT_ACTIVE;
  attributes->max_msg_sz = 1U << 30;
  attributes->gid_tbl_len = 8;
  attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

int ibv_query_gid(ibv_context* /*context*/, uint8_t /*port*/, int index, ibv_gid* gid) {
  *gid = {};
  const std::vector<int>& ours = fake_verbs().gid_indexes;
  if (std::find(ours.begin(), ours.end(), index) == ours.end()) return 0;
  const uint8_t mapped[] = {0xff, 0xff, 10, 99, 0, 1};  // ::ffff:10.99.0.1
  std::memcpy(gid->raw + 10, mapped, sizeof(mapped));
  return 0;
}

int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                      uint32_t /*flags*/, size_t /*bytes*/) {
  entry->gid_type = index % 2 == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
  return ibv_query_gid(context, static_cast<uint8_t>(port), static_cast<int>(index), &entry->gid);
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* const pd = new ibv_pd{};
  pd->context = context;
  return pd;
}
int ibv_dealloc_pd(ibv_pd* pd) {
  delete pd;
  return 0;
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t bytes, uint64_t /*iova*/,
                         unsigned access) {
  if (fake_verbs().on_registration) fake_verbs().on_registration(address, bytes);
  const std::lock_guard<std::mutex> lock(objects().regions_mutex);
  fake_verbs().registrations.push_back(access);
  fake_verbs().registered_bytes.push_back(bytes);
  auto* const mr = new FakeMr;
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = address;
  mr->length = bytes;
  mr->access = static_cast<int>(access);
  mr->lkey = mr->rkey = ++objects().next_number << 8;
  objects().regions[mr->rkey] = mr;
  return mr;
}
ibv_mr*(ibv_reg_mr)(ibv_pd* pd, void* address, size_t bytes, int access) {
  return ibv_reg_mr_iova2(pd, address, bytes, 0, static_cast<unsigned>(access));
}
int ibv_dereg_mr(ibv_mr* mr) {
  const std::lock_guard<std::mutex> lock(objects().regions_mutex);
  objects().regions.erase(mr->rkey);
  delete static_cast<FakeMr*>(mr);
  return 0;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* const channel = new ibv_comp_channel{};
  channel->context = context;
  channel->fd = eventfd(0, EFD_CLOEXEC);
  return channel;
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  close(channel->fd);
  delete channel;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* user, ibv_comp_channel* channel,
                      int /*vector*/) {
  if (fake_verbs().create_cq) {
    if (const int error = fake_verbs().create_cq(entries); error != 0) {
      errno = error;
      return nullptr;
    }
  }
  auto* const cq = new FakeCq;
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = user;
  cq->cqe = entries;
  fake_verbs().live_queues.push_back(cq);
  ++fake_verbs().completion_queues_made;
  return cq;
}
int ibv_destroy_cq(ibv_cq* cq) {
  for (const auto& [number, qp] : objects().queue_pairs) {
    if (qp->send_cq == cq || qp->recv_cq == cq) return EBUSY;
  }
  std::erase(fake_verbs().live_queues, cq);
  delete static_cast<FakeCq*>(cq);
  return 0;
}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* asked) {
  fake_verbs().queue_pairs.push_back(*asked);
  if (fake_verbs().create_qp) {
    if (const int error = fake_verbs().create_qp(*asked); error != 0) {
      errno = error;
      return nullptr;
    }
  }
  auto* const qp = new FakeQp;
  qp->context = pd->context;
  qp->qp_context = asked->qp_context;
  qp->pd = pd;
  qp->send_cq = asked->send_cq;
  qp->recv_cq = asked->recv_cq;
  qp->qp_num = ++objects().next_number;
  objects().queue_pairs[qp->qp_num] = qp;
  fake_verbs().live_queue_pairs.push_back(qp);
  return qp;
}

int ibv_destroy_qp(ibv_qp* handle) {
  if (fake_verbs().destroy_qp) {
    if (const int error = fake_verbs().destroy_qp(*handle); error != 0) return error;
  }
  auto* const qp = static_cast<FakeQp*>(handle);
  objects().queue_pairs.erase(qp->qp_num);
  std::erase(fake_verbs().live_queue_pairs, handle);
  delete qp;
  return 0;
}

int ibv_modify_qp(ibv_qp* handle, ibv_qp_attr* attributes, int mask) {
  auto* const qp = static_cast<FakeQp*>(handle);
  if (fake_verbs().modify_qp) {
    const int error = fake_verbs().modify_qp(*qp, attributes->qp_state);
    if (error != 0) return error;
  }
  if ((mask & IBV_QP_DEST_QPN) != 0) qp->dest_qp_num = attributes->dest_qp_num;
  if ((mask & IBV_QP_AV) != 0) {
    fake_verbs().gid_indexes_used.push_back(attributes->ah_attr.grh.sgid_index);
  }
  qp->state = attributes->qp_state;
  if (qp->state == IBV_QPS_ERR) FlushReceives(qp);
  return 0;
}

int ibv_get_async_event(ibv_context* /*context*/, ibv_async_event* event) {
  if (fake_verbs().events.empty()) return FakeError(EAGAIN);
  *event = fake_verbs().events.front();
  fake_verbs().events.erase(fake_verbs().events.begin());
  return 0;
}
void ibv_ack_async_event(ibv_async_event* /*event*/) { ++fake_verbs().acknowledged; }

}  // extern "C"
