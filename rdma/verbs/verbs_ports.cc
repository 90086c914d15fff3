// The available devices, ports and addresses, and validation of options.
#include "rdma/verbs/verbs_ports.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rdma/memory/topology.h"
#include "rdma/verbs/rdma_core.h"
#include "rdma/verbs/verbs_endpoint.h"
#include "rdma/verbs/verbs_errors.h"
#include "rdma/verbs/verbs_handles.h"

namespace verbena::rdma {
namespace {

// Whether there is any device. Without one, librdmacm would print warnings.
bool AnyDevice(std::string* why) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list != nullptr) ibv_free_device_list(list);
  if (list != nullptr && count > 0) return true;
  if (const absl::Status loaded = LoadRdmaCore(); list == nullptr && !loaded.ok()) {
    *why = std::string(loaded.message());
    return false;
  }
  *why =
      "no RDMA device: ibv_get_device_list() is empty. Check `rdma link`, that the driver and "
      "ib_uverbs are loaded, and in a container that /dev/infiniband is passed in";
  return false;
}

bool Considered(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0 ||
      (entry.ifa_flags & IFF_LOOPBACK) != 0) {
    return false;
  }
  if (entry.ifa_addr->sa_family == AF_INET) return true;
  if (entry.ifa_addr->sa_family != AF_INET6) return false;
  // A peer cannot use a link-local address without the link's name.
  const auto* address = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
  return !IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr);
}

// RoCE GIDs are IP addresses; IPv4 addresses are mapped to ::ffff:a.b.c.d.
std::vector<int> GidIndexes(ibv_context* context, int port, const sockaddr& address) {
  ibv_gid wanted = {};
  if (address.sa_family == AF_INET6) {
    std::memcpy(wanted.raw, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, 16);
  } else {
    wanted.raw[10] = wanted.raw[11] = 0xff;
    std::memcpy(wanted.raw + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  }
  std::vector<int> indexes;
  ibv_port_attr attributes = {};
  if (ibv_query_port(context, static_cast<uint8_t>(port), &attributes) != 0) return indexes;
  for (int i = 0; i < attributes.gid_tbl_len; ++i) {
    ibv_gid gid = {};
    if (ibv_query_gid(context, static_cast<uint8_t>(port), i, &gid) == 0 &&
        std::memcmp(gid.raw, wanted.raw, sizeof(gid.raw)) == 0) {
      indexes.push_back(i);
    }
  }
  return indexes;
}

// The reason why the port cannot be used; empty: it can.
std::string CheckPort(ibv_context* context, int port, VerbsPort* found) {
  ibv_port_attr attributes = {};
  if (ibv_query_port(context, static_cast<uint8_t>(port), &attributes) != 0) {
    return absl::StrCat("port ", port, " cannot be queried");
  }
  if (context->device->transport_type == IBV_TRANSPORT_IWARP) {
    return "iWARP has no RDMA write with immediate data (RFC 5040), which lanes need";
  }
  if (context->device->transport_type != IBV_TRANSPORT_IB) {
    return "neither InfiniBand nor RoCE";
  }
  if (attributes.state != IBV_PORT_ACTIVE) {
    return absl::StrCat("port ", port, " is ", ibv_port_state_str(attributes.state));
  }
  found->link_layer = attributes.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand";
  return {};
}

}  // namespace

std::string IpText(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes =
      address.sa_family == AF_INET6
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)
          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  if (inet_ntop(address.sa_family, bytes, text, sizeof(text)) == nullptr) return "?";
  return text;
}

std::vector<VerbsPort> ListVerbsPorts(int numa_node, std::string* why) {
  std::vector<VerbsPort> ports;
  if (!AnyDevice(why)) return ports;
  const EventChannelHandle channel(rdma_create_event_channel());
  if (channel == nullptr) {
    *why = absl::StrCat(
        "librdmacm is not usable: ", ErrnoStatus("rdma_create_event_channel", errno).message(),
        ". Check that rdma_ucm is loaded and /dev/infiniband/rdma_cm is there");
    return ports;
  }
  ifaddrs* entries = nullptr;
  if (getifaddrs(&entries) != 0) {
    *why = std::string(ErrnoStatus("getifaddrs", errno).message());
    return ports;
  }
  std::vector<std::string> passed_over;
  for (const ifaddrs* entry = entries; entry != nullptr; entry = entry->ifa_next) {
    if (!Considered(*entry)) continue;
    const std::string where = absl::StrCat(entry->ifa_name, " ", IpText(*entry->ifa_addr));
    rdma_cm_id* raw = nullptr;
    if (rdma_create_id(channel.get(), &raw, nullptr, RDMA_PS_TCP) != 0) continue;
    const CmIdHandle id(raw);
    if (rdma_bind_addr(id.get(), entry->ifa_addr) != 0 || id->verbs == nullptr) {
      passed_over.push_back(absl::StrCat(where, ": no RDMA device on it"));
      continue;
    }
    VerbsPort port;
    port.device = ibv_get_device_name(id->verbs->device);
    port.port = id->port_num;
    port.address = IpText(*entry->ifa_addr);
    port.netdev = entry->ifa_name;
    port.numa_node =
        NodeOfPciDevice(absl::StrCat("/sys/class/infiniband/", port.device, "/device"));
    port.gid_indexes = GidIndexes(id->verbs, port.port, *entry->ifa_addr);
    if (std::string refused = CheckPort(id->verbs, port.port, &port); !refused.empty()) {
      passed_over.push_back(absl::StrCat(where, ": ", port.device, ": ", refused));
      continue;
    }
    ports.push_back(std::move(port));
  }
  freeifaddrs(entries);
  if (ports.empty()) {
    *why = absl::StrCat("no RDMA device has an IP address that librdmacm can use (",
                        passed_over.empty() ? "no address is up" : absl::StrJoin(passed_over, "; "),
                        ")");
  }
  // Stable, to keep IPv4 first as in getifaddrs().
  const std::vector<int> nodes = NodesByDistance(numa_node);
  const auto distance = [&](const VerbsPort& port) {
    // A device without a node (a software device) is equally far from all nodes.
    return numa_node < 0 || port.numa_node < 0
               ? nodes.end()
               : std::find(nodes.begin(), nodes.end(), port.numa_node);
  };
  std::stable_sort(ports.begin(), ports.end(), [&](const VerbsPort& a, const VerbsPort& b) {
    return distance(a) < distance(b);
  });
  return ports;
}

