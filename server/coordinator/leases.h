// The leases of incarnations, and their ends.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_COORDINATOR_LEASES_H_
#define VERBENA_SERVER_COORDINATOR_LEASES_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace verbena::server {

class Leases {
 public:
  void Grant(uint64_t incarnation, int64_t until_ns);
  // False when it has none.
  bool Renew(uint64_t incarnation, int64_t until_ns);
  void End(uint64_t incarnation);
  bool Has(uint64_t incarnation) const { return until_.contains(incarnation); }
  int64_t Until(uint64_t incarnation) const {  // 0: it has none
    const auto it = until_.find(incarnation);
    return it == until_.end() ? 0 : it->second;
  }
  // Every lease ends `ns` later, but not after `limit_ns`, unless it does so already.
  void ExtendAll(int64_t ns, int64_t limit_ns);
  // Ends the leases of incarnations that are not in `keep`.
  void Retain(const std::set<uint64_t>& keep);

  std::vector<uint64_t> Due(int64_t now_ns) const;  // those that end at now_ns or before
  int64_t NextDueNanos() const;                     // INT64_MAX: there is none
  bool empty() const { return until_.empty(); }

 private:
  std::map<uint64_t, int64_t> until_;
  std::set<std::pair<int64_t, uint64_t>> order_;  // (until, incarnation) of every lease
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_LEASES_H_
