// When a standby may take the leader's lease for ended.
#include "server/coordinator/etcd/lease_watch.h"

#include <catch2/catch.hpp>

namespace verbena::server {
namespace {

constexpr int64_t kMs = 1'000'000;

struct Reader {
  // An answer about lease 7, of 3 s, that was sent 10 ms before it was received.
  void Answer(int64_t received_ms, int64_t left_s, uint64_t member = 1, uint64_t term = 1) {
    etcdserverpb::LeaseTimeToLiveResponse answer;
    answer.mutable_header()->set_member_id(member);
    answer.mutable_header()->set_raft_term(term);
    answer.set_ttl(left_s);
    answer.set_grantedttl(granted_s);
    watch.Due(7, (received_ms - 10) * kMs);
    watch.OnAnswer(answer, (received_ms - 10) * kMs, received_ms * kMs);
  }
  bool Ended(uint64_t member = 1, uint64_t term = 1, int64_t lease = 7) {
    etcdserverpb::ResponseHeader header;
    header.set_member_id(member);
    header.set_raft_term(term);
    return watch.Ended(lease, header);
  }
  int64_t granted_s = 3;
  LeaseWatch watch;
};

TEST_CASE("a lease has ended a second after an answer with less than a second left") {
  Reader reader;
  reader.Answer(1000, 1);
  CHECK_FALSE(reader.Ended());
  reader.Answer(2000, 0);
  CHECK(reader.watch.DecisiveNanos() == 3000 * kMs);
  reader.Answer(3009, 0);  // sent at 2999
  CHECK_FALSE(reader.Ended());
  reader.Answer(3010, 0);
  CHECK(reader.Ended());
  // A confirmation by another member, in another term, or of another lease, is none.
  CHECK_FALSE(reader.Ended(2, 1));
  CHECK_FALSE(reader.Ended(1, 2));
  CHECK_FALSE(reader.Ended(1, 1, 8));
}

TEST_CASE("an extension, another member or another term begin the second anew") {
  Reader reader;
  reader.Answer(1000, 0);
  SECTION("an extension") { reader.Answer(1500, 2); }
  SECTION("another member") { reader.Answer(1500, 0, 2); }
  SECTION("another term") { reader.Answer(1500, 0, 1, 2); }
  SECTION("another lease") { reader.watch.Due(8, 1500 * kMs); }
  reader.Answer(2010, 0);
  CHECK_FALSE(reader.Ended());
  reader.Answer(2510, 0);
  CHECK_FALSE(reader.Ended());
  reader.Answer(3020, 0);
  CHECK(reader.Ended());
}

TEST_CASE("answers between which an extension may have come and gone show nothing") {
  Reader reader;
  reader.Answer(1000, 0);
  reader.Answer(2990, 0);  // an extension at 991 ms left less than a second by then
  CHECK_FALSE(reader.Ended());
  reader.Answer(4000, 0);
  CHECK(reader.Ended());
  // A lease of a second never has more than a second left.
  Reader shortest;
  shortest.granted_s = 1;
  for (int64_t at = 1000; at < 9000; at += 100) {
    shortest.Answer(at, 0);
    CHECK_FALSE(shortest.Ended());
  }
}

TEST_CASE("the time left is read seldom while it is long, and often near the end") {
  Reader reader;
  CHECK(reader.watch.Due(7, 0));
  reader.Answer(1000, 2);
  CHECK_FALSE(reader.watch.Due(7, 1400 * kMs));
  CHECK(reader.watch.Due(7, 1500 * kMs));
  reader.Answer(1500, 1);
  CHECK(reader.watch.Due(7, 1501 * kMs));
}

}  // namespace
}  // namespace verbena::server
