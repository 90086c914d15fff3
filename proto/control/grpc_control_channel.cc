#include "proto/control/grpc_control_channel.h"

#include <grpc/support/time.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/slice.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "proto/base/fork_guard.h"
#include "proto/base/host_port.h"
#include "proto/control/standby.h"
#include "proto/security/grpc_credentials.h"
#include "proto/security/tls_pem.h"
#include "proto/security/tls_probe.h"
#include "proto/security/token.h"

namespace verbena {
namespace {

// Exceeds gRPC's default of 4 MiB, which a view with many tables outgrows.
constexpr int kMaxMessageBytes = 64 << 20;
// Interval of pings without traffic while a call waits. A server accepts pings at half of it.
constexpr int kKeepaliveMs = 10000;
// Also sets TCP_USER_TIMEOUT, so the loss of a host is detected without a message from its kernel.
constexpr int kKeepaliveTimeoutMs = 3000;
// Restarted servers change addresses; above this number the cache is cleared.
constexpr size_t kMaxChannels = 1024;
constexpr absl::Duration kLongestCall = absl::Hours(24);
// Lists of addresses of which the channel keeps the one that has answered.
constexpr size_t kMaxLists = 64;
// The duration of a probe of a failed TLS connection, and the interval between probes of an
// address.
constexpr absl::Duration kLongestProbe = absl::Seconds(1);
constexpr absl::Duration kProbeInterval = absl::Seconds(5);

grpc::ChannelArguments Arguments(absl::Duration attempt) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  // gRPC's default backoff grows to two minutes. With this one, reconnection takes at most
  // kLongestReconnect.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // Despite its name, this limits a single connection attempt (20 s by default).
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
              static_cast<int>(absl::ToInt64Milliseconds(attempt)));
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A proxy in the environment is for external traffic, not for a cluster's own.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  return args;
}

// The revision of the caller's view; 0: the request has no such field.
uint64_t RevisionOf(const google::protobuf::Message& request) {
  const auto* field = request.GetDescriptor()->FindFieldByName("revision");
  if (field == nullptr || field->is_repeated() ||
      field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_UINT64) {
    return 0;
  }
  return request.GetReflection()->GetUInt64(request, field);
}

}  // namespace

// Owned by State::outstanding while gRPC uses it, then by State::ended.
struct GrpcControlChannel::Pending {
  std::shared_ptr<grpc::Channel> channel;
  // Of the attempt that runs; those of earlier attempts stay, since gRPC may still be in them.
  grpc::ClientContext* context = nullptr;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
  grpc::Status status;
  std::shared_ptr<google::protobuf::Message> message;
  Done done;
  std::string address;
  std::string list;                   // the addresses that the caller gave; one: equal to `address`
  std::vector<std::string> others;    // of the list, that have not been asked
  std::string refusals;               // of those that have been
  std::optional<std::string> leader;  // that a standby has named last; none: no standby answered
  std::string method;
  uint64_t revision = 0;
  absl::Duration timeout;
  absl::Time deadline;
  std::string untrusted;  // TLS problem of the connection; empty: none was found

  absl::Status Result();
};

struct GrpcControlChannel::State {
  State(std::shared_ptr<TlsFiles> files, std::shared_ptr<TokenFile> token_file,
        absl::Duration longest_attempt)
      : fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        tls(std::move(files)),
        token(std::move(token_file)),
        attempt(longest_attempt) {}
  ~State() {
    if (fd >= 0) close(fd);
  }
  // The state of an address.
  struct Peer {
    std::shared_ptr<grpc::Channel> channel;
    bool answered = false;
    absl::Time probed = absl::InfinitePast();
    std::string untrusted;  // result of that probe
  };

  Peer& Find(const std::string& address);
  // Makes the context of the next attempt. Requires the lock.
  void Prepare(Pending* call);
  // Whether another address of the call's list is asked, as the next attempt. Requires the lock.
  bool PassOn(Pending* call);
  // Outside the lock.
  static void Send(const std::shared_ptr<State>& state, Pending* call);
  // True: the call goes on, by Send().
  bool End(Pending* call, grpc::Status status);
  bool StartProbe(Pending* call, Peer* peer);
  void Probe(Pending* call);
  void Deliver(Pending* call);

