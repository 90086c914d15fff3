// Set-up and end of a connection; its data path is in verbs_connection_data.cc.
#include "rdma/verbs/verbs_connection.h"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/verbs/verbs_errors.h"
#include "rdma/verbs/verbs_ports.h"

namespace verbena::rdma {
namespace {

ibv_mtu MtuOf(int bytes) {
  switch (bytes) {
    case 256:
      return IBV_MTU_256;
    case 512:
      return IBV_MTU_512;
    case 1024:
      return IBV_MTU_1024;
    case 2048:
      return IBV_MTU_2048;
    default:
      return IBV_MTU_4096;
  }
}

// 1.5 times the send depth, because unsignaled writes that are complete but not known as such also
// take entries.
uint32_t SendEntries(const ConnectionLimits& limits, uint32_t binds) {
  return limits.send_depth + limits.send_depth / 2 + binds;
}

std::string AddressText(const sockaddr* address) {
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) {
    return "?";
  }
  const uint16_t port = address->sa_family == AF_INET6
                            ? reinterpret_cast<const sockaddr_in6*>(address)->sin6_port
                            : reinterpret_cast<const sockaddr_in*>(address)->sin_port;
  const std::string text = IpText(*address);
  return address->sa_family == AF_INET6 ? absl::StrCat("[", text, "]:", be16toh(port))
                                        : absl::StrCat(text, ":", be16toh(port));
}

// ", RoCE v2"; empty if the library does not know the type.
const char* GidTypeText(ibv_context& context, uint8_t port, uint8_t index) {
  ibv_gid_entry entry = {};
  if (ibv_query_gid_ex(&context, port, index, &entry, 0) != 0) return "";
  switch (entry.gid_type) {
    case IBV_GID_TYPE_ROCE_V1:
      return " (RoCE v1)";
    case IBV_GID_TYPE_ROCE_V2:
      return " (RoCE v2)";
    default:
      return "";
  }
}

// max_qp_wr holds for the smallest work requests, and queues are locked memory. So a device may
// refuse smaller sizes with ENOMEM.
absl::Status QueuePairError(const VerbsDevice& device, uint32_t sends, uint32_t receives,
                            int error) {
  const std::string what =
      absl::StrCat("verbs device ", device.name(), ": cannot make a queue pair of ", sends,
                   " sends and ", receives, " receives (max_qp ", device.attributes().max_qp,
                   ", max_qp_wr ", device.attributes().max_qp_wr, ")");
  absl::Status status = ErrnoStatus(what, error);
  if (error != ENOMEM) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(),
                                   "; use smaller lanes (--slots, --large-slots, --operations) "
                                   "or fewer, or raise the limit of locked memory (ulimit -l)"));
}

}  // namespace

absl::StatusOr<const RegisteredMemory*> DomainView::Find(const MemoryBlock& block) {
  const uint64_t id = block.root().id();
  if (id == last_id_) return last_;
  const auto known = known_.find(id);
  if (known != known_.end()) {
    last_ = known->second;
  } else {
    absl::StatusOr<const RegisteredMemory*> registered = domain->Register(block);
    if (!registered.ok()) return registered.status();
    // Entries of deleted blocks are harmless (ids are never reused), but they take memory.
    if (known_.size() >= 4096) known_.clear();
    last_ = *registered;
    known_.emplace(id, last_);
  }
  last_id_ = id;
  return last_;
}

VerbsConnection::~VerbsConnection() {
  std::vector<Completion> unreported;
  if (!Retire(/*device_gone=*/false, &unreported).ok()) Abandon();
}

void VerbsConnection::Abandon() {
  // The device may write to this memory until the process ends, so it must not be reused. Never
  // destroyed; endpoints of several threads add to it.
  struct Kept {
    std::mutex mutex;
    std::vector<std::vector<Exposure>> exposures;
  };
  static auto* const kept = new Kept;
  {
    const std::lock_guard<std::mutex> lock(kept->mutex);
    kept->exposures.push_back(std::move(exposures_));
  }
  exposures_.clear();
  (void)qp_.release();
  queue_ = nullptr;
}

