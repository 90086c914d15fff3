#include "client/trace/trace.h"

#include <nvtx3/nvToolsExt.h>

#include <utility>

namespace verbena::client {
namespace {

// Null: no profiler is attached. Profilers use the domain until the process ends.
nvtxDomainHandle_t Domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("verbena");
  return domain;
}

}  // namespace

bool Tracing() { return Domain() != nullptr; }

RangeId BeginRange(const char* name, uint64_t bytes) {
  const nvtxDomainHandle_t domain = Domain();
  if (domain == nullptr) return kNoRange;
  nvtxEventAttributes_t attributes = {};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  if (bytes != 0) {
    attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    attributes.payload.ullValue = bytes;
  }
  return nvtxDomainRangeStartEx(domain, &attributes);
}

void EndRange(RangeId* range) {
  const RangeId id = std::exchange(*range, kNoRange);
  if (id != kNoRange) nvtxDomainRangeEnd(Domain(), id);
}

}  // namespace verbena::client
