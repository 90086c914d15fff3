#include "server/coordinator/tokens.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/security/token.h"
#include "server/coordinator/jobs.h"
#include "server/coordinator/validation.h"

namespace verbena::server {
namespace {

constexpr size_t kMaxNoteBytes = 256;
constexpr uint64_t kMaxLifetime = uint64_t{100} * 366 * 86400;  // in seconds

absl::Status Wrong(const char* field, const std::string& value, const char* allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; allowed: ", allowed));
}

absl::Status CheckRequest(const v1::CreateTokenRequest& request) {
  if (!IsTokenId(request.id())) {
    return Wrong("id", absl::StrCat(request.id().size(), " bytes that are none"),
                 "12 hexadecimal digits in lower case");
  }
  if (request.hash().size() != kTokenHashBytes) {
    return Wrong("hash", absl::StrCat(request.hash().size(), " bytes"), "32, a SHA-256");
  }
  if (request.role() == v1::ROLE_UNSPECIFIED || !v1::Role_IsValid(request.role())) {
    return Wrong("role", absl::StrCat(static_cast<int>(request.role())),
                 "operator, server, job, read-only");
  }
  const bool of_job = request.role() == v1::ROLE_JOB;
  if (of_job || (request.role() == v1::ROLE_READ_ONLY && !request.job().empty())) {
    if (absl::Status status = CheckName("job", request.job()); !status.ok()) return status;
  } else if (!request.job().empty()) {
    return Wrong("job", absl::StrCat("'", request.job(), "'"),
                 "none for an operator or a server, whose role is of the whole cluster");
  }
  if (!request.note().empty()) {
    if (request.note().size() > kMaxNoteBytes) {
      return Wrong("note", absl::StrCat(request.note().size(), " bytes"), "256 at most");
    }
    if (std::any_of(request.note().begin(), request.note().end(),
                    [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); })) {
      return Wrong("note", "a text with control characters", "a text without them");
    }
  }
  if (request.lifetime_s() > kMaxLifetime) {
    return Wrong("lifetime_s", absl::StrCat(request.lifetime_s()), "a hundred years at most");
  }
  return absl::OkStatus();
}

// False: all of them are good.
bool ForgetOne(v1::AccessRules* access) {
  auto* tokens = access->mutable_tokens();
  auto first = tokens->end();
  for (auto it = tokens->begin(); it != tokens->end(); ++it) {
    if (it->ended() == 0) continue;
    if (first == tokens->end() || it->ended() < first->ended()) first = it;
  }
  if (first == tokens->end()) return false;
  tokens->erase(first);
  return true;
}

// Its workers may do nothing more.
void RetireBearers(const std::string& id, ViewEditor* view) {
  std::vector<uint64_t> bearers;
  for (const v1::Job& job : view->view().jobs()) {
    for (const v1::Worker& worker : job.members()) {
      if (worker.token() == id) bearers.push_back(worker.incarnation());
    }
  }
  for (const uint64_t incarnation : bearers) RetireWorker(incarnation, view);
}

}  // namespace

absl::StatusOr<Effect> AddToken(const v1::CreateTokenRequest& request, int64_t now_s,
                                CoordinatorState* state, v1::CreateTokenResponse* response) {
  if (absl::Status status = CheckRequest(request); !status.ok()) return status;
  for (const v1::Token& known : state->access.tokens()) {
    if (known.id() == request.id()) {
      return absl::AlreadyExistsError(
          absl::StrCat("there is a token ", request.id(), "; every new one has its own id"));
    }
  }
  if (state->access.tokens_size() >= kMaxTokens && !ForgetOne(&state->access)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the cluster has ", kMaxTokens,
                     " good tokens, as many as it can; revoke some ('verbena token revoke')"));
  }
  v1::Token* token = state->access.add_tokens();
  token->set_id(request.id());
  token->set_role(request.role());
  token->set_job(request.job());
  token->set_note(request.note());
  token->set_hash(request.hash());
  token->set_created(now_s);
  if (request.lifetime_s() > 0) {
    token->set_expires(now_s + static_cast<int64_t>(request.lifetime_s()));
  }
  *response->mutable_token() = *token;
  response->mutable_token()->clear_hash();
  return Effect::kChanged;
}

absl::StatusOr<Effect> EndToken(const std::string& id, int64_t now_s, CoordinatorState* state,
                                ViewEditor* view, v1::RevokeTokenResponse* response) {
  for (v1::Token& token : *state->access.mutable_tokens()) {
    if (token.id() != id) continue;
    const bool good = token.ended() == 0;
    if (good) {
      token.set_ended(std::max<int64_t>(now_s, 1));
      token.set_revoked(true);
      RetireBearers(id, view);
    }
    *response->mutable_token() = token;
    response->mutable_token()->clear_hash();
    return good ? Effect::kChanged : Effect::kNone;
  }
  return absl::NotFoundError(absl::StrCat("there is no token '", absl::CHexEscape(id.substr(0, 64)),
                                          "'; 'verbena token list' shows them"));
}

Effect EndExpiredTokens(int64_t now_s, CoordinatorState* state, ViewEditor* view) {
  Effect effect = Effect::kNone;
  for (v1::Token& token : *state->access.mutable_tokens()) {
    if (token.ended() != 0 || token.expires() == 0 || token.expires() > now_s) continue;
    token.set_ended(token.expires());
    RetireBearers(token.id(), view);
    effect = Effect::kChanged;
  }
  return effect;
}

void RetireEnded(const CoordinatorState& state, ViewEditor* view) {
  for (const v1::Token& token : state.access.tokens()) {
    if (token.ended() != 0) RetireBearers(token.id(), view);
  }
}

int64_t NextTokenExpiry(const CoordinatorState& state) {
  int64_t next = std::numeric_limits<int64_t>::max();
  for (const v1::Token& token : state.access.tokens()) {
    if (token.ended() == 0 && token.expires() != 0) next = std::min(next, token.expires());
  }
  return next;
}

absl::Status CheckTokens(const CoordinatorState& state) {
  std::set<std::string> ids;
  for (const v1::Token& token : state.access.tokens()) {
    if (!IsTokenId(token.id()) || !ids.insert(token.id()).second ||
        token.hash().size() != kTokenHashBytes || !v1::Role_IsValid(token.role()) ||
        token.expires() < 0 || token.ended() < 0) {
      return absl::DataLossError("the coordinator's state makes no sense: tokens");
    }
  }
  return absl::OkStatus();
}

}  // namespace verbena::server