uint32_t VerbsConnection::CompletionEntries(const ConnectionLimits& limits) {
  return SendEntries(limits, kBinds) + limits.receive_depth;
}

absl::Status VerbsConnection::Start(const ConnectionLimits& limits, VerbsDevice* device,
                                    std::shared_ptr<DomainView> view, CompletionQueue* queue,
                                    std::shared_ptr<AsyncInbox> inbox,
                                    const VerbsOptions& options) {
  limits_ = limits;
  view_ = std::move(view);
  device_name_ = device->name();
  windows_ = device->windows();
  max_window_ = options.max_window;
  max_region_ = device->max_registration();
  queue_ = queue;
  if (absl::Status s = MakeQueuePair(limits, *device, options); !s.ok()) return s;
  retired_ = false;
  device_ = device;
  device_->Watch(qp_.get(), {std::move(inbox), static_cast<uint32_t>(id_)});
  entries_ = CompletionEntries(limits);
  queue_->used += entries_;
  return Modify(IBV_QPS_INIT, options);
}

absl::Status VerbsConnection::MakeQueuePair(const ConnectionLimits& limits,
                                            const VerbsDevice& device,
                                            const VerbsOptions& options) {
  const uint32_t sends = SendEntries(limits, kBinds);
  const ibv_device_attr& has = device.attributes();
  const uint32_t most = static_cast<uint32_t>(std::max(0, has.max_qp_wr));
  if (sends > most || limits.receive_depth > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("a connection of ", limits.send_depth, " sends and ", limits.receive_depth,
                     " receives needs queues of ", sends, " and ", limits.receive_depth,
                     " work requests; device ", device.name(), " has at most ", most,
                     " (max_qp_wr): use fewer slots or operations for each lane"));
  }
  max_sges_ = static_cast<uint32_t>(std::clamp(has.max_sge, 1, kMaxSges));
  ibv_port_attr port = {};
  if (ibv_query_port(device.context(), cm_id_->port_num, &port) == 0) {
    max_message_ = port.max_msg_sz;
  }
  // Inline sizes cannot be queried, only tried (ibv_create_qp(3)).
  for (uint32_t inline_bytes = options.inline_bytes;; inline_bytes /= 2) {
    ibv_qp_init_attr attributes = {};
    attributes.send_cq = queue_->cq.get();
    attributes.recv_cq = queue_->cq.get();
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = sends;
    attributes.cap.max_recv_wr = std::max(limits.receive_depth, 1u);
    attributes.cap.max_send_sge = max_sges_;
    attributes.cap.max_recv_sge = 0;  // an immediate needs no memory
    attributes.cap.max_inline_data = inline_bytes;
    qp_.reset(ibv_create_qp(view_->domain->pd(), &attributes));
    if (qp_ != nullptr) {
      inline_bytes_ = std::min(attributes.cap.max_inline_data, options.inline_bytes);
      break;
    }
    if (inline_bytes == 0) {
      return QueuePairError(device, sends, limits.receive_depth, errno);
    }
  }
  sends_.resize(sends);
  signal_every_ = std::max(1u, limits.send_depth / 2);
  return absl::OkStatus();
}

