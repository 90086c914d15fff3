#include "server/coordinator/etcd/etcd_client.h"

#include <grpc/support/time.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "etcd/etcd.grpc.pb.h"
#include "proto/base/host_port.h"
#include "proto/security/grpc_credentials.h"
#include "proto/security/tls_files.h"
#include "proto/security/token_file.h"
#include "rdma/base/clock.h"

namespace verbena::server {
namespace {

constexpr char kUnknownPayload[] = "verbena/outcome-unknown";
// A page of entries may have large ones.
constexpr int kMaxAnswerBytes = 256 << 20;
// A token that etcd refuses right after it gave it out is not replaced for ever.
constexpr int kMostTokensInARow = 3;

enum class Verdict {
  kFinal,    // the answer of etcd
  kRepeat,   // not applied
  kUnknown,  // perhaps applied
  kRenew,    // not applied; a new token is needed
};

bool Says(const grpc::Status& status, const char* text) {
  return absl::StrContains(status.error_message(), text);
}

Verdict Judge(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return Verdict::kFinal;
    case grpc::StatusCode::UNAUTHENTICATED:
      return Says(status, "invalid auth token") ? Verdict::kRenew : Verdict::kFinal;
    case grpc::StatusCode::INVALID_ARGUMENT:
      return Says(status, "user name is empty") || Says(status, "revision of auth store is old") ||
                     Says(status, "invalid auth token")
                 ? Verdict::kRenew
                 : Verdict::kFinal;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return Says(status, "too many requests") ? Verdict::kRepeat : Verdict::kFinal;
    case grpc::StatusCode::OUT_OF_RANGE:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::UNIMPLEMENTED:
      return Verdict::kFinal;
    default:
      // Also UNAVAILABLE with "request timed out": etcd applies it later, perhaps.
      return Verdict::kUnknown;
  }
}

grpc::ChannelArguments Arguments(absl::Duration attempt) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxAnswerBytes);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
              static_cast<int>(absl::ToInt64Milliseconds(attempt)));
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  return args;
}

absl::Status ToAbsl(const std::string& endpoint, const grpc::Status& status) {
  // absl's canonical codes are gRPC's.
  std::string text = absl::StrCat("etcd at ", endpoint, ": ", status.error_message());
  if (Says(status, "database space exceeded")) {
    absl::StrAppend(
        &text,
        "; compact and defragment etcd, or raise its --quota-backend-bytes, then disarm the alarm "
        "(etcdctl alarm disarm)");
  }
  if (Says(status, "authentication is not enabled")) {
    absl::StrAppend(&text, "; enable it (etcdctl auth enable), or leave out --etcd-user");
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), text);
}

}  // namespace

bool OutcomeUnknown(const absl::Status& status) {
  return status.GetPayload(kUnknownPayload).has_value();
}