  const int fd;
  const std::shared_ptr<TlsFiles> tls;     // null: without TLS
  const std::shared_ptr<TokenFile> token;  // null: without a token
  const absl::Duration attempt;            // limit of one attempt to connect
  std::atomic<bool> any_ended{false};
  std::atomic<bool> closing{false};
  std::mutex mutex;
  std::condition_variable idle;  // outstanding has become empty
  // All guarded by mutex.
  std::map<Pending*, std::unique_ptr<Pending>> outstanding;
  std::vector<std::unique_ptr<Pending>> ended;
  std::map<std::string, Peer> peers;
  std::map<std::string, std::string> leaders;   // by list: the address that is asked first
  std::shared_ptr<const TlsMaterial> material;  // the material of `credentials`
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  bool probing = false;
  std::thread probe;  // joined by the next probe, and by the destructor
};

// Requires the lock.
GrpcControlChannel::State::Peer& GrpcControlChannel::State::Find(const std::string& address) {
  if (credentials == nullptr) credentials = grpc::InsecureChannelCredentials();
  if (tls != nullptr) {
    if (auto now = tls->Current(); now != material) {
      // Calls in flight keep their connections; new calls connect with the new files.
      peers.clear();
      credentials = MakeChannelCredentials(*now);
      material = std::move(now);
    }
  }
  if (peers.size() >= kMaxChannels) peers.clear();
  Peer& peer = peers[address];
  if (peer.channel == nullptr) {
    peer.channel = grpc::CreateCustomChannel(address, credentials, Arguments(attempt));
  }
  return peer;
}

// Starts a probe in its own thread. False: the call ends without a diagnosis.
bool GrpcControlChannel::State::StartProbe(Pending* call, Peer* peer) {
  const absl::Time now = absl::Now();
  // Calls to a missing server repeat. At most one probe runs at a time, and each address has a
  // minimum interval.
  if (probing || closing || now - peer->probed < kProbeInterval || now >= call->deadline) {
    return false;
  }
  if (probe.joinable()) probe.join();  // it has released the lock for the last time
  sigset_t all, before;
  sigfillset(&all);
  // Signals are for the program's own threads, and a connection that ends would raise SIGPIPE.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    probe = std::thread([this, call] { Probe(call); });
    probing = true;
    peer->probed = now;
  } catch (const std::system_error&) {
    // No thread is available: the call ends with gRPC's message.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return probing;
}

// Runs in the probe's thread. `call` is in `outstanding`, so the channel waits until it has ended.
void GrpcControlChannel::State::Probe(Pending* call) {
  std::unique_lock<std::mutex> lock(mutex);
  const std::shared_ptr<const TlsMaterial> with = material;
  lock.unlock();
  const absl::Duration at_most = std::min(kLongestProbe, call->deadline - absl::Now());
  std::string said = ExplainTlsFailure(call->address, with.get(), at_most, closing);
  lock.lock();
  if (const auto it = peers.find(call->address); it != peers.end()) it->second.untrusted = said;
  call->untrusted = std::move(said);
  probing = false;
  Deliver(call);
}

void GrpcControlChannel::State::Prepare(Pending* call) {
  call->channel = Find(call->address).channel;
  call->context = call->contexts.emplace_back(std::make_unique<grpc::ClientContext>()).get();
  call->response.Clear();
  // A duration instead of a point of the system clock: setting the host's clock must not change it.
  const absl::Duration span =
      std::clamp(call->deadline - absl::Now(), absl::ZeroDuration(), kLongestCall);
  call->context->set_deadline(gpr_time_from_micros(absl::ToInt64Microseconds(span), GPR_TIMESPAN));
  call->context->set_wait_for_ready(false);
  if (token == nullptr) return;
  call->context->AddMetadata("authorization", "Bearer " + token->Current());
  if (call->revision > 0)
    call->context->AddMetadata(kRevisionMetadata, absl::StrCat(call->revision));
}

void GrpcControlChannel::State::Send(const std::shared_ptr<State>& state, Pending* call) {
  grpc::GenericStub stub(call->channel);
  stub.UnaryCall(call->context, call->method, grpc::StubOptions(), &call->request, &call->response,
                 [state, call](grpc::Status status) {
                   if (state->End(call, std::move(status))) Send(state, call);
                 });
}

