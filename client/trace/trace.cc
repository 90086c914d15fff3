#include "client/trace/trace.h"

#include <nvtx3/nvToolsExt.h>

#include <iterator>
#include <utility>

namespace verbena::client {
namespace {

constexpr const char* kNames[] = {
    "push",        "pull",   "push-pull", "end step",     "push rows",      "lookup", "scan",
    "lookup bags", "intent", "record",    "copy to host", "copy to device", "encode", "decode"};
static_assert(std::size(kNames) == kTracedKinds);

// Nobody listens: the domain is null.
struct Domain {
  Domain() : handle(nvtxDomainCreateA("verbena")) {
    if (handle == nullptr) return;
    for (int i = 0; i < kTracedKinds; ++i) names[i] = nvtxDomainRegisterStringA(handle, kNames[i]);
  }
  nvtxDomainHandle_t handle;
  nvtxStringHandle_t names[kTracedKinds] = {};
};

// Profilers look at it until the process is gone.
const Domain& TheDomain() {
  static const Domain* const domain = new Domain();
  return *domain;
}

}  // namespace

bool Tracing() { return TheDomain().handle != nullptr; }

RangeId BeginRange(Traced what, uint64_t bytes) {
  const Domain& domain = TheDomain();
  if (domain.handle == nullptr) return kNoRange;
  nvtxEventAttributes_t attributes = {};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes.message.registered = domain.names[static_cast<int>(what)];
  if (bytes != 0) {
    attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    attributes.payload.ullValue = bytes;
  }
  return nvtxDomainRangeStartEx(domain.handle, &attributes);
}

void EndRange(RangeId* range) {
  const RangeId id = std::exchange(*range, kNoRange);
  if (id != kNoRange) nvtxDomainRangeEnd(TheDomain().handle, id);
}

}  // namespace verbena::client
