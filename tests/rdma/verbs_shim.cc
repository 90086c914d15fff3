#include "tests/rdma/verbs_shim.h"

#include <dlfcn.h>

#include <cerrno>

namespace verbena::rdma {
namespace {

using PostSend = int (*)(ibv_qp*, ibv_send_wr*, ibv_send_wr**);
PostSend real_post_send = nullptr;

// The library's own.
template <typename Function>
Function* Real(const char* name) {
  static void* const library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

int ShimPostSend(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
  VerbsShim& shim = verbs_shim();
  // Binds are posted one by one.
  if (request->opcode == IBV_WR_BIND_MW) {
    const ibv_mw_bind_info& bind = request->bind_mw.bind_info;
    if (shim.max_bind_bytes != 0 && bind.length > shim.max_bind_bytes) {
      *bad = request;
      return EOPNOTSUPP;
    }
    shim.bind_bytes.push_back(bind.length);
    shim.bind_access.push_back(bind.mw_access_flags);
  }
  return real_post_send(qp, request, bad);
}

void NoteRegistration(const void* address, size_t bytes, unsigned access) {
  VerbsShim& shim = verbs_shim();
  if (shim.on_registration) shim.on_registration(address, bytes);
  const std::lock_guard<std::mutex> lock(shim.mutex);
  shim.registered.push_back(access);
}

}  // namespace

VerbsShim& verbs_shim() {
  static auto* const shim = new VerbsShim;
  return *shim;
}

void ShimReset::Reset() {
  VerbsShim& shim = verbs_shim();
  shim.max_bind_bytes = 0;
  shim.create_qp = nullptr;
  shim.on_registration = nullptr;
  shim.bind_bytes.clear();
  shim.bind_access.clear();
  shim.queue_pairs.clear();
  const std::lock_guard<std::mutex> lock(shim.mutex);
  shim.registered.clear();
}

}  // namespace verbena::rdma

using namespace verbena::rdma;  // NOLINT: the library's interface is global

extern "C" {

__attribute__((visibility("default"))) ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* asked) {
  VerbsShim& shim = verbs_shim();
  if (shim.create_qp) {
    if (const int error = shim.create_qp(*asked); error != 0) {
      errno = error;
      return nullptr;
    }
  }
  ibv_qp* const qp = Real<decltype(ibv_create_qp)>("ibv_create_qp")(pd, asked);
  if (qp == nullptr) return nullptr;
  shim.queue_pairs.push_back(qp);
  if (qp->context->ops.post_send != ShimPostSend) {
    real_post_send = qp->context->ops.post_send;
    qp->context->ops.post_send = ShimPostSend;
  }
  return qp;
}

__attribute__((visibility("default"))) ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address,
                                                                size_t length, uint64_t iova,
                                                                unsigned int access) {
  NoteRegistration(address, length, access);
  return Real<decltype(ibv_reg_mr_iova2)>("ibv_reg_mr_iova2")(pd, address, length, iova, access);
}

}  // extern "C"
