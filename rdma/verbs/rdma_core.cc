#include "rdma/verbs/rdma_core.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

// F(version, result, name, parameters, arguments) for each function. The versions (dlvsym(3)) are
// those of a program linked with rdma-core 44; later ones keep them.
#define VERBENA_LIBIBVERBS(F)                                                                      \
  F("IBVERBS_1.11", int, _ibv_query_gid_ex,                                                        \
    (ibv_context * context, uint32_t port, uint32_t index, ibv_gid_entry * entry, uint32_t flags,  \
     size_t bytes),                                                                                \
    (context, port, index, entry, flags, bytes))                                                   \
  F("IBVERBS_1.1", void, ibv_ack_async_event, (ibv_async_event * event), (event))                  \
  F("IBVERBS_1.1", void, ibv_ack_cq_events, (ibv_cq * cq, unsigned count), (cq, count))            \
  F("IBVERBS_1.1", ibv_pd*, ibv_alloc_pd, (ibv_context * context), (context))                      \
  F("IBVERBS_1.0", ibv_comp_channel*, ibv_create_comp_channel, (ibv_context * context), (context)) \
  F("IBVERBS_1.1", ibv_cq*, ibv_create_cq,                                                         \
    (ibv_context * context, int entries, void* user, ibv_comp_channel* channel, int vector),       \
    (context, entries, user, channel, vector))                                                     \
  F("IBVERBS_1.1", ibv_qp*, ibv_create_qp, (ibv_pd * pd, ibv_qp_init_attr * asked), (pd, asked))   \
  F("IBVERBS_1.1", int, ibv_dealloc_pd, (ibv_pd * pd), (pd))                                       \
  F("IBVERBS_1.1", int, ibv_dereg_mr, (ibv_mr * mr), (mr))                                         \
  F("IBVERBS_1.0", int, ibv_destroy_comp_channel, (ibv_comp_channel * channel), (channel))         \
  F("IBVERBS_1.1", int, ibv_destroy_cq, (ibv_cq * cq), (cq))                                       \
  F("IBVERBS_1.1", int, ibv_destroy_qp, (ibv_qp * qp), (qp))                                       \
  F("IBVERBS_1.1", const char*, ibv_event_type_str, (ibv_event_type type), (type))                 \
  F("IBVERBS_1.1", int, ibv_fork_init, (), ())                                                     \
  F("IBVERBS_1.1", void, ibv_free_device_list, (ibv_device * *list), (list))                       \
  F("IBVERBS_1.1", int, ibv_get_async_event, (ibv_context * context, ibv_async_event * event),     \
    (context, event))                                                                              \
  F("IBVERBS_1.1", int, ibv_get_cq_event, (ibv_comp_channel * channel, ibv_cq * *cq, void** user), \
    (channel, cq, user))                                                                           \
  F("IBVERBS_1.1", ibv_device**, ibv_get_device_list, (int* count), (count))                       \
  F("IBVERBS_1.1", const char*, ibv_get_device_name, (ibv_device * device), (device))              \
  F("IBVERBS_1.13", ibv_fork_status, ibv_is_fork_initialized, (), ())                              \
  F("IBVERBS_1.1", int, ibv_modify_qp, (ibv_qp * qp, ibv_qp_attr * attributes, int mask),          \
    (qp, attributes, mask))                                                                        \
  F("IBVERBS_1.1", const char*, ibv_port_state_str, (ibv_port_state state), (state))               \
  F("IBVERBS_1.1", int, ibv_query_device, (ibv_context * context, ibv_device_attr * attributes),   \
    (context, attributes))                                                                         \
  F("IBVERBS_1.1", int, ibv_query_gid,                                                             \
    (ibv_context * context, uint8_t port, int index, ibv_gid* gid), (context, port, index, gid))   \
  F("IBVERBS_1.1", int, ibv_query_port,                                                            \
    (ibv_context * context, uint8_t port, _compat_ibv_port_attr * attributes),                     \
    (context, port, attributes))                                                                   \
  F("IBVERBS_1.12", ibv_mr*, ibv_reg_dmabuf_mr,                                                    \
    (ibv_pd * pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access),               \
    (pd, offset, bytes, iova, fd, access))                                                         \
  F("IBVERBS_1.8", ibv_mr*, ibv_reg_mr_iova2,                                                      \
    (ibv_pd * pd, void* address, size_t bytes, uint64_t iova, unsigned access),                    \
    (pd, address, bytes, iova, access))                                                            \
  F("IBVERBS_1.1", const char*, ibv_wc_status_str, (ibv_wc_status status), (status))

