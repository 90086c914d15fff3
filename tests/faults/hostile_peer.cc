// Hostile calls; hostile_connections.cc has the layers below them.
#include "tests/faults/hostile_peer.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/protocol_version.h"
#include "proto/wire/record.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::test {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

constexpr absl::Duration kCallTime = absl::Seconds(5);

std::vector<const MethodDescriptor*> AllMethods() {
  std::vector<const MethodDescriptor*> methods;
  for (const auto* file :
       {v1::ClusterView::descriptor()->file(), v1::OpenLaneRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        methods.push_back(file->service(s)->method(m));
      }
    }
  }
  return methods;
}

std::string NameOf(const MethodDescriptor& method) {
  return absl::StrCat("/", method.service()->full_name(), "/", method.name());
}

std::unique_ptr<Message> New(const google::protobuf::Descriptor* type) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

v1::TableSpec SpecOf(const std::string& name, const std::string& job, uint64_t numbers) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job(job);
  spec.add_shape(static_cast<int64_t>(numbers));
  spec.set_dtype(v1::DTYPE_F32);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  return spec;
}

}  // namespace

HostilePeer::HostilePeer(HostileOptions options)
    : options_(std::move(options)), draw_(options_.seed) {}

HostilePeer::~HostilePeer() {
  for (const int fd : held_) close(fd);
}

const std::vector<HostilePeer::Action>& HostilePeer::All() {
  static const auto& all = *new std::vector<Action>{
      {"connect", &HostilePeer::Connect},
      {"half-http", &HostilePeer::HalfHttp},
      {"slow-scrape", &HostilePeer::SlowScrape},
      {"half-calls", &HostilePeer::HalfCalls},
      {"garbage", &HostilePeer::Garbage},
      {"slow-reader", &HostilePeer::SlowReader},
      {"random-calls", &HostilePeer::RandomCalls},
      {"flood", &HostilePeer::Flood},
      {"join-leave", &HostilePeer::JoinAndLeave},
      {"tables", &HostilePeer::Tables},
      {"lanes", &HostilePeer::Lanes},
      {"half-lanes", &HostilePeer::HalfLanes},
      {"transfers", &HostilePeer::Transfers},
  };
  return all;
}

std::vector<std::string> HostilePeer::Actions() {
  std::vector<std::string> names;
  for (const Action& action : All()) names.emplace_back(action.name);
  return names;
}

void HostilePeer::Run(absl::Duration time) {
  end_ = absl::Now() + time;
  std::vector<Action> actions;
  for (const Action& action : All()) {
    if (options_.only.empty() || options_.only == action.name) actions.push_back(action);
  }
  while (!actions.empty() && absl::Now() < end_) {
    const Action& action = draw_.Of(actions);
    action_ = action.name;
    (this->*action.run)();
    Count("done");
  }
  Drain(0, absl::Milliseconds(200));
}

std::string HostilePeer::Report() const {
  std::string report;
  for (const auto& [action, outcomes] : counts_) {
    absl::StrAppend(&report, action);
    for (const auto& [outcome, count] : outcomes) {
      absl::StrAppend(&report, " ", outcome, "=", count);
    }
    absl::StrAppend(&report, "\n");
  }
  return report;
}

GrpcControlChannel& HostilePeer::ChannelOf(const std::string& token) {
  auto& channel = channels_[token];
  if (channel == nullptr) {
    std::shared_ptr<TokenFile> file;
    if (!token.empty()) {
      if (auto opened = TokenFile::Open(token); opened.ok()) file = *opened;
    }
    channel = std::make_unique<GrpcControlChannel>(nullptr, file);
  }
  return *channel;
}

void HostilePeer::Call(const std::string& token, const std::string& address,
                       const std::string& method, const Message& request, size_t most) {
  Drain(most, kCallTime);
  // Selected by the method: a random method need not have the answer of the call's request.
  std::shared_ptr<Message> response;
  for (const MethodDescriptor* known : AllMethods()) {
    if (NameOf(*known) == method) response = New(known->output_type());
  }
  if (response == nullptr) response = std::make_shared<v1::GetViewResponse>();
  ++outstanding_;
  ChannelOf(token).Unary(address, method, request, response, kCallTime,
                         [this, action = action_](const absl::Status& status) {
                           --outstanding_;
                           ++counts_[action][absl::StatusCodeToString(status.code())];
                         });
}

