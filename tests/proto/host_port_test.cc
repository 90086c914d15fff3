// host:port texts, IPv6 addresses among them.
#include "proto/base/host_port.h"

#include <catch2/catch.hpp>
#include <string>

namespace verbena {
namespace {

using Catch::Contains;

TEST_CASE("host and port are split and joined") {
  struct Case {
    std::string text, host;
    uint16_t port;
  };
  for (const Case& c :
       {Case{"host:7000", "host", 7000}, Case{"10.0.0.1:0", "10.0.0.1", 0},
        Case{"[::1]:65535", "::1", 65535}, Case{"[fe80::1%eth0]:1", "fe80::1%eth0", 1}}) {
    INFO(c.text);
    const auto parsed = SplitHostPort(c.text);
    REQUIRE(parsed.ok());
    CHECK(parsed->host == c.host);
    CHECK(parsed->port == c.port);
    CHECK(JoinHostPort(parsed->host, parsed->port) == c.text);
  }
}

TEST_CASE("text that is no host and port is refused with the reason") {
  const auto refused = [](const std::string& text) {
    const auto parsed = SplitHostPort(text);
    return parsed.ok() ? "accepted" : std::string(parsed.status().message());
  };
  for (const char* text :
       {"", "host", ":7000", "host:", "host:x", "host:65536", "host:-1", "[::1]"}) {
    CHECK_THAT(refused(text), Contains("is not HOST:PORT with a port from 0 to 65535"));
  }
  CHECK_THAT(refused("::1:7000"), Contains("'::1:7000'") && Contains("in brackets"));
  CHECK_THAT(refused("fd77::1"), Contains("in brackets"));
  CHECK_THAT(refused("http://127.0.0.1:7000"),
             Contains("is not HOST:PORT: leave out 'http://'") && !Contains("brackets"));
  CHECK_THAT(refused("dns:///host:7000"), Contains("leave out 'dns://'"));
}

TEST_CASE("brackets are removed only in pairs") {
  CHECK(WithoutBrackets("[::1]") == "::1");
  CHECK(WithoutBrackets("::1") == "::1");
  CHECK(WithoutBrackets("[]") == "[]");
  CHECK(WithoutBrackets("[::1") == "[::1");
}

TEST_CASE("a list of addresses is split, and a wrong or repeated one is refused") {
  const auto list = SplitAddresses("a:1,[::1]:2,10.0.0.1:3");
  REQUIRE(list.ok());
  CHECK(*list == std::vector<std::string>{"a:1", "[::1]:2", "10.0.0.1:3"});
  for (const char* text : {"", "a:1,", ",a:1", "a:1,b", "a:1 b:2"}) {
    INFO(text);
    CHECK_FALSE(SplitAddresses(text).ok());
  }
  CHECK_THAT(std::string(SplitAddresses("a:1,b:2,a:1").status().message()), Contains("a:1 twice"));
}

TEST_CASE("addresses on this host are distinguished from others") {
  for (const char* text : {"localhost:1", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1"}) {
    INFO(text);
    CHECK(OnThisHost(text));
  }
  for (const char* text :
       {"host:1", "127.0.0.1.example:1", "10.0.0.1:1", "[fd00::1]:1", "127.0.0.1"}) {
    INFO(text);
    CHECK_FALSE(OnThisHost(text));
  }
}

}  // namespace
}  // namespace verbena