absl::Status VerbsConnection::Modify(ibv_qp_state to, const VerbsOptions& options) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = to;
  int mask = 0;
  if (rdma_init_qp_attr(cm_id_.get(), &attributes, &mask) != 0) {
    return ErrnoStatus(absl::StrCat("rdma_init_qp_attr on ", device_name_), errno);
  }
  if (to == IBV_QPS_INIT) {
    attributes.qp_access_flags =
        IBV_ACCESS_REMOTE_WRITE | (windows_ ? static_cast<unsigned>(IBV_ACCESS_MW_BIND) : 0u);
  } else if (to == IBV_QPS_RTR) {
    if (options.path_mtu != 0) {
      attributes.path_mtu = std::min(attributes.path_mtu, MtuOf(options.path_mtu));
    }
    if (options.service_level >= 0) {
      attributes.ah_attr.sl = static_cast<uint8_t>(options.service_level);
    }
    if (options.traffic_class >= 0) {
      attributes.ah_attr.grh.traffic_class = static_cast<uint8_t>(options.traffic_class);
    }
    // librdmacm has selected an entry of the address; an address may have several (RoCE v1 and v2).
    if (options.gid_index >= 0) {
      attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(options.gid_index);
    }
    ibv_gid local = {};
    (void)ibv_query_gid(qp_->context, attributes.ah_attr.port_num,
                        attributes.ah_attr.grh.sgid_index, &local);
    path_.local = absl::StrCat(device_name_, ":", attributes.ah_attr.port_num, " GID ",
                               GidText(local), " QPN ", qp_->qp_num);
    path_.remote =
        absl::StrCat(AddressText(rdma_get_peer_addr(cm_id_.get())), " GID ",
                     GidText(attributes.ah_attr.grh.dgid), " QPN ", attributes.dest_qp_num);
    settings_ = absl::StrCat(
        "path MTU ", 128 << attributes.path_mtu, ", service level ", attributes.ah_attr.sl,
        ", traffic class ", attributes.ah_attr.grh.traffic_class, ", GID index ",
        attributes.ah_attr.grh.sgid_index,
        GidTypeText(*qp_->context, attributes.ah_attr.port_num, attributes.ah_attr.grh.sgid_index),
        ", acknowledgement timeout ", options.timeout, ", retries ", options.retries, ", inline ",
        inline_bytes_, " bytes");
  } else if (to == IBV_QPS_RTS) {
    attributes.timeout = static_cast<uint8_t>(options.timeout);
    attributes.retry_cnt = static_cast<uint8_t>(options.retries);
    // A receive is always posted, unless the accounting is wrong. Such a bug must be visible, so
    // there are no retries.
    attributes.rnr_retry = 0;
  }
  if (const int error = ibv_modify_qp(qp_.get(), &attributes, mask); error != 0) {
    return ErrnoStatus(absl::StrCat("cannot move queue pair ", qp_->qp_num, " of ", device_name_,
                                    " to state ", static_cast<int>(to)),
                       error);
  }
  return absl::OkStatus();
}

