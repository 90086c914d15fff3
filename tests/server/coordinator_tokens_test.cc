// Tokens as the coordinator keeps them: made, listed, revoked, ended by their time.
#include "server/coordinator/tokens.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

using Catch::Matchers::Contains;

int64_t wall = 1'000'000;

CoordinatorOptions WithTokens() {
  wall = 1'000'000;
  CoordinatorOptions options;
  options.tokens = true;
  options.operator_token.set_id("aaaaaaaaaaaa");
  options.operator_token.set_role(v1::ROLE_OPERATOR);
  options.operator_token.set_hash(std::string(32, 'o'));
  options.wall_clock = [] { return wall; };
  return options;
}

v1::CreateTokenRequest Request(const std::string& id, uint64_t lifetime_s = 0) {
  static int calls = 0;
  v1::CreateTokenRequest request;
  std::string call = std::to_string(++calls);
  call.resize(16, '#');
  request.set_request_id(call);
  request.set_id(id);
  request.set_role(v1::ROLE_JOB);
  request.set_job("job");
  request.set_hash(std::string(32, 'h'));
  request.set_lifetime_s(lifetime_s);
  return request;
}

v1::RevokeTokenRequest Revoke(const std::string& id) {
  v1::RevokeTokenRequest request;
  request.set_request_id("revoke" + id.substr(2));
  request.set_id(id);
  return request;
}

const v1::Token* Find(TestCoordinator& c, const std::string& id) {
  for (const v1::Token& token : c->access()->tokens()) {
    if (token.id() == id) return &token;
  }
  return nullptr;
}

uint64_t JoinWith(TestCoordinator& c, const std::string& token) {
  v1::JoinWorkerRequest request;
  static int calls = 0;
  std::string call = "join" + std::to_string(++calls);
  call.resize(16, '#');
  request.set_request_id(call);
  request.set_job("job");
  request.set_expected_workers(9);
  request.set_rank(-1);
  uint64_t incarnation = 0;
  c->JoinWorker(request, token, [&](absl::StatusOr<v1::JoinWorkerResponse> response) {
    REQUIRE(response.ok());
    incarnation = response->incarnation();
  });
  return incarnation;
}

TEST_CASE("a token is made, listed without its hash, revoked; the workers that showed it go") {
  TestCoordinator c(WithTokens());
  REQUIRE(c.Call(&Coordinator::CreateToken, Request("0123456789ab")).ok());
  REQUIRE(c.Call(&Coordinator::CreateToken, Request("ba9876543210")).ok());
  const auto listed = c.Call(&Coordinator::ListTokens, v1::ListTokensRequest());
  REQUIRE(listed->tokens_size() == 3);  // and the operator's
  for (const v1::Token& token : listed->tokens()) CHECK(token.hash() == "");
  const uint64_t gone = JoinWith(c, "0123456789ab"), stays = JoinWith(c, "ba9876543210");
  const uint64_t revision = c.view().revision();
  REQUIRE(c.Call(&Coordinator::RevokeToken, Revoke("0123456789ab")).ok());
  CHECK(c.view().revision() > revision);  // so that servers hear of it
  CHECK(Find(c, "0123456789ab")->revoked());
  REQUIRE(c.Job("job").members_size() == 1);
  CHECK(c.Job("job").members(0).incarnation() == stays);
  CHECK(c.Heartbeat(gone).status().code() == absl::StatusCode::kNotFound);
  CHECK(c.Call(&Coordinator::RevokeToken, Revoke("ffffffffffff")).status().code() ==
        absl::StatusCode::kNotFound);
  CHECK_THAT(
      std::string(c.Call(&Coordinator::RevokeToken, Revoke("aaaaaaaaaaaa")).status().message()),
      Contains("--operator-token-file"));
}

TEST_CASE("a token that is revoked in a group of calls is refused from that call on") {
  TestCoordinator c(WithTokens());
  REQUIRE(c.Call(&Coordinator::CreateToken, Request("0123456789ab")).ok());
  const auto poll = c.Poll(c.view().revision(), 1000);
  c->BeginGroup();
  const auto before = c.Start(&Coordinator::JoinServer, c.ServerRequest("a"));
  CHECK_FALSE(before->has_value());
  const auto revoked = c.Start(&Coordinator::RevokeToken, Revoke("0123456789ab"));
  // Calls are authorized by these rules.
  CHECK(Find(c, "0123456789ab")->revoked());
  REQUIRE(before->has_value());
  CHECK(before->value().ok());
  REQUIRE(revoked->has_value());
  CHECK(revoked->value().ok());
  c->EndGroup();
  CHECK(poll->has_value());  // a server's: it hears of that at once
}

