// The swarm's model of a table: the values that a read may show.
#include "tests/cluster/swarm_table.h"

#include <catch2/catch.hpp>
#include <utility>
#include <vector>

namespace verbena::test {
namespace {

TEST_CASE("regression: a restored row is read rounded, or exactly as in a bag, and is no other") {
  v1::Table table;
  table.set_id(1);
  table.set_restoring(true);
  v1::TableSpec* spec = table.mutable_spec();
  spec->set_name("rows");
  spec->set_dim(2);
  spec->set_consistency(v1::CONSISTENCY_ASYNC);
  spec->set_pull_codec(v1::CODEC_BF16);
  spec->mutable_optimizer()->set_name("adagrad");
  SwarmTable model(table, 1);
  // bf16 rounds one up, and the other down.
  const auto [exact, rounded] =
      GENERATE(std::pair(1.70711f, 1.7109375f), std::pair(1.31623f, 1.3125f));
  model.Restored(std::vector<float>(model.units().size(), exact), model.rates());
  const bool bag = GENERATE(false, true);
  const auto check = [&model, bag](float value) {
    return model.Check(0, {value, value}, 0, model.life(0), bag);
  };
  CHECK(check(exact).empty() == bag);
  CHECK(check(rounded).empty() == !bag);
  CHECK_FALSE(check(exact - 0.01f).empty());
  CHECK_FALSE(check(exact + 0.01f).empty());
  CHECK_FALSE(check(0).empty());
}

}  // namespace
}  // namespace verbena::test
