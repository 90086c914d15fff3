// Connecting: checks options, creates transports, joins the job.
#include <limits.h>
#include <unistd.h>

#include <mutex>
#include <random>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/client_impl.h"
#include "proto/base/host_port.h"
#include "proto/base/threads.h"
#include "proto/base/unread_output.h"
#include "proto/control/grpc_control_channel.h"
#include "proto/security/tls_files.h"
#include "proto/security/token_file.h"
#include "rdma/selection/transports.h"

namespace verbena {

using client::ClientCore;

namespace {

constexpr absl::Duration kLeaveTimeout = absl::Seconds(1);
// Two threads of the runtime, and those of the registrar.
constexpr int kThreadsOfClient = 2 + client::Registrar::kMostThreads;

std::string DefaultName() {
  char host[HOST_NAME_MAX + 1] = "worker";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, "-", getpid());
}

absl::Status CheckOptions(const ClientOptions& options) {
  if (!SplitAddresses(options.cluster).ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ClientOptions::cluster is '", options.cluster,
        "'; allowed: host:port of the coordinator, or several as host:port,host:port"));
  }
  if (absl::Status s = rdma::CheckTransport(options.transport); !s.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("ClientOptions::", s.message()));
  }
  if (options.rdma.timeout < 1) {
    return absl::InvalidArgumentError(absl::StrCat("ClientOptions::rdma.timeout is ",
                                                   options.rdma.timeout,
                                                   "; allowed: 1 to 31 (4.096 us x 2^timeout)"));
  }
  if (options.expected_workers == 0) {
    return absl::InvalidArgumentError("ClientOptions::expected_workers is 0; allowed: 1 or more");
  }
  if (options.max_workers != 0 && options.max_workers < options.expected_workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("ClientOptions::max_workers is ", options.max_workers,
                     "; allowed: 0 (the job is not elastic), or expected_workers (",
                     options.expected_workers, ") and more"));
  }
  if (options.rank < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("ClientOptions::rank is ", options.rank, "; allowed: -1 (any) or 0 and more"));
  }
  if (options.job.empty()) {
    return absl::InvalidArgumentError("ClientOptions::job is empty; allowed: a name");
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("ClientOptions::timeout is ",
                                                   absl::FormatDuration(options.timeout),
                                                   "; allowed: more than 0"));
  }
  if (!options.tls.cert.empty() && options.tls.ca.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ClientOptions::tls.cert is ", options.tls.cert,
                     " and tls.ca is empty; allowed: a ca file with it, which verifies servers"));
  }
  return absl::OkStatus();
}

rdma::TransportSettings SettingsOf(const ClientOptions& options) {
  const RdmaOptions& from = options.rdma;
  rdma::TransportSettings settings;
  settings.transport = options.transport;
  settings.verbs.device = from.device;
  settings.verbs.address = from.address;
  settings.verbs.gid_index = from.gid_index;
  settings.verbs.traffic_class = from.traffic_class;
  settings.verbs.service_level = from.service_level;
  settings.verbs.path_mtu = from.path_mtu;
  settings.verbs.timeout = from.timeout;
  settings.verbs.retries = from.retries;
  settings.verbs.memory_windows = from.memory_windows;
  settings.verbs.relaxed_ordering = from.relaxed_ordering;
  settings.verbs.gpu_direct = from.gpu_direct;
  settings.ofi.provider = options.fabric.provider;
  settings.ofi.address = options.fabric.address;
  // A text that is not HOST:PORT fails later on connecting, with a better reason.
  // Of several coordinators the first: all are in the cluster's network.
  const std::string first = options.cluster.substr(0, options.cluster.find(','));
  settings.ofi.towards = SplitHostPort(first).value_or(HostAndPort{}).host;
  return settings;
}

}  // namespace

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Client::~Client() { Close(); }

void Client::Close() {
  if (impl_->runtime->copied()) return;
  std::call_once(impl_->closed,
                 [&] { impl_->runtime->Stop(After(impl_->runtime->Now(), kLeaveTimeout)); });
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  if (absl::Status s = CheckOptions(options); !s.ok()) return s;
  if (absl::Status s = GrpcControlChannel::CheckProcess(); !s.ok()) return s;
  if (absl::Status s = CheckGrpcThreadRoom(kThreadsOfClient, "the client"); !s.ok()) return s;
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  if (impl->options.name.empty()) impl->options.name = DefaultName();
  impl->runtime =
      MakeSharedOfProcess<ClientRuntime>(options.progress == ClientOptions::Progress::kBackground);
  const int64_t deadline = impl->Deadline({});
  ClientRuntime::Parts parts;
  absl::StatusOr<std::shared_ptr<TlsFiles>> tls = TlsFiles::Open(options.tls);
  if (!tls.ok()) return tls.status();
  absl::StatusOr<std::shared_ptr<TokenFile>> token = TokenFile::Open(options.token_file);
  if (!token.ok()) return token.status();
  absl::StatusOr<rdma::Transports> transports = rdma::MakeTransports(SettingsOf(options));
  if (!transports.ok()) return transports.status();
  parts.control = std::make_unique<GrpcControlChannel>(*std::move(tls), *std::move(token));
  client::CoreOptions core;
  core.cluster = options.cluster;
  core.job = options.job;
  core.name = impl->options.name;
  core.expected_workers = options.expected_workers;
  core.max_workers = options.max_workers;
  core.rank = options.rank;
  core.observer = options.observer;
  core.staging_bytes = options.staging_bytes;
  core.direct_only = options.rdma.gpu_direct == GpuDirectUse::kRequired;
  std::random_device random;
  core.seed = uint64_t{random()} << 32 | random();
  for (rdma::MadeTransport& made : transports->made) {
    core.transports.push_back({made.endpoint.get(), std::move(made.host), made.rail});
    parts.endpoints.push_back(std::move(made.endpoint));
  }
  for (const rdma::MissingTransport& missing : transports->missing) {
    impl->missing_transports.push_back(absl::StrCat(missing.transport, ": ", missing.reason));
  }
  core.missing = std::move(transports->missing);
  core.log = [prefix = absl::StrCat("verbena: job '", options.job, "', worker '",
                                    impl->options.name, "': ")](const std::string& line) {
    // Losing a line is better than a worker that waits for the reader of its output.
    WriteUnlessFull(STDERR_FILENO, absl::StrCat(prefix, line, "\n"));
  };
  core.clock = &impl->runtime->clock();
  core.control = parts.control.get();
  parts.core = std::make_unique<ClientCore>(std::move(core));
  if (absl::Status s = impl->runtime->Start(std::move(parts)); !s.ok()) return s;
  auto client = std::unique_ptr<Client>(new Client(std::move(impl)));
  const absl::Status joined = client->impl_->Wait<absl::Status>(
      [&](ClientCore& c, auto done) { c.Join(deadline, std::move(done)); });
  if (!joined.ok()) {
    return absl::Status(
        joined.code(),
        absl::StrCat("cannot join job '", absl::CHexEscape(options.job), "' of the cluster at ",
                     options.cluster, ": ", joined.message()));
  }
  return client;
}

}  // namespace verbena