void HostilePeer::Drain(size_t most, absl::Duration at_most) {
  const absl::Time end = absl::Now() + at_most;
  while (outstanding_ > most && absl::Now() < end) {
    bool worked = false;
    for (auto& [token, channel] : channels_) worked |= channel->RunOnce();
    if (worked) continue;
    std::vector<pollfd> fds;
    for (auto& [token, channel] : channels_) fds.push_back({channel->wake_fd(), POLLIN, 0});
    poll(fds.data(), fds.size(), 20);
  }
}

bool HostilePeer::Await(const std::string& token, const std::string& address,
                        const std::string& method, const Message& request, Message* response) {
  // Outlives this call, should it end first.
  const std::shared_ptr<Message> answer(response->New());
  const auto done = std::make_shared<bool>(false);
  const auto result = std::make_shared<absl::Status>(absl::DeadlineExceededError("not answered"));
  GrpcControlChannel& channel = ChannelOf(token);
  channel.Unary(address, method, request, answer, kCallTime, [done, result](absl::Status status) {
    *result = std::move(status);
    *done = true;
  });
  const absl::Time end = absl::Now() + 2 * kCallTime;
  while (!*done && absl::Now() < end) {
    if (channel.RunOnce()) continue;
    pollfd fd = {channel.wake_fd(), POLLIN, 0};
    poll(&fd, 1, 100);
  }
  Count(absl::StrCat(method.substr(method.rfind('/') + 1), ":",
                     absl::StatusCodeToString(result->code())));
  if (!*done || !result->ok()) return false;
  response->CopyFrom(*answer);
  return true;
}

void HostilePeer::Hold(absl::Duration least, absl::Duration most) {
  const absl::Duration time =
      absl::Milliseconds(draw_.Between(static_cast<uint64_t>(absl::ToInt64Milliseconds(least)),
                                       static_cast<uint64_t>(absl::ToInt64Milliseconds(most))));
  absl::SleepFor(std::min(time, std::max(end_ - absl::Now(), absl::ZeroDuration())));
}

std::string HostilePeer::RequestId() {
  std::string id;
  for (int i = 0; i < 16; ++i) id += static_cast<char>(draw_.Between(0, 255));
  return id;
}

std::string HostilePeer::StrangeText() {
  switch (draw_.Between(0, 9)) {
    case 0:
      return "";
    case 1:
      return std::string(draw_.Between(1, 2 << 20), 'n');
    case 2:
      return "../../../../etc/passwd";
    case 3:
      return std::string("zero\0inside", 11);
    case 4:
      return "%s%n%p {} {:>99999999} \x1b[2J\r\n{\"time\": \"forged\"}";
    case 5:
      return "\xe2\x80\xae\xf0\x9f\x92\xa9\xef\xbb\xbf";
    case 6:
      return kHostileJob;
    case 7:
      return "honest";
    case 8:
      return options_.cluster;
    default: {
      std::string text;
      for (uint64_t i = draw_.Between(1, 300); i > 0; --i) {
        text += static_cast<char>(draw_.Between(1, 127));
      }
      return text;
    }
  }
}

void HostilePeer::Fill(Message* message, int depth) {
  const google::protobuf::Reflection& to = *message->GetReflection();
  const auto number = [this]() -> uint64_t {
    return draw_.Of<uint64_t>({0, 1, 2, 3, 7, 100, 255, 4096, UINT32_MAX, UINT64_MAX,
                               uint64_t{1} << 63, draw_.Between(0, 1000)});
  };
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    if (draw_.OneIn(3) || field->is_map()) continue;
    const uint64_t times = !field->is_repeated() ? 1
                           : draw_.OneIn(50)     ? draw_.Between(1000, 20000)
                                                 : draw_.Between(1, 3);
    for (uint64_t n = 0; n < times; ++n) {
      const bool add = field->is_repeated();
      switch (field->cpp_type()) {
#define HOSTILE_SET(kind, value)                                                   \
  add ? to.Add##kind(message, field, value) : to.Set##kind(message, field, value); \
  break
        case FieldDescriptor::CPPTYPE_INT32:
          HOSTILE_SET(Int32, static_cast<int32_t>(number()));
        case FieldDescriptor::CPPTYPE_INT64:
          HOSTILE_SET(Int64, static_cast<int64_t>(number()));
        case FieldDescriptor::CPPTYPE_UINT32:
          HOSTILE_SET(UInt32, static_cast<uint32_t>(number()));
        case FieldDescriptor::CPPTYPE_UINT64:
          HOSTILE_SET(UInt64, number());
        case FieldDescriptor::CPPTYPE_DOUBLE:
          HOSTILE_SET(Double, static_cast<double>(number()) / 3);
        case FieldDescriptor::CPPTYPE_FLOAT:
          HOSTILE_SET(Float, static_cast<float>(number()) * 1e20F);
        case FieldDescriptor::CPPTYPE_BOOL:
          HOSTILE_SET(Bool, draw_.OneIn(2));
        case FieldDescriptor::CPPTYPE_ENUM:
          HOSTILE_SET(EnumValue, static_cast<int>(number()));
#undef HOSTILE_SET
        case FieldDescriptor::CPPTYPE_STRING: {
          const std::string text = field->name() == "request_id" && !draw_.OneIn(4) ? RequestId()
                                   : times > 3                                      ? "many"
                                                                                    : StrangeText();
          add ? to.AddString(message, field, text) : to.SetString(message, field, text);
          break;
        }
        case FieldDescriptor::CPPTYPE_MESSAGE: {
          if (depth == 0) break;
          Fill(add ? to.AddMessage(message, field) : to.MutableMessage(message, field),
               times > 3 ? 0 : depth - 1);
          break;
        }
      }
    }
  }
}