TEST_CASE("a token ends when its time is over, by the coordinator's clock, also across a restart") {
  TestCoordinator c(WithTokens());
  REQUIRE(c.Call(&Coordinator::CreateToken, Request("0123456789ab", 100)).ok());
  JoinWith(c, "0123456789ab");
  CHECK(Find(c, "0123456789ab")->expires() == wall + 100);
  wall += 99;
  c.clock.AdvanceMs(60'000);
  c->RunOnce();
  CHECK(Find(c, "0123456789ab")->ended() == 0);
  c.Restart();
  REQUIRE(Find(c, "0123456789ab")->ended() == 0);
  wall += 1;
  const int64_t due = c->NextTimerNanos();
  CHECK(due <= c.clock.NowNanos() + 1'000'000'000);
  c.clock.AdvanceTo(due);
  c->RunOnce();
  CHECK(Find(c, "0123456789ab")->ended() != 0);
  CHECK_FALSE(Find(c, "0123456789ab")->revoked());
  CHECK(c.view().jobs().empty());
  c.Restart();
  CHECK(Find(c, "0123456789ab")->ended() != 0);
}

TEST_CASE("a token that has expired is over although this cannot be saved") {
  FaultyStore store;
  TestCoordinator c(WithTokens(), &store);
  REQUIRE(c.Call(&Coordinator::CreateToken, Request("0123456789ab", 1)).ok());
  store.full = true;
  wall += 1;
  c.clock.AdvanceMs(1000);
  c->RunOnce();
  CHECK(Find(c, "0123456789ab")->ended() != 0);
  const uint64_t revision = c.view().revision();
  store.full = false;
  c.clock.AdvanceMs(2000);
  c->RunOnce();
  CHECK(Find(c, "0123456789ab")->ended() != 0);
  // Replicated to the servers as soon as it can be.
  JoinWith(c, "");
  CHECK(c.view().revision() > revision);
}

TEST_CASE("regression: an end that could not be saved is saved, with all that follows from it") {
  FaultyStore store;
  TestCoordinator c(WithTokens(), &store);
  REQUIRE(c.Call(&Coordinator::CreateToken, Request("0123456789ab", 1)).ok());
  const uint64_t worker = JoinWith(c, "0123456789ab");
  store.full = true;
  wall += 1;
  c.clock.AdvanceMs(1000);
  c->RunOnce();
  REQUIRE(Find(c, "0123456789ab")->ended() != 0);
  REQUIRE(c.Heartbeat(worker).ok());
  store.full = false;
  SECTION("by the next attempt, which also retires its workers") {
    c.clock.AdvanceMs(2000);
    c->RunOnce();
    CHECK(c.view().jobs().empty());
    CHECK(c.Heartbeat(worker).status().code() == absl::StatusCode::kNotFound);
  }
  SECTION("by any change that is saved before") { JoinWith(c, ""); }
  // The host's date is set back.
  wall -= 1;
  c.Restart();
  CHECK(Find(c, "0123456789ab")->ended() != 0);
}

TEST_CASE("a token that cannot be saved is neither made nor revoked") {
  FaultyStore store;
  TestCoordinator c(WithTokens(), &store);
  REQUIRE(c.Call(&Coordinator::CreateToken, Request("0123456789ab")).ok());
  store.full = true;
  CHECK_FALSE(c.Call(&Coordinator::CreateToken, Request("ba9876543210")).ok());
  CHECK_FALSE(c.Call(&Coordinator::RevokeToken, Revoke("0123456789ab")).ok());
  CHECK(Find(c, "ba9876543210") == nullptr);
  CHECK(Find(c, "0123456789ab")->ended() == 0);
}

TEST_CASE("an invalid token is refused by the name of its field") {
  TestCoordinator c(WithTokens());
  const auto refused = [&](auto change) {
    v1::CreateTokenRequest request = Request("0123456789ab");
    change(&request);
    const absl::Status status = c.Call(&Coordinator::CreateToken, request).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  CHECK_THAT(refused([](auto* r) { r->set_id("0123456789AB"); }), Contains("id is"));
  CHECK_THAT(refused([](auto* r) { r->set_hash("short"); }), Contains("hash is 5 bytes"));
  CHECK_THAT(refused([](auto* r) { r->set_role(v1::ROLE_UNSPECIFIED); }), Contains("role is 0"));
  CHECK_THAT(refused([](auto* r) { r->set_job(""); }), Contains("job is empty"));
  CHECK_THAT(refused([](auto* r) { r->set_role(v1::ROLE_SERVER); }), Contains("job is 'job'"));
  CHECK_THAT(refused([](auto* r) { r->set_note("a\nb"); }), Contains("note is"));
  CHECK_THAT(refused([](auto* r) { r->set_lifetime_s(UINT64_MAX); }), Contains("lifetime_s is"));
  REQUIRE(c.Call(&Coordinator::CreateToken, Request("0123456789ab")).ok());
  CHECK(c.Call(&Coordinator::CreateToken, Request("0123456789ab")).status().code() ==
        absl::StatusCode::kAlreadyExists);
  TestCoordinator without;
  CHECK(without->access() == nullptr);
  CHECK(without.Call(&Coordinator::CreateToken, Request("0123456789ab")).status().code() ==
        absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("a cluster forgets the tokens that ended first, never good ones") {
  TestCoordinator c(WithTokens());
  const auto id = [](int i) {
    char text[13];
    std::snprintf(text, sizeof text, "%012d", i);
    return std::string(text);
  };
  for (int i = 0; i < kMaxTokens; ++i) {
    REQUIRE(c.Call(&Coordinator::CreateToken, Request(id(i))).ok());
  }
  CHECK(c.Call(&Coordinator::CreateToken, Request("ffffffffffff")).status().code() ==
        absl::StatusCode::kResourceExhausted);
  for (const int i : {7, 3}) {
    ++wall;
    REQUIRE(c.Call(&Coordinator::RevokeToken, Revoke(id(i))).ok());
  }
  REQUIRE(c.Call(&Coordinator::CreateToken, Request("ffffffffffff")).ok());
  CHECK(Find(c, id(7)) == nullptr);
  CHECK(Find(c, id(3)) != nullptr);
}

}  // namespace
}  // namespace verbena::server