std::string EndOfPrefix(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

struct EtcdClient::Impl {
  struct Member {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
  };

  EtcdOptions options;
  std::shared_ptr<TlsFiles> tls;  // null: without TLS
  std::shared_ptr<const TlsMaterial> material;
  std::vector<Member> members;
  size_t current = 0;  // the member that is asked first
  std::string token;   // empty: none yet
  uint64_t failed = 0;
  const MonotonicClock clock;

  // With the TLS files of now.
  Member& Use();
  void Prepare(grpc::ClientContext* context, int64_t until_ns) const;
  absl::Duration Left(int64_t until_ns) const {
    return absl::Nanoseconds(until_ns - clock.NowNanos());
  }
  grpc::Status RenewToken(Member& member, int64_t until_ns);
  // attempt(member, context) -> grpc::Status, until there is a final one.
  template <typename Attempt>
  absl::Status Run(absl::Duration timeout, bool changes, Attempt attempt);
};

EtcdClient::Impl::Member& EtcdClient::Impl::Use() {
  if (tls != nullptr) {
    if (auto now = tls->Current(); now != material) {
      material = std::move(now);
      for (Member& member : members) member.channel = nullptr;
    }
  }
  Member& member = members[current];
  if (member.channel == nullptr) {
    member.channel =
        grpc::CreateCustomChannel(member.address,
                                  material != nullptr ? MakeChannelCredentials(*material)
                                                      : grpc::InsecureChannelCredentials(),
                                  Arguments(options.attempt));
  }
  return member;
}

void EtcdClient::Impl::Prepare(grpc::ClientContext* context, int64_t until_ns) const {
  const absl::Duration span =
      std::clamp(std::min(Left(until_ns), options.attempt), absl::Milliseconds(1), options.attempt);
  // A duration: setting the host's clock must not change it.
  context->set_deadline(gpr_time_from_micros(absl::ToInt64Microseconds(span), GPR_TIMESPAN));
  // A member without a leader refuses at once.
  context->AddMetadata("hasleader", "true");
  if (!token.empty()) context->AddMetadata("token", token);
}

grpc::Status EtcdClient::Impl::RenewToken(Member& member, int64_t until_ns) {
  token.clear();
  absl::StatusOr<std::string> password = ReadSecret(options.password_file, "password");
  if (!password.ok()) {
    return {grpc::StatusCode::FAILED_PRECONDITION, std::string(password.status().message())};
  }
  etcdserverpb::AuthenticateRequest request;
  request.set_name(options.user);
  request.set_password(*password);
  etcdserverpb::AuthenticateResponse response;
  grpc::ClientContext context;
  Prepare(&context, until_ns);
  grpc::Status status =
      etcdserverpb::Auth::NewStub(member.channel)->Authenticate(&context, request, &response);
  if (status.ok()) token = response.token();
  return status;
}

template <typename Attempt>
absl::Status EtcdClient::Impl::Run(absl::Duration timeout, bool changes, Attempt attempt) {
  const int64_t until_ns = clock.NowNanos() + absl::ToInt64Nanoseconds(timeout);
  absl::Status last = absl::UnavailableError("etcd: no time was left for an attempt");
  bool unknown = false, final = false;
  int tokens = 0;
  size_t tried = 0;
  while (clock.NowNanos() < until_ns) {
    Member& member = Use();
    grpc::Status status;
    bool authenticating = false;
    if (!options.user.empty() && token.empty()) {
      authenticating = true;
      status = RenewToken(member, until_ns);
    }
    if (status.ok()) {
      authenticating = false;
      grpc::ClientContext context;
      Prepare(&context, until_ns);
      status = attempt(member, &context);
      if (status.ok()) return absl::OkStatus();
    }
    ++failed;
    last = ToAbsl(member.address, status);
    const Verdict verdict = Judge(status);
    if (verdict == Verdict::kRenew && !options.user.empty() && ++tokens <= kMostTokensInARow) {
      token.clear();
      continue;
    }
    final = verdict == Verdict::kFinal || verdict == Verdict::kRenew;
    if (final) break;
    unknown |= changes && !authenticating && verdict == Verdict::kUnknown;
    // Another member may have a leader, or answer at all.
    if (verdict == Verdict::kUnknown) current = (current + 1) % members.size();
    if (++tried % members.size() == 0 || verdict == Verdict::kRepeat) {
      absl::SleepFor(std::clamp(Left(until_ns), absl::ZeroDuration(), options.pause));
    }
  }
  if (!final) {
    last = absl::UnavailableError(absl::StrCat(
        "no member of etcd (", absl::StrJoin(options.endpoints, ", "), ") has done it in ",
        absl::FormatDuration(timeout), ": ", last.message(), "; is there a quorum?"));
  }
  if (unknown) last.SetPayload(kUnknownPayload, absl::Cord());
  return last;
}

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Create(const EtcdOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  if (options.endpoints.empty()) return absl::InvalidArgumentError("etcd: no endpoint is named");
  absl::StatusOr<std::shared_ptr<TlsFiles>> files = TlsFiles::Open(options.tls);
  if (!files.ok()) return files.status();
  impl->tls = *std::move(files);
  if (!options.user.empty()) {
    if (absl::Status readable = ReadSecret(options.password_file, "password").status();
        !readable.ok())
      return readable;
  }
  for (const std::string& endpoint : options.endpoints) {
    if (absl::Status parsed = SplitHostPort(endpoint).status(); !parsed.ok()) return parsed;
    if (!options.user.empty() && impl->tls == nullptr && !OnThisHost(endpoint)) {
      return absl::FailedPreconditionError(
          absl::StrCat("etcd at ", endpoint,
                       ": a user's password would be readable on the network; give --etcd-ca, "
                       "which turns TLS on"));
    }
    impl->members.push_back({endpoint, nullptr});
  }
  return std::unique_ptr<EtcdClient>(new EtcdClient(std::move(impl)));
}

EtcdClient::EtcdClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EtcdClient::~EtcdClient() = default;

absl::StatusOr<etcdserverpb::RangeResponse> EtcdClient::Range(
    const etcdserverpb::RangeRequest& request, absl::Duration timeout) {
  etcdserverpb::RangeResponse response;
  absl::Status status =
      impl_->Run(timeout, false, [&](const Impl::Member& member, grpc::ClientContext* context) {
        response.Clear();
        return etcdserverpb::KV::NewStub(member.channel)->Range(context, request, &response);
      });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::Txn(const etcdserverpb::TxnRequest& request,
                                                          absl::Duration timeout) {
  etcdserverpb::TxnResponse response;
  absl::Status status =
      impl_->Run(timeout, true, [&](const Impl::Member& member, grpc::ClientContext* context) {
        response.Clear();
        return etcdserverpb::KV::NewStub(member.channel)->Txn(context, request, &response);
      });
  if (!status.ok()) return status;
  return response;
}

// One that is granted without an answer ends by itself.
absl::StatusOr<etcdserverpb::LeaseGrantResponse> EtcdClient::GrantLease(int64_t seconds,
                                                                        absl::Duration timeout) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(seconds);
  etcdserverpb::LeaseGrantResponse response;
  absl::Status status =
      impl_->Run(timeout, false, [&](const Impl::Member& member, grpc::ClientContext* context) {
        response.Clear();
        return etcdserverpb::Lease::NewStub(member.channel)
            ->LeaseGrant(context, request, &response);
      });
  if (!status.ok()) return status;
  if (!response.error().empty())
    return absl::UnavailableError(absl::StrCat("etcd: lease: ", response.error()));
  return response;
}

absl::Status EtcdClient::KeepLease(int64_t lease, absl::Duration timeout) {
  int64_t left_s = 0;
  absl::Status status =
      impl_->Run(timeout, false, [&](const Impl::Member& member, grpc::ClientContext* context) {
        etcdserverpb::LeaseKeepAliveRequest request;
        request.set_id(lease);
        etcdserverpb::LeaseKeepAliveResponse response;
        const auto stub = etcdserverpb::Lease::NewStub(member.channel);
        const auto stream = stub->LeaseKeepAlive(context);
        const bool answered = stream->Write(request) && stream->Read(&response);
        if (answered) {
          left_s = response.ttl();
          context->TryCancel();
        }
        const grpc::Status end = stream->Finish();
        if (answered) return grpc::Status::OK;
        return end.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "no answer to a keep-alive")
                        : end;
      });
  if (!status.ok()) return status;
  if (left_s <= 0)
    return absl::NotFoundError(absl::StrCat("etcd: lease ", absl::Hex(lease), " has ended"));
  return absl::OkStatus();
}

absl::StatusOr<etcdserverpb::LeaseTimeToLiveResponse> EtcdClient::TimeToLive(
    int64_t lease, absl::Duration timeout) {
  etcdserverpb::LeaseTimeToLiveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseTimeToLiveResponse response;
  absl::Status status =
      impl_->Run(timeout, false, [&](const Impl::Member& member, grpc::ClientContext* context) {
        response.Clear();
        return etcdserverpb::Lease::NewStub(member.channel)
            ->LeaseTimeToLive(context, request, &response);
      });
  if (!status.ok()) return status;
  return response;
}

absl::Status EtcdClient::RevokeLease(int64_t lease, absl::Duration timeout) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse response;
  return impl_->Run(timeout, false, [&](const Impl::Member& member, grpc::ClientContext* context) {
    response.Clear();
    return etcdserverpb::Lease::NewStub(member.channel)->LeaseRevoke(context, request, &response);
  });
}

uint64_t EtcdClient::failed_attempts() const { return impl_->failed; }
const EtcdOptions& EtcdClient::options() const { return impl_->options; }

}  // namespace verbena::server