// Calls of a list are those of the coordinator, which all may be repeated: they change nothing, or
// have a request id.
bool GrpcControlChannel::State::PassOn(Pending* call) {
  if (call->list == call->address) return false;
  std::string& leader = leaders[call->list];
  const grpc::StatusCode code = call->status.error_code();
  const std::optional<std::string> hint = LeaderOf(call->status.error_details());
  if (hint) call->leader = hint;
  const bool unreached =
      code == grpc::StatusCode::UNAVAILABLE && call->channel->GetState(false) != GRPC_CHANNEL_READY;
  if (!hint && !unreached && code != grpc::StatusCode::DEADLINE_EXCEEDED) {
    leader = call->address;
    return false;
  }
  if (call->others.empty() || closing) {
    // The next call begins elsewhere.
    if (leader == call->address) leader.clear();
    return false;
  }
  // Only addresses that the caller named get its requests.
  auto next = std::find(call->others.begin(), call->others.end(), hint.value_or(""));
  if (next == call->others.end()) next = call->others.begin();
  // One that hung takes the time of its own call alone.
  if (leader == call->address || leader.empty()) leader = *next;
  if (code == grpc::StatusCode::DEADLINE_EXCEEDED || absl::Now() >= call->deadline) return false;
  absl::StrAppend(&call->refusals, call->address, ": ", call->status.error_message(), "; ");
  call->address = *next;
  call->others.erase(next);
  Prepare(call);
  return true;
}

// Runs on a gRPC thread.
bool GrpcControlChannel::State::End(Pending* call, grpc::Status status) {
  const std::lock_guard<std::mutex> lock(mutex);
  call->status = std::move(status);
  if (PassOn(call)) return true;
  const auto it = peers.find(call->address);
  if (it != peers.end() && it->second.channel == call->channel) {
    Peer& peer = it->second;
    const grpc::StatusCode code = call->status.error_code();
    // A server that responds may return UNAVAILABLE too; then the connection is ready.
    const bool unreached = code == grpc::StatusCode::UNAVAILABLE &&
                           call->channel->GetState(false) != GRPC_CHANNEL_READY;
    if (code != grpc::StatusCode::UNAVAILABLE && code != grpc::StatusCode::DEADLINE_EXCEEDED &&
        code != grpc::StatusCode::CANCELLED) {
      peer.answered = true;
      peer.untrusted.clear();
    } else if (unreached && (tls != nullptr || !peer.answered)) {
      if (StartProbe(call, &peer)) return false;
      call->untrusted = peer.untrusted;
    }
  }
  Deliver(call);
  return false;
}

// Requires the lock.
void GrpcControlChannel::State::Deliver(Pending* call) {
  const auto it = outstanding.find(call);
  ended.push_back(std::move(it->second));
  outstanding.erase(it);
  any_ended.store(true, std::memory_order_release);
  if (fd >= 0) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd, &one, sizeof(one));
  }
  if (outstanding.empty()) idle.notify_all();
}

absl::Status GrpcControlChannel::Pending::Result() {
  if (status.ok()) {
    grpc::Slice slice;
    // An empty message may arrive as a buffer without slices.
    if (response.Length() > 0 && !response.DumpToSingleSlice(&slice).ok()) {
      return absl::InternalError(absl::StrCat(address, ": unreadable answer to ", method));
    }
    if (!message->ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) {
      return absl::InternalError(absl::StrCat(address, ": the answer to ", method, " is not a ",
                                              message->GetTypeName(),
                                              "; do both sides have the same version?"));
    }
    return absl::OkStatus();
  }
  if (!untrusted.empty()) {
    return UntrustedError(absl::StrCat(address, ": ", untrusted));
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(absl::StrCat(address, ": no answer to ", method, " within ",
                                                    absl::FormatDuration(timeout)));
  }
  // absl's canonical codes are gRPC's.
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (code == absl::StatusCode::kUnimplemented && status.error_message().empty()) {
    const bool cluster = absl::StrContains(method, ".Cluster/");
    return absl::Status(
        code, absl::StrCat(address, ": ", cluster ? "it is not the coordinator" : "another program",
                           " (it does not serve ", method, ")",
                           cluster ? "; name the verbenad that runs with --coordinator" : ""));
  }
  absl::Status result(code,
                      absl::StrCat(refusals, address, ": ",
                                   status.error_message().empty() ? absl::StatusCodeToString(code)
                                                                  : status.error_message()));
  const std::optional<std::string> named = LeaderOf(status.error_details());
  if (named || leader) result.SetPayload(kStandbyPayload, absl::Cord(named ? *named : *leader));
  return result;
}