absl::StatusOr<SocketAddress> ParseVerbsAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  std::string host = colon == std::string::npos ? text : text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  SocketAddress address;
  if (colon == std::string::npos ||
      getaddrinfo(host.c_str(), text.c_str() + colon + 1, &hints, &found) != 0 ||
      found == nullptr || found->ai_addrlen > sizeof(address.storage)) {
    if (found != nullptr) freeaddrinfo(found);
    return absl::InvalidArgumentError(
        absl::StrCat("verbs address '", absl::CEscape(text),
                     "'; allowed: IPV4:PORT or [IPV6]:PORT, in numbers"));
  }
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

absl::Status ValidateVerbsOptions(const VerbsOptions& options) {
  const auto bad = [](std::string_view field, int64_t value, std::string_view allowed) {
    return absl::InvalidArgumentError(absl::StrCat("rdma ", std::string(field), " is ", value,
                                                   "; allowed: ", std::string(allowed)));
  };
  if (options.port < 0 || options.port > 65535) return bad("port", options.port, "0..65535");
  if (options.gid_index < -1 || options.gid_index > 65535) {
    return bad("gid index", options.gid_index, "0..65535, or -1 for the address's");
  }
  if (options.traffic_class < -1 || options.traffic_class > 255) {
    return bad("traffic class", options.traffic_class, "0..255, or -1 for the system's default");
  }
  if (options.service_level < -1 || options.service_level > 15) {
    return bad("service level", options.service_level, "0..15, or -1 for the path's");
  }
  switch (options.path_mtu) {
    case 0:
    case 256:
    case 512:
    case 1024:
    case 2048:
    case 4096:
      break;
    default:
      return bad("path MTU", options.path_mtu, "256, 512, 1024, 2048, 4096, or 0 for the path's");
  }
  if (options.timeout < 0 || options.timeout > 31) {
    return bad("timeout", options.timeout, "0..31 (4.096 us x 2^timeout; 0 waits for ever)");
  }
  if (options.retries < 0 || options.retries > 7) return bad("retries", options.retries, "0..7");
  if (options.inline_bytes > 4096) return bad("inline bytes", options.inline_bytes, "0..4096");
  if (options.backlog < 1) return bad("backlog", options.backlog, "at least 1");
  if (options.connect_timeout < absl::Milliseconds(1)) {
    return bad("connect timeout", absl::ToInt64Milliseconds(options.connect_timeout),
               "at least 1 ms");
  }
  if (options.max_registration != 0 && options.max_registration < 4096) {
    return bad("largest registration", static_cast<int64_t>(options.max_registration),
               "0 for the device's, or at least 4096");
  }
  if (options.max_window < 4096) {
    return bad("largest memory window", static_cast<int64_t>(options.max_window), "at least 4096");
  }
  return absl::OkStatus();
}

absl::StatusOr<VerbsPort> ChooseVerbsPort(const VerbsOptions& options) {
  std::string why;
  const std::vector<VerbsPort> ports =
      ListVerbsPorts(options.numa_node < 0 ? NodeOfThisThread() : options.numa_node, &why);
  if (ports.empty()) return absl::UnavailableError(why);
  std::string device = options.device;
  int number = 0;
  if (const size_t colon = device.rfind(':'); colon != std::string::npos) {
    for (const char c : device.substr(colon + 1)) {
      if (c < '0' || c > '9' || number > 255) {
        return absl::InvalidArgumentError(
            absl::StrCat("rdma device is '", options.device, "'; allowed: NAME or NAME:PORT"));
      }
      number = number * 10 + (c - '0');
    }
    device.resize(colon);
  }
  std::vector<std::string> seen;
  for (const VerbsPort& port : ports) {
    if ((device.empty() || port.device == device) && (number == 0 || port.port == number) &&
        (options.address.empty() || port.address == options.address) &&
        (options.gid_index < 0 ||
         std::count(port.gid_indexes.begin(), port.gid_indexes.end(), options.gid_index) > 0)) {
      return port;
    }
    seen.push_back(absl::StrCat(port.device, ":", port.port, " ", port.address, " (GID index ",
                                absl::StrJoin(port.gid_indexes, " or "), ")"));
  }
  return absl::UnavailableError(
      absl::StrCat("no RDMA device matches",
                   options.device.empty() ? "" : absl::StrCat(" device '", options.device, "'"),
                   options.address.empty() ? "" : absl::StrCat(" address '", options.address, "'"),
                   options.gid_index < 0 ? "" : absl::StrCat(" GID index ", options.gid_index),
                   "; there are: ", absl::StrJoin(seen, ", ")));
}

}  // namespace verbena::rdma