#define VERBENA_LIBRDMACM(F)                                                                      \
  F("RDMACM_1.0", int, rdma_accept, (rdma_cm_id * id, rdma_conn_param * parameters),              \
    (id, parameters))                                                                             \
  F("RDMACM_1.0", int, rdma_ack_cm_event, (rdma_cm_event * event), (event))                       \
  F("RDMACM_1.0", int, rdma_bind_addr, (rdma_cm_id * id, sockaddr * address), (id, address))      \
  F("RDMACM_1.0", int, rdma_connect, (rdma_cm_id * id, rdma_conn_param * parameters),             \
    (id, parameters))                                                                             \
  F("RDMACM_1.0", rdma_event_channel*, rdma_create_event_channel, (), ())                         \
  F("RDMACM_1.0", int, rdma_create_id,                                                            \
    (rdma_event_channel * channel, rdma_cm_id * *id, void* user, rdma_port_space space),          \
    (channel, id, user, space))                                                                   \
  F("RDMACM_1.0", void, rdma_destroy_event_channel, (rdma_event_channel * channel), (channel))    \
  F("RDMACM_1.0", int, rdma_destroy_id, (rdma_cm_id * id), (id))                                  \
  F("RDMACM_1.0", int, rdma_disconnect, (rdma_cm_id * id), (id))                                  \
  F("RDMACM_1.2", int, rdma_establish, (rdma_cm_id * id), (id))                                   \
  F("RDMACM_1.0", const char*, rdma_event_str, (rdma_cm_event_type type), (type))                 \
  F("RDMACM_1.0", int, rdma_get_cm_event, (rdma_event_channel * channel, rdma_cm_event * *event), \
    (channel, event))                                                                             \
  F("RDMACM_1.0", __be16, rdma_get_src_port, (rdma_cm_id * id), (id))                             \
  F("RDMACM_1.2", int, rdma_init_qp_attr, (rdma_cm_id * id, ibv_qp_attr * attributes, int* mask), \
    (id, attributes, mask))                                                                       \
  F("RDMACM_1.0", int, rdma_listen, (rdma_cm_id * id, int backlog), (id, backlog))                \
  F("RDMACM_1.0", int, rdma_reject, (rdma_cm_id * id, const void* data, uint8_t bytes),           \
    (id, data, bytes))                                                                            \
  F("RDMACM_1.0", int, rdma_resolve_addr,                                                         \
    (rdma_cm_id * id, sockaddr * from, sockaddr * to, int timeout), (id, from, to, timeout))      \
  F("RDMACM_1.0", int, rdma_resolve_route, (rdma_cm_id * id, int timeout), (id, timeout))

namespace verbena::rdma {
namespace {

struct RdmaCore {
#define VERBENA_POINTER(version, result, name, parameters, arguments) \
  result(*name) parameters = nullptr;
  VERBENA_LIBIBVERBS(VERBENA_POINTER)
  VERBENA_LIBRDMACM(VERBENA_POINTER)
#undef VERBENA_POINTER
};

// The result of a function that could not be loaded.
template <typename Result>
Result MissingCore() {
  errno = ENOSYS;
  if constexpr (std::is_same_v<Result, const char*>) {
    return "rdma-core is missing";
  } else if constexpr (std::is_same_v<Result, int>) {
    return ENOSYS;  // an error of libibverbs, and of librdmacm, which reads errno
  } else if constexpr (!std::is_void_v<Result>) {
    return Result();
  }
}

// A function that the program links, or that is preloaded, comes first.
template <typename Function>
void FindInCore(void* library, const char* name, const char* version, Function** function,
                const char** missing) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) found = dlvsym(library, name, version);
  *function = reinterpret_cast<Function*>(found);
  if (found == nullptr && *missing == nullptr) *missing = name;
}

absl::StatusOr<void*> OpenCoreLibrary(const std::string& path) {
  // Never closed: regions may be released by destructors of static objects.
  if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const char* error = dlerror();
  return absl::UnavailableError(
      absl::StrCat("no rdma-core: ", error == nullptr ? path : error,
                   "; install it (Debian: librdmacm1 and ibverbs-providers)"));
}

absl::Status CheckCoreComplete(const std::string& path, const char* missing) {
  if (missing == nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      path, " lacks ", missing, ": it is not of rdma-core, or too old; needed: rdma-core 35"));
}

absl::StatusOr<RdmaCore> LoadCoreFrom(const std::string& verbs, const std::string& connections) {
  RdmaCore core;
  const char* missing = nullptr;
#define VERBENA_FIND(version, result, name, parameters, arguments) \
  FindInCore(*library, #name, version, &core.name, &missing);
  {
    const absl::StatusOr<void*> library = OpenCoreLibrary(verbs);
    if (!library.ok()) return library.status();
    VERBENA_LIBIBVERBS(VERBENA_FIND)
    if (absl::Status s = CheckCoreComplete(verbs, missing); !s.ok()) return s;
  }
  {
    const absl::StatusOr<void*> library = OpenCoreLibrary(connections);
    if (!library.ok()) return library.status();
    VERBENA_LIBRDMACM(VERBENA_FIND)
    if (absl::Status s = CheckCoreComplete(connections, missing); !s.ok()) return s;
  }
#undef VERBENA_FIND
  return core;
}

const absl::StatusOr<RdmaCore>& LoadedCore() {
  static const auto* const loaded =
      new absl::StatusOr<RdmaCore>(LoadCoreFrom("libibverbs.so.1", "librdmacm.so.1"));
  return *loaded;
}

}  // namespace

absl::Status LoadRdmaCore() { return LoadedCore().status(); }

absl::Status CheckRdmaCore(const std::string& verbs, const std::string& connections) {
  return LoadCoreFrom(verbs, connections).status();
}

}  // namespace verbena::rdma

// Weak: a test's own definition replaces one of these.
#define VERBENA_FORWARD(version, result, name, parameters, arguments) \
  extern "C" __attribute__((weak)) result(name) parameters {          \
    const auto& loaded = verbena::rdma::LoadedCore();                 \
    if (!loaded.ok()) return verbena::rdma::MissingCore<result>();    \
    return (loaded->name)arguments;                                   \
  }
VERBENA_LIBIBVERBS(VERBENA_FORWARD)
VERBENA_LIBRDMACM(VERBENA_FORWARD)
#undef VERBENA_FORWARD
