#include "server/cli/etcd_options.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/host_port.h"
#include "server/cli/validators.h"

namespace verbena::server {
namespace {

CLI::Validator Prefix() {
  CLI::Validator check;
  check.operation([](std::string& text) -> std::string {
    if (text.size() < 2 || text.front() != '/') {
      return absl::StrCat("'", text, "' is not allowed: a path as /verbena/");
    }
    if (text.back() != '/') text += '/';
    return "";
  });
  return check;
}

}  // namespace

void AddEtcdOptions(CLI::App* app, EtcdOptions* etcd, bool with_lease) {
  const char* group = with_lease ? "Coordinator on etcd" : "Options";
  app->add_option_function<std::string>(
         "--etcd",
         [etcd](const std::string& list) {
           // Its validator has accepted it.
           etcd->endpoints = SplitAddresses(list).value_or(std::vector<std::string>());
         },
         with_lease ? "Coordinator: keep the state in etcd, at these addresses of its members, in "
                      "place of "
                      "--state. Several such coordinators may run; one leads, and the others wait"
                    : "Addresses of etcd's members")
      ->check(HostPorts())
      ->group(group);
  app->add_option("--etcd-prefix", etcd->prefix,
                  "Prefix of all keys; another one for each cluster that shares an etcd")
      ->type_name("PREFIX")
      ->transform(Prefix())
      ->group(group)
      ->capture_default_str();
  if (with_lease) {
    app->add_option("--etcd-lease", etcd->lease_s,
                    "Time after which a leader that is silent is replaced, in seconds; etcd allows "
                    "no less than "
                    "1.5 of its election timeouts")
        ->type_name("SECONDS")
        ->check(InRange<uint32_t>(2, 600))
        ->group(group)
        ->capture_default_str();
  }
  const auto add = [&](const char* name, std::string* path, const char* text) {
    app->add_option(name, *path, text)->type_name("FILE")->group(group);
  };
  add("--etcd-ca", &etcd->tls.ca,
      "CA bundle (PEM) that verifies etcd's members; turns TLS to them on");
  add("--etcd-cert", &etcd->tls.cert,
      "Client certificate (PEM) for etcd. Replaced files are loaded");
  add("--etcd-key", &etcd->tls.key, "Private key (PEM, without a pass phrase) of --etcd-cert");
  app->add_option("--etcd-user", etcd->user,
                  "User of etcd, where it requires one; needs TLS beyond this host")
      ->type_name("NAME")
      ->group(group);
  add("--etcd-password-file", &etcd->password_file, "File of that user's password");
}

std::string CheckEtcdOptions(const EtcdOptions& etcd, bool insecure) {
  if (etcd.endpoints.empty()) {
    const bool other = !etcd.tls.ca.empty() || !etcd.tls.cert.empty() || !etcd.tls.key.empty() ||
                       !etcd.user.empty() || !etcd.password_file.empty();
    return other ? "--etcd-ca, --etcd-cert, --etcd-key, --etcd-user and --etcd-password-file need "
                   "--etcd"
                 : "";
  }
  if (etcd.tls.cert.empty() != etcd.tls.key.empty()) {
    return "--etcd-cert and --etcd-key go together: a certificate and its key";
  }
  if (!etcd.tls.cert.empty() && etcd.tls.ca.empty()) {
    return "--etcd-cert needs --etcd-ca, which verifies etcd's members";
  }
  if (etcd.user.empty() != etcd.password_file.empty()) {
    return "--etcd-user and --etcd-password-file go together: a user and the file of its password";
  }
  if (!etcd.tls.ca.empty()) return "";
  for (const std::string& endpoint : etcd.endpoints) {
    if (OnThisHost(endpoint) || (insecure && etcd.user.empty())) continue;
    return absl::StrCat("--etcd ", endpoint, " is beyond this host and needs --etcd-ca (TLS)",
                        etcd.user.empty()
                            ? ", or --insecure where every host of the network is trusted"
                            : ": the password would be readable on the network");
  }
  return "";
}

}  // namespace verbena::server
