#include "worker/python/core/connect.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <list>
#include <string>

#include "worker/python/core/waits.h"

namespace verbena::python {
namespace {

enum class Type : uint8_t {
  kText,
  kInt32,
  kUint32,
  kUint64,
  kFlag,
  kSeconds,
  kProgress,
  kGpuDirect
};

struct Member {
  const char* name;
  Type type;
  size_t offset;
};

#define MEMBER(type, name) \
  { #name, Type::type, offsetof(verbena_connect_options, name) }
constexpr Member kMembers[] = {
    MEMBER(kText, cluster),
    MEMBER(kText, job),
    MEMBER(kText, name),
    MEMBER(kText, transport),
    MEMBER(kUint32, expected_workers),
    MEMBER(kUint32, max_workers),
    MEMBER(kInt32, rank),
    MEMBER(kFlag, observer),
    MEMBER(kProgress, progress),
    {"timeout", Type::kSeconds, offsetof(verbena_connect_options, timeout_ms)},
    MEMBER(kUint64, staging_bytes),
    MEMBER(kText, rdma_device),
    MEMBER(kText, rdma_address),
    MEMBER(kInt32, rdma_gid_index),
    MEMBER(kInt32, rdma_traffic_class),
    MEMBER(kInt32, rdma_service_level),
    MEMBER(kInt32, rdma_path_mtu),
    MEMBER(kInt32, rdma_timeout),
    MEMBER(kInt32, rdma_retries),
    MEMBER(kFlag, rdma_memory_windows),
    MEMBER(kFlag, rdma_relaxed_ordering),
    MEMBER(kText, ofi_provider),
    MEMBER(kText, ofi_address),
    MEMBER(kText, tls_ca),
    MEMBER(kText, tls_cert),
    MEMBER(kText, tls_key),
    MEMBER(kText, token_file),
    MEMBER(kGpuDirect, rdma_gpu_direct),
};
#undef MEMBER

// The struct, and the texts to which it points.
struct Options {
  verbena_connect_options c;
  std::list<std::string> texts;
};

template <typename T>
void Put(T value, const Member& member, Options* to) {
  std::memcpy(reinterpret_cast<char*>(&to->c) + member.offset, &value, sizeof(value));
}

// The index of a word, which is the number of the library's enum.
int32_t Word(const Member& member, const py::handle& value,
             std::initializer_list<const char*> words) {
  const std::string given = py::str(value).cast<std::string>();
  int32_t number = 0;
  std::string allowed;
  for (const char* word : words) {
    if (given == word) return number;
    allowed += std::string(number++ == 0 ? "" : ", ") + word;
  }
  throw py::value_error(std::string(member.name) + " is '" + given + "'; allowed: " + allowed);
}

void Set(const Member& member, const py::handle& value, Options* to) {
  switch (member.type) {
    case Type::kText:
      to->texts.push_back(py::str(value).cast<std::string>());
      return Put(to->texts.back().c_str(), member, to);
    case Type::kInt32:
      return Put(value.cast<int32_t>(), member, to);
    case Type::kUint32:
      return Put(value.cast<uint32_t>(), member, to);
    case Type::kUint64:
      return Put(value.cast<uint64_t>(), member, to);
    case Type::kFlag:
      return Put<int32_t>(value.cast<bool>() ? 1 : 0, member, to);
    case Type::kSeconds:
      return Put(Milliseconds(py::reinterpret_borrow<py::object>(value)), member, to);
    case Type::kProgress:
      return Put(Word(member, value, {"background", "caller"}), member, to);
    case Type::kGpuDirect:
      return Put(Word(member, value, {"auto", "off", "required"}), member, to);
  }
}

}  // namespace

std::shared_ptr<LibraryClient> Connect(const py::dict& options) {
  const auto read = std::make_shared<Options>();
  verbena_connect_options_init(&read->c, sizeof(read->c));
  for (const auto& [key, value] : options) {
    const std::string name = py::str(key).cast<std::string>();
    const auto* const member = std::find_if(std::begin(kMembers), std::end(kMembers),
                                            [&name](const Member& m) { return name == m.name; });
    if (member == std::end(kMembers)) throw py::type_error("there is no option '" + name + "'");
    try {
      Set(*member, value, read.get());
    } catch (const py::cast_error&) {
      throw py::type_error(name + " is " + py::repr(value).cast<std::string>() +
                           "; allowed: a number in the range of the option");
    }
  }
  const auto client = std::make_shared<LibraryClient>();
  Check(Interruptible([read, client] { return verbena_connect(&read->c, &client->handle); }));
  return client;
}

py::list ConnectOptions() {
  py::list names;
  for (const Member& member : kMembers) names.append(member.name);
  return names;
}

}  // namespace verbena::python