void HostilePeer::RandomCalls() {
  static const auto& methods = *new std::vector<const MethodDescriptor*>(AllMethods());
  for (uint64_t i = draw_.Between(1, 30); i > 0 && absl::Now() < end_; --i) {
    const MethodDescriptor& method = *draw_.Of(methods);
    const std::unique_ptr<Message> request = New(method.input_type());
    Fill(request.get(), 3);
    // Beyond the limit of a message now and then, not always.
    if (request->ByteSizeLong() > (20 << 20)) continue;
    Call(AnyToken(), AnyControl(), NameOf(method), *request, 8);
  }
  Drain(0, kCallTime);
}

void HostilePeer::Flood() {
  static const auto& methods = *new std::vector<const MethodDescriptor*>(AllMethods());
  const MethodDescriptor& method = *draw_.Of(methods);
  const std::unique_ptr<Message> request = New(method.input_type());
  if (draw_.OneIn(2)) {
    Fill(request.get(), 1);
    if (request->ByteSizeLong() > 4096) request->Clear();
  }
  const std::string token = AnyToken(), address = AnyControl();
  for (uint64_t i = draw_.Between(100, 2000); i > 0 && absl::Now() < end_; --i) {
    if (const FieldDescriptor* id = method.input_type()->FindFieldByName("request_id")) {
      request->GetReflection()->SetString(request.get(), id, RequestId());
    }
    Call(token, address, NameOf(method), *request, 3000);
  }
  Drain(0, kCallTime);
}

uint64_t HostilePeer::Join(bool observer) {
  v1::JoinWorkerRequest join;
  join.set_request_id(RequestId());
  join.set_job(kHostileJob);
  join.set_name(draw_.OneIn(3) ? StrangeText() : "hostile");
  join.set_rank(-1);
  join.set_observer(observer);
  v1::JoinWorkerResponse joined;
  if (!Await(options_.job_token, options_.cluster, "/verbena.v1.Cluster/JoinWorker", join,
             &joined)) {
    return 0;
  }
  view_ = joined.view();
  return joined.incarnation();
}

void HostilePeer::JoinAndLeave() {
  std::vector<uint64_t> members;
  for (uint64_t i = draw_.Between(1, 20); i > 0 && absl::Now() < end_; --i) {
    if (const uint64_t member = Join(draw_.OneIn(2))) members.push_back(member);
    v1::HeartbeatRequest heartbeat;
    heartbeat.set_incarnation(draw_.Between(0, 3000));  // whose it may be
    Call(AnyToken(), options_.cluster, "/verbena.v1.Cluster/Heartbeat", heartbeat, 16);
  }
  for (const uint64_t member : members) {
    if (draw_.OneIn(3)) continue;  // until its lease ends
    v1::LeaveRequest leave;
    leave.set_request_id(RequestId());
    leave.set_incarnation(member);
    Call(draw_.OneIn(4) ? AnyToken() : options_.job_token, options_.cluster,
         "/verbena.v1.Cluster/Leave", leave, 16);
  }
  Drain(0, kCallTime);
}

