// The token text that a caller of the control plane presents.
#include "proto/security/token.h"
#include "server/access/access_control.h"
#include "tests/fuzz/fuzz.h"

namespace verbena::fuzz {
namespace {

constexpr char kGood[] = "vbn_0123456789ab_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

v1::AccessRules Rules() {
  v1::AccessRules rules;
  v1::Token* token = rules.add_tokens();
  token->set_id("0123456789ab");
  token->set_role(v1::ROLE_JOB);
  token->set_job("job");
  token->set_hash(HashToken(kGood));
  return rules;
}

}  // namespace

std::vector<std::string> Seeds() {
  return {kGood, "vbn_0123456789ab_", "", "Bearer", std::string(kGood) + "="};
}

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena;
  static const v1::AccessRules rules = fuzz::Rules();
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto who = server::Authenticate(&rules, text);
  // Nothing but the token itself is good.
  FUZZ_CHECK(who.ok() == (text == fuzz::kGood));
  if (who.ok()) return 0;
  // Whatever it was, the message can be printed.
  for (const char c : who.status().message()) FUZZ_CHECK(c >= ' ' && c <= '~');
  return 0;
}
