#include "rdma/ofi/ofi_provider.h"

#include <rdma/fi_errno.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rdma/ofi/ofi_socket.h"
#include "rdma/verbs/verbs_ports.h"

namespace verbena::rdma {
namespace {

constexpr uint32_t kApiVersion = FI_VERSION(1, 17);
constexpr uint64_t kCapabilities = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
// Memory registration modes that OfiConnection supports.
constexpr int kMemoryModes = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_ENDPOINT;
constexpr int kEveryMemoryMode = FI_MR_LOCAL | FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED |
                                 FI_MR_PROV_KEY | FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT |
                                 FI_MR_ENDPOINT;
constexpr char kPassThrough[] = "FI_OFI_RXM_ENABLE_PASSTHRU";
constexpr uint64_t kModes = FI_CONTEXT | FI_CONTEXT2;

// ofi_rxm 1.17 has two ways over tcp. One has its own protocol (FI_PROTO_RXM). It takes 85 MB and
// 100 ms per endpoint for message buffers that are not used here, and crashes if a connection ends
// during an incoming write. The other one (FI_PROTO_RXM_TCP) passes writes directly to tcp. It is
// offered only with this environment variable, which libfabric reads at its first call in the
// process. A value set by the user is kept.
void AskForPassThrough() {
  static const bool done = [] {
    setenv(kPassThrough, "1", /*overwrite=*/0);
    return true;
  }();
  (void)done;
}

FabricInfo Hints(const std::string& provider) {
  FabricInfo hints(Fabric().dupinfo(nullptr));  // fi_allocinfo()
  if (hints == nullptr) return nullptr;
  if (!provider.empty()) hints->fabric_attr->prov_name = strdup(provider.c_str());
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = kCapabilities;
  return hints;
}

int GetInfo(const std::string& address, const fi_info& hints, FabricInfo* found) {
  fi_info* list = nullptr;
  const int error =
      Fabric().getinfo(kApiVersion, address.empty() ? nullptr : address.c_str(), nullptr,
                       address.empty() ? 0 : FI_SOURCE | FI_NUMERICHOST, &hints, &list);
  found->reset(list);
  return error;
}

// The available providers, for the error message.
std::string Offered() {
  const FabricInfo hints = Hints("");
  FabricInfo found;
  std::set<std::string> names;
  if (hints != nullptr) {
    hints->domain_attr->mr_mode = kEveryMemoryMode;
    hints->mode = ~uint64_t{0};
    (void)GetInfo("", *hints, &found);
  }
  for (const fi_info* one = found.get(); one != nullptr; one = one->next) {
    names.insert(one->fabric_attr->prov_name);
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

absl::Status Refused(const fi_info& info, std::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("provider '", info.fabric_attr->prov_name,
                   "' of libfabric cannot be used: ", std::string(why)));
}

}  // namespace

absl::Status FabricError(absl::StatusCode code, std::string_view what, long error) {
  const int number = static_cast<int>(error < 0 ? -error : error);
  return absl::Status(code,
                      absl::StrCat("ofi: ", std::string(what), ": ", Fabric().strerror(number),
                                   " (libfabric error ", number, ")"));
}

absl::Status CheckProvider(const fi_info& info) {
  // A pull's data and its reply are two writes: the reply must not overtake the data.
  constexpr uint64_t kOrder = FI_ORDER_WAW | FI_ORDER_RMA_WAW;
  if ((info.tx_attr->msg_order & kOrder) == 0 || (info.rx_attr->msg_order & kOrder) == 0) {
    return Refused(info,
                   "it does not order a write after a write (FI_ORDER_WAW), as the data of a pull "
                   "and its reply need");
  }
  if (info.ep_attr->max_order_waw_size < (uint64_t{1} << 30)) {
    return Refused(info,
                   absl::StrCat("it orders writes of at most ", info.ep_attr->max_order_waw_size,
                                " bytes (max_order_waw_size); needed: 1 GiB"));
  }
  if (info.domain_attr->cq_data_size < sizeof(uint64_t)) {
    return Refused(info,
                   absl::StrCat("its remote completion data has ", info.domain_attr->cq_data_size,
                                " bytes (cq_data_size); needed: 8"));
  }
  if ((info.domain_attr->mr_mode & FI_MR_PROV_KEY) != 0 ||
      info.domain_attr->mr_key_size < sizeof(uint64_t)) {
    return Refused(info,
                   "it chooses the keys of exposed memory itself (FI_MR_PROV_KEY), or they are "
                   "shorter than 64 bits: one peer could guess another's");
  }
  if (info.ep_attr->protocol == FI_PROTO_RXM) {
    return Refused(info, absl::StrCat("ofi_rxm crashes the process when a connection ends in the "
                                      "middle of a write, unless it passes writes through: over "
                                      "tcp, with ",
                                      kPassThrough,
                                      "=1 in the environment from the "
                                      "first use of libfabric in this process on"));
  }
  if (SourceIp(info).empty()) {
    return Refused(info,
                   "its endpoints have no IP addresses, by which the two sides check each other");
  }
  const int unknown = info.domain_attr->mr_mode & ~kMemoryModes;
  if (unknown != 0) {
    return Refused(info, absl::StrCat("it needs modes of memory registration that are not "
                                      "supported (FI_MR_LOCAL and others, mr_mode 0x",
                                      absl::Hex(info.domain_attr->mr_mode), ")"));
  }
  if ((info.mode & ~kModes) != 0) {
    return Refused(info, absl::StrCat("it needs modes that are not supported (mode 0x",
                                      absl::Hex(info.mode), ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<FabricInfo> ChooseProvider(const OfiOptions& options) {
  AskForPassThrough();
  if (absl::Status loaded = LoadFabric(); !loaded.ok()) return loaded;
  std::string address = options.address;
  if (address.empty() && !options.towards.empty()) {
    absl::StatusOr<std::string> local = LocalAddressTowards(options.towards);
    if (!local.ok()) return local.status();
    address = *std::move(local);
  }
  if (options.provider.empty() || options.provider.size() > kOfiProviderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("ofi provider is '", options.provider,
                                                   "'; allowed: a name of 1 to ", kOfiProviderBytes,
                                                   " characters, as fi_info(1) "
                                                   "lists them: ",
                                                   Offered()));
  }
  const FabricInfo hints = Hints(options.provider);
  FabricInfo found;
  if (hints == nullptr) return absl::ResourceExhaustedError("ofi: no memory");
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->mr_mode = kMemoryModes;
  hints->mode = kModes;
  if (options.provider == kDefaultOfiProvider) hints->ep_attr->protocol = FI_PROTO_RXM_TCP;
  hints->tx_attr->msg_order = FI_ORDER_WAW;
  hints->rx_attr->msg_order = FI_ORDER_WAW;
  const int error = GetInfo(address, *hints, &found);
  if (error == 0) {
    absl::Status fits = CheckProvider(*found);
    if (!fits.ok()) return fits;
    return found;
  }
  // Without requirements, the provider shows its missing features.
  const FabricInfo any = Hints(options.provider);
  if (any == nullptr) return absl::ResourceExhaustedError("ofi: no memory");
  any->domain_attr->mr_mode = kEveryMemoryMode;
  any->mode = ~uint64_t{0};
  if (GetInfo(address, *any, &found) == 0) {
    if (absl::Status fits = CheckProvider(*found); !fits.ok()) return fits;
  }
  return absl::UnavailableError(
      absl::StrCat("libfabric has no provider '", options.provider, "'",
                   address.empty() ? "" : absl::StrCat(" at local address ", address), " (",
                   Fabric().strerror(-error), "); it has: ", Offered(),
                   ". fi_info(1) lists them with addresses"));
}

std::string SourceIp(const fi_info& info) {
  const auto* address = static_cast<const sockaddr*>(info.src_addr);
  if (address == nullptr || info.src_addrlen < sizeof(sockaddr)) return "";
  if (info.addr_format != FI_SOCKADDR && info.addr_format != FI_SOCKADDR_IN &&
      info.addr_format != FI_SOCKADDR_IN6) {
    return "";
  }
  return IpText(*address);
}

}  // namespace verbena::rdma
