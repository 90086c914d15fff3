#include "server/cli/network_options.h"

#include <arpa/inet.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/cli/validators.h"

namespace verbena::server {
namespace {

// `check` of every entry of a list of rails.
CLI::Validator Rails(const CLI::Validator& check) {
  CLI::Validator rails;
  rails.description(absl::StrCat(check.get_description(), "[,...]"));
  rails.operation([check](std::string& text) -> std::string {
    for (std::string entry : std::vector<std::string>(absl::StrSplit(text, ','))) {
      if (std::string problem = check(entry); !problem.empty()) return problem;
    }
    return "";
  });
  return rails;
}

CLI::Validator IpAddress() {
  CLI::Validator check;
  check.description("IP");
  check.operation([](std::string& text) -> std::string {
    in6_addr address;
    if (inet_pton(AF_INET, text.c_str(), &address) == 1) return "";
    if (inet_pton(AF_INET6, text.c_str(), &address) == 1) return "";
    return absl::StrCat("'", text, "' is not an IPv4 or IPv6 address in numbers");
  });
  return check;
}

CLI::Validator Device() {
  CLI::Validator check;
  check.description("DEV[:PORT]");
  check.operation([](std::string& text) -> std::string {
    const size_t colon = text.find(':');
    uint32_t port = 1;
    const bool ported = colon != std::string::npos;
    if (colon == 0 || text.empty() ||
        (ported && (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 1 || port > 255))) {
      return absl::StrCat("'", text, "' is not DEVICE or DEVICE:PORT with a port from 1 to 255");
    }
    return "";
  });
  return check;
}

}  // namespace

void AddRdmaOptions(CLI::App* app, rdma::VerbsOptions* verbs) {
  const auto add = [app](CLI::Option* option, CLI::Validator check) {
    return option->check(std::move(check))->group("RDMA (verbs)");
  };
  add(app->add_option(
          "--rdma-device", verbs->device,
          "Device and port; default: the nearest to each shard; a list: a rail for each"),
      Rails(Device()));
  add(app->add_option("--rdma-address", verbs->address,
                      "Local address of that device to listen on; default: its first"),
      Rails(IpAddress()));
  add(app->add_option("--rdma-gid-index", verbs->gid_index,
                      "Index in the GID table; -1: that of the address"),
      InRange<int>(-1, 65535))
      ->capture_default_str();
  add(app->add_option("--rdma-traffic-class", verbs->traffic_class,
                      "Traffic class of packets (DSCP << 2 | ECN); -1: the system's"),
      InRange<int>(-1, 255))
      ->capture_default_str();
  add(app->add_option("--rdma-service-level", verbs->service_level,
                      "Service level; -1: that of the path"),
      InRange<int>(-1, 15))
      ->capture_default_str();
  add(app->add_option("--rdma-mtu", verbs->path_mtu, "Path MTU in bytes; 0: that of the path"),
      CLI::IsMember({"0", "256", "512", "1024", "2048", "4096"}))
      ->capture_default_str();
  add(app->add_option("--rdma-timeout", verbs->timeout, "The ACK timeout is 4.096 us x 2^N"),
      InRange<int>(1, 31))
      ->capture_default_str();
  add(app->add_option("--rdma-retries", verbs->retries,
                      "Retry count, after which the lane is lost"),
      InRange<int>(0, 7))
      ->capture_default_str();
  add(app->add_option("--rdma-memory-windows", verbs->memory_windows,
                      "Protect each lane's slots by a memory window, where the device has them"),
      CLI::IsMember({"true", "false"}))
      ->capture_default_str();
  add(app->add_option("--rdma-relaxed-ordering", verbs->relaxed_ordering,
                      "Let the device use PCIe relaxed ordering where it is safe"),
      CLI::IsMember({"true", "false"}))
      ->capture_default_str();
}

void AddFabricOptions(CLI::App* app, rdma::OfiOptions* ofi) {
  app->add_option("--ofi-provider", ofi->provider,
                  "libfabric provider, as fi_info lists it; the same on servers and workers")
      ->type_name("NAME")
      ->group("libfabric (ofi)")
      ->capture_default_str();
  app->add_option("--ofi-address", ofi->address,
                  "Local address to listen on; default: that of --listen, or the source address of "
                  "connections to the coordinator; a list: a rail for each")
      ->check(Rails(IpAddress()))
      ->group("libfabric (ofi)");
}

void AddTlsOptions(CLI::App* app, NodeOptions* node) {
  const auto add = [app](const char* name, std::string* path, const char* text) {
    app->add_option(name, *path, text)->type_name("FILE")->group("TLS");
  };
  add("--tls-cert", &node->tls.cert,
      "Certificate (PEM) for the host name in this server's address; turns TLS of the control "
      "plane on. Replaced files are loaded without a restart");
  add("--tls-key", &node->tls.key, "Private key (PEM, without a pass phrase) of --tls-cert");
  add("--tls-ca", &node->tls.ca,
      "CA bundle (PEM) that verifies the certificates of the coordinator and of clients (mutual "
      "TLS). Required with --tls-cert, except for --coordinator --shards 0");
  app->add_option("--tls-require-client-cert", node->tls_require_client_cert,
                  "false: with --tls-ca, clients need no certificate")
      ->check(CLI::IsMember({"true", "false"}))
      ->capture_default_str()
      ->group("TLS");
  app->add_flag("--insecure", node->insecure,
                "Allow --listen beyond loopback without TLS: every host that reaches it is trusted")
      ->group("TLS");
}

void AddAccessOptions(CLI::App* app, NodeOptions* node) {
  const auto add = [app](const char* name, std::string* path, const char* text) {
    app->add_option(name, *path, text)->type_name("FILE")->group("Access");
  };
  add("--operator-token-file", &node->operator_token_file,
      "Coordinator: file of the operator's token, created if missing. Turns tokens on: every call "
      "of the control plane needs one ('verbena token create' makes more)");
  add("--token-file", &node->token_file,
      "Token (role server) with which this server joins a cluster that requires tokens; default: "
      "the operator's");
  add("--audit-log", &node->audit_log,
      "Append a line of JSON for each requested change and each refused call; default: the "
      "daemon's log");
}

}  // namespace verbena::server