absl::Status VerbsConnection::MakeReady(const VerbsOptions& options) {
  if (absl::Status s = Modify(IBV_QPS_RTR, options); !s.ok()) return s;
  if (absl::Status s = Modify(IBV_QPS_RTS, options); !s.ok()) return s;
  state = State::kBinding;
  for (Exposure& exposure : exposures_) {
    if (exposure.posted || exposure.window == nullptr) continue;
    if (absl::Status s = PostBind(&exposure); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// ---- exposing -----------------------------------------------------------------------------------

absl::Status VerbsConnection::CheckExposure(const MemoryBlock* block, size_t offset,
                                            size_t bytes) const {
  // Temporary: its kLost or kFailed follows, and the caller's next connection may succeed.
  if (state == State::kLost || failing()) {
    return absl::UnavailableError("the connection has ended");
  }
  if (qp_ == nullptr) {
    return absl::FailedPreconditionError("the connection has no queue pair (any more)");
  }
  if (block == nullptr || bytes == 0 || offset > block->size() || bytes > block->size() - offset) {
    return absl::InvalidArgumentError(absl::StrCat("cannot expose ", bytes, " bytes at ", offset,
                                                   " of a block of ",
                                                   block == nullptr ? 0 : block->size()));
  }
  return absl::OkStatus();
}

std::optional<VerbsDomain::PartUse> VerbsConnection::NeedsOwn(const MemoryBlock& block,
                                                              const std::byte* data,
                                                              size_t bytes) const {
  const VerbsDomain& domain = *view_->domain;
  if (!windows_ || !domain.TakesWindows(block)) return VerbsDomain::PartUse::kPeer;
  const RegisteredMemory* const registered = domain.Find(block);
  if (registered == nullptr || bytes <= registered->LeftAt(data)) return std::nullopt;
  return VerbsDomain::PartUse::kWindow;
}

absl::StatusOr<std::shared_ptr<VerbsDomain::MemorySteps>> VerbsConnection::StartExposure(
    const MemoryBlock& block, size_t offset, size_t bytes) const {
  if (absl::Status s = CheckExposure(&block, offset, bytes); !s.ok()) return s;
  std::byte* const data = block.data() + offset;
  const auto use = NeedsOwn(block, data, bytes);
  if (!use.has_value()) return nullptr;
  return view_->domain->StartPart(block, data, bytes, *use);
}

absl::StatusOr<RemoteMemory> VerbsConnection::Expose(std::shared_ptr<MemoryBlock> block,
                                                     size_t offset, size_t bytes, MrHandle own) {
  if (absl::Status s = CheckExposure(block.get(), offset, bytes); !s.ok()) return s;
  std::byte* const data = block->data() + offset;
  Exposure exposure;
  exposure.block = std::move(block);
  exposure.bytes = bytes;
  exposure.memory.address = reinterpret_cast<uintptr_t>(data);
  const bool window = windows_ && view_->domain->TakesWindows(*exposure.block);
  if (window) {
    absl::StatusOr<const RegisteredMemory*> registered = view_->Find(*exposure.block);
    if (!registered.ok()) return registered.status();
    const uint64_t most = std::min(max_window_, max_region_);
    if (bytes > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("verbs device ", device_name_, ": cannot expose ", bytes,
                       " bytes at once (a memory region "
                       "has at most ",
                       max_region_, " bytes, a memory window ", max_window_,
                       "); expose pieces of at most max_exposure() bytes"));
    }
    exposure.bound_to = (*registered)->At(data);
  }
  if (const auto use = NeedsOwn(*exposure.block, data, bytes); use.has_value()) {
    if (own == nullptr) {
      auto region = view_->domain->RegisterPart(*exposure.block, data, bytes, *use);
      if (!region.ok()) return region.status();
      own = *std::move(region);
    }
    exposure.region = std::move(own);
    exposure.bound_to = exposure.region.get();
  }
  if (!window) {
    exposure.memory.key = exposure.region->rkey;
    exposures_.push_back(std::move(exposure));
    return exposures_.back().memory;
  }
  exposure.window.reset(ibv_alloc_mw(view_->domain->pd(), IBV_MW_TYPE_2));
  if (exposure.window == nullptr) {
    return ErrnoStatus(absl::StrCat("cannot make a memory window on ", device_name_), errno);
  }
  // The owner of a type-2 window selects its key (the low byte) before the bind.
  exposure.memory.key = ibv_inc_rkey(exposure.window->rkey);
  exposures_.push_back(std::move(exposure));
  if (state == State::kEstablished || state == State::kBinding) {
    if (absl::Status s = PostBind(&exposures_.back()); !s.ok()) {
      exposures_.pop_back();
      return s;
    }
  }
  return exposures_.back().memory;
}

absl::Status VerbsConnection::PostBind(Exposure* exposure) {
  if (absl::Status s = Flush(); !s.ok()) return s;
  if (pending_binds_ >= kBinds) {
    return absl::UnavailableError(absl::StrCat(
        "more than ", kBinds, " pieces of memory are being exposed on one connection at a time"));
  }
  ibv_send_wr request = {};
  request.wr_id = WrId(next_);
  request.opcode = IBV_WR_BIND_MW;
  request.send_flags = IBV_SEND_SIGNALED;
  request.bind_mw.mw = exposure->window.get();
  request.bind_mw.rkey = static_cast<uint32_t>(exposure->memory.key);
  request.bind_mw.bind_info = {exposure->bound_to, exposure->memory.address, exposure->bytes,
                               IBV_ACCESS_REMOTE_WRITE};
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(qp_.get(), &request, &bad); error != 0) {
    return ErrnoStatus(absl::StrCat("cannot bind a memory window on ", device_name_), error);
  }
  At(next_++) = {0, Send::Kind::kBind, true};
  unsignaled_run_ = 0;
  ++pending_binds_;
  exposure->posted = true;
  return absl::OkStatus();
}

void VerbsConnection::Unexpose(const RemoteMemory& memory) {
  const auto it = std::find_if(exposures_.begin(), exposures_.end(), [&](const Exposure& e) {
    return e.memory.key == memory.key && e.memory.address == memory.address;
  });
  if (it == exposures_.end()) return;
  if (it->posted && !it->bound && qp_ != nullptr) {
    // The bind in flight needs its window. No peer has the key yet, because it is sent after the
    // bind.
    it->taken_back = true;
    return;
  }
  // Deallocating a window invalidates its key at once (ibv_dealloc_mw(3)).
  exposures_.erase(it);
}

// Binds complete in the order of posting, which is the order of exposures_.
void VerbsConnection::OnBound() {
  if (pending_binds_ > 0) --pending_binds_;
  binds_stall = false;
  const auto it = std::find_if(exposures_.begin(), exposures_.end(),
                               [](const Exposure& e) { return e.posted && !e.bound; });
  if (it == exposures_.end()) return;
  it->bound = true;
  if (it->taken_back) exposures_.erase(it);
}

// ---- ending -------------------------------------------------------------------------------------

void VerbsConnection::Stop() {
  if (qp_ == nullptr) return;
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  (void)ibv_modify_qp(qp_.get(), &attributes, IBV_QP_STATE);
}

absl::Status VerbsConnection::Retire(bool device_gone, std::vector<Completion>* out) {
  if (retired_) return absl::OkStatus();
  if (device_ != nullptr) device_->Unwatch(qp_.get());
  device_ = nullptr;
  const auto gone = [&](int error) { return error == 0 || (error == EIO && device_gone); };
  int failed = 0;
  // Windows before the queue pair to which they are bound: a bound window holds it (rxe waits for
  // that). A window that stays cannot be used without its queue pair.
  for (Exposure& exposure : exposures_) {
    if (exposure.window != nullptr && gone(ibv_dealloc_mw(exposure.window.get()))) {
      (void)exposure.window.release();
    }
    if (exposure.region == nullptr) continue;
    const int error = ibv_dereg_mr(exposure.region.get());
    if (gone(error)) {
      (void)exposure.region.release();
    } else if (!windows_) {
      failed = error;  // other queue pairs of its domain can access it
    }
  }
  if (qp_ != nullptr) {
    if (const int error = ibv_destroy_qp(qp_.get()); gone(error)) {
      (void)qp_.release();
    } else {
      failed = error;
    }
  }
  if (failed != 0) {
    return ErrnoStatus(absl::StrCat("cannot take down a queue pair of ", device_name_), failed);
  }
  retired_ = true;
  for (; first_ != next_; ++first_) {
    if (At(first_).kind != Send::Kind::kWrite) continue;
    out->push_back({id_, Completion::Kind::kSend, false, true, At(first_).wr_id, 0});
  }
  for (; receives_ > 0; --receives_) {
    out->push_back({id_, Completion::Kind::kReceive, false, true, 0, 0});
  }
  chained_ = 0;
  pending_binds_ = 0;
  if (queue_ != nullptr) queue_->used -= entries_;
  queue_ = nullptr;
  view_.reset();
  return absl::OkStatus();
}

PathText VerbsConnection::Path() const {
  if (!path_.local.empty()) return path_;
  return {device_name_, cm_id_ == nullptr ? "?" : AddressText(rdma_get_peer_addr(cm_id_.get()))};
}

}  // namespace verbena::rdma