void HostilePeer::Tables() {
  for (uint64_t i = draw_.Between(1, 20); i > 0 && absl::Now() < end_; --i) {
    const std::string name =
        draw_.OneIn(8) ? StrangeText() : absl::StrCat("hostile-", draw_.Between(0, 30));
    if (draw_.OneIn(3)) {
      v1::DropTableRequest drop;
      drop.set_request_id(RequestId());
      drop.set_name(draw_.OneIn(6) ? "honest-sync" : name);
      if (draw_.OneIn(6)) drop.set_id(draw_.Between(1, 50));
      // Its own token alone could drop an honest table if the gate had a hole.
      Call(AnyToken(), options_.cluster, "/verbena.v1.Cluster/DropTable", drop, 8);
      continue;
    }
    v1::CreateTableRequest create;
    create.set_request_id(RequestId());
    const uint64_t numbers = draw_.OneIn(4)
                                 ? draw_.Of<uint64_t>({0, 1, uint64_t{1} << 28, uint64_t{1} << 40})
                                 : draw_.Between(1, 200000);
    *create.mutable_spec() = SpecOf(name, draw_.OneIn(5) ? StrangeText() : kHostileJob, numbers);
    if (draw_.OneIn(4)) Fill(create.mutable_spec(), 2);
    Call(draw_.OneIn(4) ? AnyToken() : options_.job_token, options_.cluster,
         "/verbena.v1.Cluster/CreateTable", create, 8);
  }
  Drain(0, kCallTime);
}

bool HostilePeer::OpenLane(v1::OpenLaneResponse* response) {
  const uint64_t member = Join(draw_.OneIn(2));
  if (member == 0 || view_.servers().empty()) return false;
  const v1::Server& server =
      view_.servers(static_cast<int>(draw_.Between(0, view_.servers_size() - 1)));
  v1::OpenLaneRequest open;
  open.set_incarnation(member);
  open.set_server_incarnation(server.incarnation());
  open.set_shard(static_cast<uint32_t>(draw_.Between(0, draw_.OneIn(10) ? 5 : 0)));
  open.set_oldest_protocol(kOldestProtocolVersion);
  open.set_newest_protocol(kProtocolVersion);
  open.set_revision(view_.revision());
  v1::TransportOffer* offer = open.add_offers();
  offer->set_transport("ofi");
  return Await(options_.job_token, server.address(), "/verbena.v1.Shard/OpenLane", open, response);
}

void HostilePeer::Lanes() {
  for (uint64_t i = draw_.Between(1, 30); i > 0 && absl::Now() < end_; --i) {
    v1::OpenLaneResponse lane;
    if (OpenLane(&lane) && draw_.OneIn(2)) {
      // The incarnation of another life.
      v1::CloseLaneRequest close;
      close.set_incarnation(draw_.Between(1, 1000));
      close.set_lane(lane.lane());
      close.set_generation(lane.generation());
      Call(AnyToken(), AnyControl(), "/verbena.v1.Shard/CloseLane", close, 16);
    }
  }
  Drain(0, kCallTime);
}

void HostilePeer::Transfers() {
  ClientOptions options;
  options.cluster = options_.cluster;
  options.job = kHostileJob;
  options.timeout = absl::Seconds(3);
  options.token_file = draw_.OneIn(4) ? AnyToken() : options_.job_token;
  options.transport = draw_.OneIn(2) ? "ofi" : "shm";
  auto client = Client::Connect(options);
  Count(absl::StrCat("connect:", absl::StatusCodeToString(client.status().code())));
  if (!client.ok()) return;
  const std::string name = absl::StrCat("hostile-", draw_.Between(0, 30));
  auto table = (*client)->CreateTable(SpecOf(name, kHostileJob, 200000));
  Count(absl::StrCat("table:", absl::StatusCodeToString(table.status().code())));
  if (!table.ok()) return;
  auto region = (*client)->AllocateRegion(table->bytes());
  if (!region.ok()) return;
  std::vector<Ticket> tickets;
  for (uint64_t i = draw_.Between(1, 40); i > 0 && absl::Now() < end_; --i) {
    tickets.push_back(draw_.OneIn(2) ? (*client)->Push(*table, *region)
                                     : (*client)->Pull(*table, *region));
    if (draw_.OneIn(10)) tickets.clear();
  }
  if (draw_.OneIn(2)) return;  // with everything in progress
  for (Ticket& ticket : tickets) {
    Count(absl::StrCat("transfer:", absl::StatusCodeToString(ticket.Wait().code())));
  }
}

}  // namespace verbena::test
