// The driver's functions about streams: copies, events, kernels.
#include <cstring>
#include <mutex>
#include <utility>

#include "tests/rdma/fake_cuda/fake_call.h"

namespace verbena::rdma::cuda {
namespace {

// Both ends are checked when the copy is enqueued and again when it runs: memory that is gone by
// then is not touched.
Result EnqueueCopy(FakeCall* call, bool to_host, void* host, Address address, size_t bytes,
                   Stream stream) {
  if (!call->NeedContext().ok()) return call->error;
  FakeGpus& gpus = call->gpus;
  StreamObject* const object = gpus.FindStream(stream, call->device);
  if (object == nullptr || object->device != call->device) return kInvalidHandle;
  if (!gpus.Visit(address, bytes, [](std::byte*, size_t) {})) return kInvalidValue;
  const bool pinned = gpus.Pinned(host, bytes);
  if (!pinned) ++gpus.counts.unpinned_copies;
  const auto copy = [&gpus, to_host, host, address, bytes, pinned] {
    if (pinned && !gpus.Pinned(host, bytes)) {
      ++gpus.counts.stale_copies;
      return;
    }
    auto* at = static_cast<std::byte*>(host);
    (void)gpus.Visit(address, bytes, [&](std::byte* piece, size_t size) {
      std::memcpy(to_host ? at : piece, to_host ? piece : at, size);
      at += size;
    });
    ++gpus.counts.copies;
  };
  gpus.Enqueue(object, to_host ? WorkKind::kCopyToHost : WorkKind::kCopyToDevice, copy);
  return kSuccess;
}

}  // namespace

Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream stream) {
  FakeCall call("cuMemcpyDtoHAsync_v2");
  return EnqueueCopy(&call, true, to, from, bytes, stream);
}

Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream stream) {
  FakeCall call("cuMemcpyHtoDAsync_v2");
  return EnqueueCopy(&call, false, const_cast<void*>(from), to, bytes, stream);
}

Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Stream stream) {
  FakeCall call("cuMemsetD8Async");
  if (!call.NeedContext().ok()) return call.error;
  StreamObject* const in = call.gpus.FindStream(stream, call.device);
  if (in == nullptr || !call.gpus.Visit(to, bytes, [](std::byte*, size_t) {})) return kInvalidValue;
  call.gpus.Enqueue(in, WorkKind::kOther, [&gpus = call.gpus, to, value, bytes] {
    gpus.Visit(to, bytes,
               [value](std::byte* piece, size_t size) { std::memset(piece, value, size); });
  });
  return kSuccess;
}

// None of them is enqueued when one cannot be.
Result cuMemcpyBatchAsync_v2(Address* to, Address* from, size_t* bytes, size_t count,
                             CopyAttributes* attributes, size_t* attribute_of,
                             size_t attributes_count, Stream stream) {
  FakeCall call("cuMemcpyBatchAsync_v2");
  if (!call.NeedContext().ok()) return call.error;
  if (stream == nullptr || count == 0 || attributes_count != 1 || attribute_of[0] != 0 ||
      attributes->source_order != kSourceOrderStream) {
    return kInvalidValue;
  }
  const auto on_device = [&](Address address, size_t size) {
    return call.gpus.Visit(address, size, [](std::byte*, size_t) {});
  };
  for (size_t i = 0; i < count; ++i) {
    if (on_device(to[i], bytes[i]) != on_device(from[i], bytes[i])) continue;
    ++call.gpus.counts.stray_copies;
    return kInvalidValue;
  }
  for (size_t i = 0; i < count; ++i) {
    const bool to_host = on_device(from[i], bytes[i]);
    const Result code =
        EnqueueCopy(&call, to_host, reinterpret_cast<void*>(to_host ? to[i] : from[i]),
                    to_host ? from[i] : to[i], bytes[i], stream);
    if (code != kSuccess) return code;
  }
  ++call.gpus.counts.batches;
  return kSuccess;
}

// Not used by the library: bench/gpu asks for it.
FAKE_CUDA_EXPORT Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes,
                                             Stream stream) {
  FakeCall call("cuMemcpyDtoDAsync_v2");
  if (!call.NeedContext().ok()) return call.error;
  FakeGpus& gpus = call.gpus;
  StreamObject* const object = gpus.FindStream(stream, call.device);
  if (object == nullptr || object->device != call.device) return kInvalidHandle;
  gpus.Enqueue(object, WorkKind::kOther, [&gpus, to, from, bytes] {
    std::vector<std::byte> values;
    (void)gpus.Visit(from, bytes, [&](std::byte* piece, size_t size) {
      values.insert(values.end(), piece, piece + size);
    });
    size_t at = 0;
    (void)gpus.Visit(to, values.size(), [&](std::byte* piece, size_t size) {
      std::memcpy(piece, values.data() + at, size);
      at += size;
    });
  });
  return kSuccess;
}

// ---- streams ------------------------------------------------------------------------------------

Result cuStreamCreate(Stream* stream, unsigned) {
  FakeCall call("cuStreamCreate");
  if (!call.NeedContext().ok()) return call.error;
  *stream = new StreamObject{call.device};
  call.gpus.streams.insert(*stream);
  return kSuccess;
}

