#include "server/cli/verbena/token_command.h"

#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/json.h"
#include "proto/security/role.h"
#include "proto/security/token.h"
#include "proto/security/token_file.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

std::string When(int64_t unix_seconds) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixSeconds(unix_seconds),
                          absl::UTCTimeZone());
}

const char* StateWord(const v1::Token& token) {
  if (token.ended() == 0) return "good";
  return token.revoked() ? "revoked" : "expired";
}

std::string ForWhom(const v1::Token& token) {
  return absl::StrCat(
      "role ", RoleName(token.role()),
      token.job().empty() ? "" : absl::StrCat(", job '", Printable(token.job()), "'"));
}

JsonWriter TokenJson(const v1::Token& token) {
  JsonWriter json;
  json.Add("id", token.id());
  json.Add("role", RoleName(token.role()));
  json.Add("job", token.job());
  json.Add("note", token.note());
  json.Add("created", token.created());
  json.Add("expires", token.expires());
  json.Add("ended", token.ended());
  json.Add("state", StateWord(token));
  return json;
}

absl::StatusOr<TokenReport> Create(const TokenOptions& options, bool json,
                                   const Coordinator& coordinator) {
  absl::StatusOr<NewToken> token = MakeToken();
  if (!token.ok()) return token.status();
  v1::CreateTokenRequest request;
  request.set_request_id(NewRequestId());
  request.set_id(token->id);
  request.set_role(options.role);
  request.set_job(options.job);
  request.set_note(options.note);
  request.set_hash(HashToken(token->text));
  request.set_lifetime_s(static_cast<uint64_t>(absl::ToInt64Seconds(options.lifetime)));
  // Before the cluster creates the token: otherwise an error would leave a token without a holder.
  if (!options.out.empty()) {
    if (absl::Status status = WriteToken(options.out, token->text); !status.ok()) return status;
  }
  absl::StatusOr<v1::CreateTokenResponse> made =
      ChangeAndWait<v1::CreateTokenResponse>(coordinator, "CreateToken", request);
  if (!made.ok()) {
    if (!options.out.empty()) unlink(options.out.c_str());
    return made.status();
  }
  TokenReport report;
  if (json) {
    JsonWriter all = TokenJson(made->token());
    if (options.out.empty()) all.Add("token", token->text);
    report.out = all.ToString() + "\n";
  } else if (options.out.empty()) {
    report.out = token->text + "\n";
  }
  report.err =
      absl::StrCat("verbena: made token ", token->id, ": ", ForWhom(made->token()), ", ",
                   made->token().expires() == 0 ? "good until it is revoked"
                                                : "good until " + When(made->token().expires()),
                   options.out.empty() ? "; it is shown this once" : "; in " + options.out, "\n");
  return report;
}

absl::StatusOr<TokenReport> List(bool json, const Coordinator& coordinator) {
  absl::StatusOr<v1::ListTokensResponse> known =
      CallAndWait<v1::ListTokensResponse>(coordinator, "ListTokens", v1::ListTokensRequest());
  if (!known.ok()) return known.status();
  TokenReport report;
  if (json) {
    JsonArray tokens;
    for (const v1::Token& token : known->tokens()) tokens.Add(TokenJson(token));
    JsonWriter all;
    all.Add("tokens", tokens);
    report.out = all.ToString() + "\n";
    return report;
  }
  if (known->tokens().empty()) {
    report.out = "This cluster asks for no tokens.\n";
    return report;
  }
  TextTable table{{"ID"}, {"ROLE"}, {"JOB"}, {"STATE"}, {"MADE"}, {"EXPIRES"}, {"NOTE"}};
  for (const v1::Token& token : known->tokens()) {
    table.AddRow({token.id(), RoleName(token.role()),
                  token.job().empty() ? "-" : Printable(token.job()), StateWord(token),
                  token.created() == 0 ? "-" : When(token.created()),
                  token.expires() == 0 ? "-" : When(token.expires()), Printable(token.note())});
  }
  report.out = table.ToString();
  return report;
}

absl::StatusOr<TokenReport> Revoke(const TokenOptions& options, bool json,
                                   const Coordinator& coordinator) {
  v1::RevokeTokenRequest request;
  request.set_request_id(NewRequestId());
  request.set_id(options.id);
  absl::StatusOr<v1::RevokeTokenResponse> revoked =
      ChangeAndWait<v1::RevokeTokenResponse>(coordinator, "RevokeToken", request);
  if (!revoked.ok()) return revoked.status();
  const v1::Token& token = revoked->token();
  TokenReport report;
  if (json) report.out = TokenJson(token).ToString() + "\n";
  report.err = absl::StrCat("verbena: token ", token.id(), " (", ForWhom(token), ") is ",
                            StateWord(token), " since ", When(token.ended()), "\n");
  return report;
}

}  // namespace

absl::StatusOr<absl::Duration> ParseLifetime(const std::string& text) {
  uint32_t number = 0;
  const bool right = text.size() > 1 && text.find_first_not_of("0123456789") == text.size() - 1 &&
                     absl::SimpleAtoi(text.substr(0, text.size() - 1), &number) && number > 0 &&
                     number <= 36'500;
  const char unit = text.empty() ? ' ' : text.back();
  if (right && unit == 'd') return absl::Hours(24) * number;
  if (right && unit == 'h') return absl::Hours(number);
  if (right && unit == 'm') return absl::Minutes(number);
  if (right && unit == 's') return absl::Seconds(number);
  return absl::InvalidArgumentError(
      absl::StrCat("'", Printable(text),
                   "' is not allowed: a number from 1 to 36500 and d, h, m or s, such as 30d"));
}

absl::StatusOr<TokenReport> RunTokenCommand(const TokenOptions& options, bool json,
                                            const Coordinator& coordinator) {
  switch (options.action) {
    case TokenOptions::Action::kCreate:
      return Create(options, json, coordinator);
    case TokenOptions::Action::kList:
      return List(json, coordinator);
    case TokenOptions::Action::kRevoke:
      break;
  }
  return Revoke(options, json, coordinator);
}

}  // namespace verbena::cli
