// The handles of verbena.h, and the conversion of a C call into a C++ call; private to client/c/.
//
// **Thread safety**: pure functions; the last error is the calling thread's.
#ifndef VERBENA_CLIENT_C_HANDLES_H_
#define VERBENA_CLIENT_C_HANDLES_H_

#include <algorithm>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "verbena/client.h"
#include "verbena/verbena.h"

struct verbena_client {
  std::unique_ptr<verbena::Client> client;
};

struct verbena_table {
  verbena::Table table;
  std::vector<std::string> state_arrays = table.state_arrays();
};

struct verbena_region {
  verbena::Region region;
  void* stream;  // of the work that comes before a push or pull with it
};

struct verbena_ticket {
  verbena::Ticket ticket;
  std::shared_ptr<verbena::StateVersions> versions = nullptr;  // of a pull of state
};

namespace verbena::c_api {

// Keeps the text of an error, and returns its code.
verbena_status Report(const absl::Status& status) noexcept;
// The same without an absl::Status, which takes memory.
verbena_status Report(verbena_status code, const char* text) noexcept;

// Runs a call's body, which returns an absl::Status: nothing is thrown into C.
template <typename F>
verbena_status Guarded(F body) noexcept {
  try {
    return Report(body());
  } catch (const std::bad_alloc&) {
    return Report(VERBENA_RESOURCE_EXHAUSTED, "out of memory");
  } catch (const std::exception& e) {
    return Report(VERBENA_INTERNAL, e.what());
  } catch (...) {
    return Report(VERBENA_INTERNAL, "an exception of an unknown type");
  }
}

inline absl::Status NullArgument(const char* call, const char* argument) {
  return absl::InvalidArgumentError(absl::StrCat(call, ": ", argument, " is NULL"));
}

// Whether parameters[i] has the name of one before it.
inline bool NamedBefore(const verbena_parameter* parameters, size_t i) {
  for (size_t k = 0; k < i; ++k) {
    if (parameters[i].name == nullptr || parameters[k].name == nullptr) continue;
    if (std::strcmp(parameters[i].name, parameters[k].name) == 0) return true;
  }
  return false;
}

inline absl::Status NamedTwice(const char* call, const char* argument,
                               const verbena_parameter* parameters, size_t i) {
  return absl::InvalidArgumentError(absl::StrCat(call, ": ", argument, "[", i, "].name is '",
                                                 parameters[i].name,
                                                 "' again; allowed: each name once"));
}

// A struct that the caller reads or fills must state its size: at least the size in the first
// release that had it.
inline absl::Status CheckSize(const char* call, const char* name, size_t size, size_t first) {
  if (size >= first) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(call, ": struct_size of ", name, " is ", size,
                                                 "; allowed: sizeof(", name, "), ", first,
                                                 " or more. Was it set?"));
}

// Copies `from`, which has the caller's size, over the defaults in `to`. Fields that this library
// does not know must be zero: it cannot do as they ask.
template <typename T>
absl::Status ReadSized(const char* call, const char* name, const T& from, size_t first, T* to) {
  const size_t size = from.struct_size;
  if (absl::Status s = CheckSize(call, name, size, first); !s.ok()) return s;
  std::memcpy(to, &from, std::min(size, sizeof(T)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(&from);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(call, ": ", name, " has a field at byte ", i,
                                                   " that this library (", VERBENA_VERSION_STRING,
                                                   ") does not know, and it is set"));
  }
  return absl::OkStatus();
}

// Fills the caller's `to` up to the caller's size. Its struct_size stays; fields that this library
// does not know become zero.
template <typename T>
void WriteSized(const T& from, T* to) {
  const size_t size = to->struct_size;
  std::memset(to, 0, size);
  std::memcpy(to, &from, std::min(size, sizeof(T)));
  to->struct_size = size;
}

// Sets every byte of the caller's `to` as this library knows it.
template <typename T>
void Initialize(T defaults, size_t size, T* to) {
  if (to == nullptr || size < sizeof(size_t)) return;
  to->struct_size = size;
  WriteSized(defaults, to);
}

// VERBENA_TIMEOUT_DEFAULT: none.
inline absl::Status ReadTimeout(const char* call, int64_t timeout_ms,
                                std::optional<absl::Duration>* timeout) {
  if (timeout_ms < VERBENA_TIMEOUT_DEFAULT) {
    return absl::InvalidArgumentError(absl::StrCat(
        call, ": timeout_ms is ", timeout_ms, "; allowed: 0 or more, or VERBENA_TIMEOUT_DEFAULT"));
  }
  if (timeout_ms != VERBENA_TIMEOUT_DEFAULT) *timeout = absl::Milliseconds(timeout_ms);
  return absl::OkStatus();
}

// Starts an operation by `start(timeout)`. One whose deadline has passed meanwhile has a ticket: it
// may have requests on their way.
template <typename F>
verbena_status Begin(const char* call, int64_t timeout_ms, verbena_ticket** ticket,
                     std::initializer_list<std::pair<const char*, const void*>> handles,
                     F start) noexcept {
  return Guarded([&]() -> absl::Status {
    if (ticket != nullptr) *ticket = nullptr;
    for (const auto& [name, handle] : handles) {
      if (handle == nullptr) return NullArgument(call, name);
    }
    std::optional<absl::Duration> timeout;
    if (absl::Status s = ReadTimeout(call, timeout_ms, &timeout); !s.ok()) return s;
    // First, so that nothing has started when there is no memory for it.
    auto handle = ticket == nullptr ? nullptr : std::make_unique<verbena_ticket>();
    Ticket started = start(timeout);
    if (!started.Started()) return started.status();
    if (ticket == nullptr) return absl::OkStatus();
    handle->ticket = std::move(started);
    *ticket = handle.release();
    return absl::OkStatus();
  });
}

}  // namespace verbena::c_api

#endif  // VERBENA_CLIENT_C_HANDLES_H_
