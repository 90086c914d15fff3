// RAII handles of libibverbs and librdmacm objects. No other code destroys such objects.
//
// **Thread safety**: that of the libraries: any thread may create and destroy objects.
#ifndef VERBENA_RDMA_VERBS_VERBS_HANDLES_H_
#define VERBENA_RDMA_VERBS_VERBS_HANDLES_H_

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <memory>

namespace verbena::rdma {

// If a destroy fails, the object stays in the kernel until the process ends. No caller could handle
// this better, so the error is ignored.
template <auto kDestroy>
struct DestroyWith {
  template <typename T>
  void operator()(T* object) const {
    (void)kDestroy(object);
  }
};

using PdHandle = std::unique_ptr<ibv_pd, DestroyWith<ibv_dealloc_pd>>;
using CqHandle = std::unique_ptr<ibv_cq, DestroyWith<ibv_destroy_cq>>;
using QpHandle = std::unique_ptr<ibv_qp, DestroyWith<ibv_destroy_qp>>;
using MrHandle = std::unique_ptr<ibv_mr, DestroyWith<ibv_dereg_mr>>;
// ibv_dealloc_mw is an inline function of its header, so it cannot be part of a type's name.
struct DeallocateWindow {
  void operator()(ibv_mw* window) const { (void)ibv_dealloc_mw(window); }
};
using MwHandle = std::unique_ptr<ibv_mw, DeallocateWindow>;
using CompletionChannelHandle =
    std::unique_ptr<ibv_comp_channel, DestroyWith<ibv_destroy_comp_channel>>;
using EventChannelHandle =
    std::unique_ptr<rdma_event_channel, DestroyWith<rdma_destroy_event_channel>>;
// Every event of the id must be acknowledged first (rdma_destroy_id(3)), so PollEvents() copies an
// event and acknowledges it before any other action.
using CmIdHandle = std::unique_ptr<rdma_cm_id, DestroyWith<rdma_destroy_id>>;

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_HANDLES_H_
