#include "rdma/verbs/verbs_device.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/base/exposure_pieces.h"
#include "rdma/verbs/verbs_errors.h"

namespace verbena::rdma {

namespace {

struct Devices {
  std::mutex mutex;
  std::map<ibv_context*, std::weak_ptr<VerbsDevice>> open;
};
// Never destroyed: devices may be released during exit.
Devices& AllDevices() {
  static auto* const devices = new Devices;
  return *devices;
}

// Memory is registered in pieces that take the driver about 50 ms each. Neighboring pieces overlap
// by the largest chunk of a table (kMaxChunkBytes), so that each chunk lies within one piece.
constexpr uint64_t kPieceBytes = (uint64_t{256} << 20) + kPieceOverlapBytes;

bool HasWindows(const ibv_device_attr& attributes) {
  // 2B: the window works only on the queue pair of its bind, whatever the peer's domain (IBTA vol.
  // 1, 10.6.7.2.2). 2A would protect keys equally, but has fewer checks.
  return (attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0;
}

// librdmacm (observed with 44.0) closes a removed device's context only when it next reads the list
// of devices, and not while that list is empty. But a driver that cannot revoke contexts, such as
// soft-RoCE, completes the removal only after they are closed. So the files are closed here. Until
// librdmacm closes their numbers, these refer to /dev/null.
void CloseFiles(const ibv_context& context) {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) return;
  (void)dup3(null, context.async_fd, O_CLOEXEC);
  (void)dup3(null, context.cmd_fd, O_CLOEXEC);
  close(null);
}

}  // namespace

absl::StatusOr<std::shared_ptr<VerbsDevice>> VerbsDevice::Of(ibv_context* context,
                                                             const VerbsOptions& options) {
  // Before the lock: if the new object is not needed, its destructor takes the lock too.
  const std::shared_ptr<VerbsDevice> fresh(new VerbsDevice(context, options));
  Devices& devices = AllDevices();
  const std::lock_guard<std::mutex> lock(devices.mutex);
  std::weak_ptr<VerbsDevice>& known = devices.open[context];
  if (std::shared_ptr<VerbsDevice> device = known.lock()) return device;
  if (absl::Status s = fresh->Start(); !s.ok()) return s;
  known = fresh;
  return fresh;
}

VerbsDevice::VerbsDevice(ibv_context* context, const VerbsOptions& options)
    : context_(context),
      name_(ibv_get_device_name(context->device)),
      windows_(options.memory_windows),
      relaxed_ordering_(options.relaxed_ordering),
      max_registration_(options.max_registration),
      max_window_(options.max_window),
      gpu_direct_(std::make_shared<GpuDirect>(context, options)) {}

VerbsDevice::~VerbsDevice() {
  Devices& devices = AllDevices();
  const std::lock_guard<std::mutex> lock(devices.mutex);
  // Under the lock, so that no other thread creates a device of this context.
  if (removed_.load(std::memory_order_relaxed)) CloseFiles(*context_);
  const auto known = devices.open.find(context_);
  if (known != devices.open.end() && known->second.expired()) devices.open.erase(known);
}

absl::Status VerbsDevice::Start() {
  if (ibv_query_device(context_, &attributes_) != 0) {
    return ErrnoStatus(absl::StrCat("cannot query RDMA device ", name_), errno);
  }
  windows_ = windows_ && HasWindows(attributes_);
  const uint64_t largest = attributes_.max_mr_size == 0 ? UINT64_MAX : attributes_.max_mr_size;
  max_registration_ = max_registration_ == 0 ? largest : std::min(max_registration_, largest);
  uint64_t piece = std::min(max_registration_, kPieceBytes);
  if (windows_) piece = std::min(piece, max_window_);
  piece_sizes_ = {piece, piece - std::min<uint64_t>(kPieceOverlapBytes, piece / 2)};
  const int flags = fcntl(context_->async_fd, F_GETFL);
  if (flags < 0 || fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus(absl::StrCat("cannot poll the events of RDMA device ", name_), errno);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<VerbsDomain>> VerbsDevice::Domain(uint64_t key) {
  if (windows_) key = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::weak_ptr<VerbsDomain>& known = domains_[key];
  if (std::shared_ptr<VerbsDomain> domain = known.lock()) return domain;
  for (auto it = domains_.begin(); it != domains_.end();) {
    it = it->first != key && it->second.expired() ? domains_.erase(it) : std::next(it);
  }
  ibv_pd* pd = ibv_alloc_pd(context_);
  if (pd == nullptr) {
    return ErrnoStatus(absl::StrCat("cannot make a protection domain on ", name_), errno);
  }
  // Local write access is for destinations of pulls; nothing else writes here. Relaxed ordering is
  // safe, because written memory is read only after a completion, and completions are not relaxed
  // (ibv_reg_mr(3); transport.h, invariant 1). Devices and kernels without it ignore the flag.
  const int access = IBV_ACCESS_LOCAL_WRITE | (windows_ ? IBV_ACCESS_MW_BIND : 0) |
                     (relaxed_ordering_ ? IBV_ACCESS_RELAXED_ORDERING : 0);
  auto domain = std::make_shared<VerbsDomain>(pd, gpu_direct_, access, piece_sizes_);
  known = domain;
  return domain;
}

void VerbsDevice::Watch(const void* object, AsyncTarget target) {
  const std::lock_guard<std::mutex> lock(targets_mutex_);
  targets_[object] = std::move(target);
}

void VerbsDevice::Unwatch(const void* object) {
  const std::lock_guard<std::mutex> lock(targets_mutex_);
  targets_.erase(object);
}

void VerbsDevice::WakeAll() {
  const std::lock_guard<std::mutex> lock(targets_mutex_);
  const uint64_t one = 1;
  for (const auto& [object, target] : targets_) {
    (void)!write(target.inbox->wake_fd, &one, sizeof(one));
  }
}

std::vector<std::string> VerbsDevice::PollAsync(bool* fatal) {
  std::vector<std::string> texts;
  // One reader at a time; it delivers the events of threads that do not get the lock.
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return texts;
  const auto deliver = [&](const void* object, const ibv_cq* queue, ibv_event_type type) {
    const std::lock_guard<std::mutex> targets_lock(targets_mutex_);
    const auto target = targets_.find(object);
    if (target == targets_.end()) return;
    AsyncInbox& inbox = *target->second.inbox;
    const std::lock_guard<std::mutex> inbox_lock(inbox.mutex);
    inbox.events.push_back({target->second.connection, queue, type});
    const uint64_t one = 1;
    (void)!write(inbox.wake_fd, &one, sizeof(one));
  };
  ibv_async_event event;
  while (ibv_get_async_event(context_, &event) == 0) {
    const ibv_event_type type = event.event_type;
    switch (type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_PATH_MIG_ERR:
        deliver(event.element.qp, nullptr, type);
        break;
      case IBV_EVENT_CQ_ERR:
        deliver(event.element.cq, event.element.cq, type);
        break;
      case IBV_EVENT_DEVICE_FATAL:
        fatal_.store(true, std::memory_order_relaxed);  // relaxed as in gone()
        WakeAll();
        texts.push_back(absl::StrCat("RDMA device ", name_, ": ", ibv_event_type_str(type)));
        break;
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_LID_CHANGE:
      case IBV_EVENT_PKEY_CHANGE:
      case IBV_EVENT_SM_CHANGE:
      case IBV_EVENT_CLIENT_REREGISTER:
      case IBV_EVENT_GID_CHANGE:
        texts.push_back(absl::StrCat("RDMA device ", name_, ": ", ibv_event_type_str(type),
                                     " (port ", event.element.port_num, ")"));
        break;
      default:
        break;  // COMM_EST, SQ_DRAINED, LAST_WQE_REACHED; events of shared receive queues, which
                // are not used
    }
    ibv_ack_async_event(&event);
  }
  *fatal = fatal_.load(std::memory_order_relaxed);  // relaxed as in gone()
  return texts;
}

}  // namespace verbena::rdma