Result cuStreamDestroy_v2(Stream stream) {
  FakeCall call("cuStreamDestroy_v2");
  (void)call.NeedContext();
  if (call.gpus.streams.erase(stream) == 0) return kInvalidHandle;
  delete stream;
  return call.error;
}

Result cuStreamSynchronize(Stream stream) {
  FakeCall call("cuStreamSynchronize");
  if (!call.NeedContext().Unsafe().ok()) return call.error;
  StreamObject* const object = call.gpus.FindStream(stream, call.device);
  if (object == nullptr) return kInvalidHandle;
  call.gpus.Drain(&call.lock, object->device, object);
  return call.gpus.devices[static_cast<size_t>(object->device)].lost;
}

Result cuStreamIsCapturing(Stream stream, int* status) {
  FakeCall call("cuStreamIsCapturing");
  if (!call.NeedContext().ok()) return call.error;
  const StreamObject* object = call.gpus.FindStream(stream, call.device);
  if (object == nullptr) return kInvalidHandle;
  *status = object->capturing ? 1 : kCaptureStatusNone;
  return kSuccess;
}

// ---- events -------------------------------------------------------------------------------------

Result cuEventCreate(Event* event, unsigned) {
  FakeCall call("cuEventCreate");
  if (!call.NeedContext().ok()) return call.error;
  *event = new EventObject{call.device, std::make_shared<EventState>()};
  call.gpus.events.insert(*event);
  return kSuccess;
}

Result cuEventDestroy_v2(Event event) {
  FakeCall call("cuEventDestroy_v2");
  (void)call.NeedContext();
  if (call.gpus.events.erase(event) == 0) return kInvalidHandle;
  delete event;
  return call.error;
}

Result cuEventRecord(Event event, Stream stream) {
  FakeCall call("cuEventRecord");
  if (!call.NeedContext().ok()) return call.error;
  StreamObject* const object = call.gpus.FindStream(stream, call.device);
  if (object == nullptr || call.gpus.events.count(event) == 0) return kInvalidHandle;
  if (object->device != event->device) return kInvalidHandle;
  const std::shared_ptr<EventState> state = event->state;
  state->captured = object->capturing;
  if (state->captured) return kSuccess;
  state->pending = true;
  const uint64_t record = ++state->recorded;
  call.gpus.Enqueue(object, WorkKind::kOther, [state, record] {
    if (state->recorded == record) state->pending = false;  // else it was moved elsewhere
  });
  return kSuccess;
}

Result cuEventQuery(Event event) {
  FakeCall call("cuEventQuery");
  if (!call.NeedContext().Unsafe().ok()) return call.error;
  if (call.gpus.events.count(event) == 0) return kInvalidHandle;
  if (event->state->captured) return kStreamCaptureUnsupported + 7;  // CUDA_ERROR_CAPTURED_EVENT
  FakeDevice& device = call.gpus.devices[static_cast<size_t>(event->device)];
  if (device.lost != kSuccess) return device.lost;
  ++device.tick;
  call.gpus.Run(event->device, false);
  return event->state->pending ? kNotReady : kSuccess;
}

// ---- kernels ------------------------------------------------------------------------------------

Result cuModuleLoadData(Module* module, const void* image) {
  FakeCall call("cuModuleLoadData");
  if (!call.NeedContext().ok()) return call.error;
  if (image == nullptr) return kInvalidValue;
  *module = new ModuleObject{call.device};
  call.gpus.modules.insert(*module);
  return kSuccess;
}

Result cuModuleUnload(Module module) {
  FakeCall call("cuModuleUnload");
  (void)call.NeedContext();
  if (call.gpus.modules.erase(module) == 0) return kInvalidHandle;
  delete module;
  return call.error;
}

Result cuModuleGetFunction(Function* function, Module module, const char* name) {
  FakeCall call("cuModuleGetFunction");
  if (!call.NeedContext().ok()) return call.error;
  if (call.gpus.modules.count(module) == 0) return kInvalidHandle;
  const auto found = call.gpus.kernels.find(name);
  if (found == call.gpus.kernels.end()) return kNotFound;
  *function = &found->second;
  return kSuccess;
}

Result cuLaunchKernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned, Stream stream,
                      void** parameters, void**) {
  FakeCall call("cuLaunchKernel");
  if (!call.NeedContext().ok()) return call.error;
  StreamObject* const object = call.gpus.FindStream(stream, call.device);
  if (object == nullptr || object->device != call.device) return kInvalidHandle;
  std::vector<std::vector<std::byte>> values;
  for (size_t i = 0; i < function->sizes.size(); ++i) {
    const auto* value = static_cast<const std::byte*>(parameters[i]);
    values.emplace_back(value, value + function->sizes[i]);
  }
  const unsigned blocks = grid_x * grid_y * grid_z;
  const unsigned threads = block_x * block_y * block_z;
  const FakeCudaKernel kernel = function->kernel;
  call.gpus.Enqueue(object, WorkKind::kOther, [kernel, blocks, threads, values]() mutable {
    std::vector<void*> pointers;
    for (auto& value : values) pointers.push_back(value.data());
    kernel(blocks, threads, pointers.data());
  });
  return kSuccess;
}

}  // namespace verbena::rdma::cuda