namespace {

// Guard of the process that made the first channel; never deleted. Null: no channel was made.
std::atomic<const ForkGuard*> first_user{nullptr};

void KeepFirstUser() {
  if (first_user.load(std::memory_order_acquire) != nullptr) return;
  const ForkGuard* none = nullptr;
  auto own = std::make_unique<const ForkGuard>();
  if (first_user.compare_exchange_strong(none, own.get(), std::memory_order_acq_rel)) {
    (void)own.release();
  }
}

}  // namespace

absl::Status GrpcControlChannel::CheckProcess() {
  const ForkGuard* user = first_user.load(std::memory_order_acquire);
  return user == nullptr ? absl::OkStatus() : user->Check("the library's gRPC");
}

GrpcControlChannel::GrpcControlChannel(std::shared_ptr<TlsFiles> tls,
                                       std::shared_ptr<TokenFile> token, absl::Duration attempt)
    : state_(std::make_shared<State>(std::move(tls), std::move(token), attempt)) {
  KeepFirstUser();
}

GrpcControlChannel::~GrpcControlChannel() {
  state_->closing = true;
  std::vector<grpc::ClientContext*> contexts;
  std::unique_lock<std::mutex> lock(state_->mutex);
  for (const auto& [call, owner] : state_->outstanding) contexts.push_back(call->context);
  lock.unlock();
  // Outside the lock, because gRPC does not guarantee that TryCancel() never runs a callback. The
  // contexts stay valid: a call that ends now moves to `ended`, which is no longer emptied.
  for (grpc::ClientContext* context : contexts) context->TryCancel();
  lock.lock();
  state_->idle.wait(lock, [this] { return state_->outstanding.empty(); });
  // The captures of `done`s must be destroyed here on the owner's thread, not with the last gRPC
  // callback.
  std::vector<std::unique_ptr<Pending>> dropped = std::move(state_->ended);
  state_->ended.clear();
  state_->peers.clear();
  lock.unlock();
  if (state_->probe.joinable()) state_->probe.join();
}

void GrpcControlChannel::Unary(const std::string& address, const std::string& method,
                               const google::protobuf::Message& request,
                               std::shared_ptr<google::protobuf::Message> response,
                               absl::Duration timeout, Done done) {
  auto owned = std::make_unique<Pending>();
  Pending* call = owned.get();
  const grpc::Slice slice(request.SerializeAsString());
  call->request = grpc::ByteBuffer(&slice, 1);
  call->message = std::move(response);
  call->done = std::move(done);
  call->list = address;
  call->others = absl::StrSplit(address, ',');
  call->method = method;
  call->revision = RevisionOf(request);
  call->timeout = timeout;
  call->deadline = absl::Now() + timeout;
  const bool readable = state_->token != nullptr && state_->tls == nullptr &&
                        !std::all_of(call->others.begin(), call->others.end(), OnThisHost);
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (call->others.size() > 1 && state_->leaders.size() >= kMaxLists) state_->leaders.clear();
    const auto leader = state_->leaders.find(address);
    auto first = call->others.begin();
    if (leader != state_->leaders.end()) {
      first = std::find(call->others.begin(), call->others.end(), leader->second);
      if (first == call->others.end()) first = call->others.begin();
    }
    call->address = *first;
    call->others.erase(first);
    state_->outstanding.emplace(call, std::move(owned));
    if (readable) {
      call->channel = state_->Find(call->address).channel;
      call->untrusted =
          "a token is given without TLS: beyond this host it would be readable on the network; "
          "give --tls-ca (ClientOptions::tls), too";
      call->status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "");
      state_->Deliver(call);
      return;
    }
    state_->Prepare(call);
  }
  State::Send(state_, call);
}

bool GrpcControlChannel::RunOnce() {
  if (!state_->any_ended.load(std::memory_order_acquire)) return false;
  std::vector<std::unique_ptr<Pending>> ended;
  {
    // Calls end under the lock too, so the descriptor is readable exactly while the queue is not
    // empty.
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->fd >= 0) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = read(state_->fd, &count, sizeof(count));
    }
    ended.swap(state_->ended);
    state_->any_ended.store(false, std::memory_order_relaxed);
  }
  for (std::unique_ptr<Pending>& call : ended) {
    absl::Status status = call->Result();
    call->done(std::move(status));
  }
  return !ended.empty();
}

int GrpcControlChannel::wake_fd() const { return state_->fd; }

void ConfigureControlServer(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(kMaxMessageBytes);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kKeepaliveMs / 2);
  // Two daemons on one port would share its connections; the second must fail instead.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

}  // namespace verbena
