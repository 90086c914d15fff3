// Schedules and clipping in a table's specification: invalid values and their errors, and equality.
#include "proto/spec/optimizer_spec.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <string>

#include "proto/spec/option_check.h"
#include "proto/spec/table_spec.h"

namespace verbena {
namespace {

using Catch::Matchers::Contains;

using Change = std::function<void(v1::Optimizer*)>;

v1::Optimizer Changed(const Change& change) {
  v1::Optimizer optimizer;
  optimizer.set_rate(0.5);
  change(&optimizer);
  return optimizer;
}

std::string Refused(const Change& change) {
  v1::Optimizer optimizer = Changed(change);
  const absl::Status status = NormalizeOptimizer(&optimizer);
  if (status.ok()) return "accepted";
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

std::string RefusedSchedule(v1::Schedule::Kind kind,
                            const std::function<void(v1::Schedule*)>& change) {
  return Refused([&](v1::Optimizer* o) {
    o->mutable_schedule()->set_kind(kind);
    change(o->mutable_schedule());
  });
}

void Pieces(v1::Schedule* s, const std::vector<uint64_t>& boundaries,
            const std::vector<double>& rates) {
  s->mutable_boundaries()->Assign(boundaries.begin(), boundaries.end());
  s->mutable_rates()->Assign(rates.begin(), rates.end());
}

TEST_CASE("a table's error names the table and the field") {
  v1::TableSpec spec;
  spec.set_name("emb");
  spec.set_job("job");
  spec.add_shape(8);
  spec.mutable_optimizer()->set_clip_value(-1);
  CHECK(NormalizeTableSpec(spec).status().message() ==
        "table \"emb\": optimizer.clip_value is -1; allowed: a finite number >= 1e-30, or 0: no "
        "clipping");
}

TEST_CASE("clipping") {
  const auto value = [](double v) { return Refused([v](auto* o) { o->set_clip_value(v); }); };
  const auto norm = [](double v) { return Refused([v](auto* o) { o->set_clip_chunk_norm(v); }); };
  const auto global = [](double v) {
    return Refused([v](auto* o) { o->set_clip_global_norm(v); });
  };
  for (const double good : {0.0, 1e-30, 1.0, 3e38}) {
    CHECK(value(good) == "accepted");
    CHECK(norm(good) == "accepted");
    CHECK(global(good) == "accepted");
  }
  CHECK_THAT(
      value(1e-31),
      Contains("optimizer.clip_value is 1e-31; allowed: a finite number >= 1e-30, or 0: no"));
  CHECK_THAT(value(1e39), Contains("optimizer.clip_value is 1e+39"));
  CHECK_THAT(
      norm(-2),
      Contains("optimizer.clip_chunk_norm is -2; allowed: a finite number >= 1e-30, or 0: no"));
  CHECK_THAT(norm(std::nan("")), Contains("optimizer.clip_chunk_norm is nan"));
  CHECK_THAT(norm(INFINITY), Contains("optimizer.clip_chunk_norm is inf"));
  CHECK(Refused([](auto* o) {
          o->set_clip_value(2);
          o->set_clip_chunk_norm(5);
        }) ==
        "optimizer.clip_chunk_norm is 5; allowed: 0 beside optimizer.clip_value, which is 2: "
        "one of the three");
  CHECK_THAT(
      global(-1),
      Contains("optimizer.clip_global_norm is -1; allowed: a finite number >= 1e-30, or 0: no"));
  CHECK(Refused([](auto* o) {
          o->set_clip_chunk_norm(2);
          o->set_clip_global_norm(5);
        }) ==
        "optimizer.clip_global_norm is 5; allowed: 0 beside optimizer.clip_chunk_norm, which is 2: "
        "one of the three");
}

TEST_CASE("constant schedules, with and without warm-up") {
  CHECK(RefusedSchedule(v1::Schedule::CONSTANT, [](auto*) {}) == "accepted");
  CHECK(RefusedSchedule(v1::Schedule::CONSTANT, [](auto* s) { s->set_warmup_steps(9); }) ==
        "accepted");
  CHECK(RefusedSchedule(static_cast<v1::Schedule::Kind>(9), [](auto*) {}) ==
        "optimizer.schedule.kind is 9; allowed: 1 (constant), 2 (step), 3 (cosine), 4 (piecewise)");
}

TEST_CASE("step schedules") {
  const auto step = [](uint64_t period, double factor) {
    return RefusedSchedule(v1::Schedule::STEP, [=](auto* s) {
      s->set_period(period);
      s->set_factor(factor);
    });
  };
  CHECK(step(100, 0.1) == "accepted");
  CHECK(step(1, 1) == "accepted");
  CHECK(step(0, 0.1) ==
        "optimizer.schedule.period is 0; allowed: 1 and more, as optimizer.schedule.kind is 2 "
        "(step)");
  CHECK_THAT(step(10, 0),
             Contains("optimizer.schedule.factor is 0; allowed: more than 0 and at most 1, as"));
  CHECK_THAT(step(10, 1.5), Contains("optimizer.schedule.factor is 1.5"));
  CHECK_THAT(step(10, std::nan("")), Contains("optimizer.schedule.factor is nan"));
}

TEST_CASE("cosine schedules") {
  const auto cosine = [](uint64_t period, double floor) {
    return RefusedSchedule(v1::Schedule::COSINE, [=](auto* s) {
      s->set_period(period);
      s->set_floor(floor);
    });
  };
  CHECK(cosine(100, 0) == "accepted");
  CHECK(cosine(100, 0.5) == "accepted");
  CHECK(cosine(0, 0.1) ==
        "optimizer.schedule.period is 0; allowed: 1 and more, as optimizer.schedule.kind is 3 "
        "(cosine)");
  CHECK(cosine(10, 0.6) ==
        "optimizer.schedule.floor is 0.6; allowed: 0 to optimizer.rate, which is 0.5");
  CHECK_THAT(cosine(10, -0.1), Contains("optimizer.schedule.floor is -0.1"));
  CHECK_THAT(cosine(10, std::nan("")), Contains("optimizer.schedule.floor is nan"));
}

TEST_CASE("piecewise schedules") {
  const auto pieces = [](const std::vector<uint64_t>& boundaries,
                         const std::vector<double>& rates) {
    return RefusedSchedule(v1::Schedule::PIECEWISE, [&](auto* s) { Pieces(s, boundaries, rates); });
  };
  CHECK(pieces({10}, {0.1}) == "accepted");
  CHECK(pieces({10, 11}, {2, 0}) == "accepted");
  CHECK(pieces({}, {}) ==
        "optimizer.schedule.boundaries is a list of 0; allowed: 1..1024 growing steps");
  CHECK_THAT(pieces(std::vector<uint64_t>(1025, 1), {}), Contains("a list of 1025"));
  CHECK(pieces({0}, {1}) ==
        "optimizer.schedule.boundaries[0] is 0; allowed: more than 0: boundaries grow");
  CHECK(pieces({5, 5}, {1, 1}) ==
        "optimizer.schedule.boundaries[1] is 5; allowed: more than 5: boundaries grow");
  CHECK(pieces({5, 6}, {1}) ==
        "optimizer.schedule.rates is a list of 1; allowed: as many as boundaries, which are 2; "
        "before the first, optimizer.rate holds");
  CHECK(pieces({5}, {-1}) == "optimizer.schedule.rates[0] is -1; allowed: a finite number >= 0");
  CHECK_THAT(pieces({5, 6}, {1, 1e39}), Contains("optimizer.schedule.rates[1] is 1e+39"));
}

TEST_CASE("a field that the kind does not use must not be set") {
  using Kind = v1::Schedule;
  const std::string unless = ", unless optimizer.schedule.kind is ";
  CHECK(RefusedSchedule(Kind::CONSTANT, [](auto* s) { s->set_period(3); }) ==
        "optimizer.schedule.period is 3; allowed: 0" + unless + "2 (step) or 3 (cosine)");
  CHECK(RefusedSchedule(Kind::KIND_UNSPECIFIED, [](auto* s) { s->set_factor(0.5); }) ==
        "optimizer.schedule.factor is 0.5; allowed: 0" + unless + "2 (step)");
  const auto step = [](auto* s) {
    s->set_period(1);
    s->set_factor(1);
    s->set_floor(0.5);
  };
  CHECK_THAT(RefusedSchedule(Kind::STEP, step),
             Contains("optimizer.schedule.floor is 0.5; allowed: 0" + unless + "3 (cosine)"));
  const auto cosine = [](auto* s) {
    s->set_period(1);
    s->set_factor(0.5);
  };
  CHECK_THAT(RefusedSchedule(Kind::COSINE, cosine),
             Contains("optimizer.schedule.factor is 0.5; allowed: 0" + unless));
  CHECK_THAT(RefusedSchedule(Kind::PIECEWISE, [](auto* s) { s->set_period(5); }),
             Contains("optimizer.schedule.period is 5; allowed: 0" + unless));
  const auto bounded = [](auto* s) {
    s->set_period(1);
    s->add_boundaries(5);
  };
  CHECK_THAT(
      RefusedSchedule(Kind::COSINE, bounded),
      Contains("optimizer.schedule.boundaries is [5]; allowed: none" + unless + "4 (piecewise)"));
  CHECK_THAT(RefusedSchedule(Kind::CONSTANT, [](auto* s) { s->add_rates(5); }),
             Contains("optimizer.schedule.rates is [5]; allowed: none" + unless));
}

// The first difference between one optimizer after two changes.
std::string Difference(const Change& first, const Change& second) {
  v1::Optimizer a = Changed(first);
  v1::Optimizer b = Changed(second);
  REQUIRE(NormalizeOptimizer(&a).ok());
  REQUIRE(NormalizeOptimizer(&b).ok());
  v1::TableSpec one, other;
  *one.mutable_optimizer() = a;
  *other.mutable_optimizer() = b;
  const auto difference = FirstDifference(one, other);
  if (!difference) {
    CHECK(a.SerializeAsString() == b.SerializeAsString());
    return "same";
  }
  return difference->field + ": " + difference->first + " and " + difference->second;
}

TEST_CASE("equivalent optimizers are the same; differences name the field and both values") {
  const Change plain = [](auto*) {};
  const Change cosine = [](v1::Optimizer* o) {
    o->mutable_schedule()->set_kind(v1::Schedule::COSINE);
    o->mutable_schedule()->set_period(10);
  };
  const auto piecewise = [](double rate) {
    return [rate](v1::Optimizer* o) {
      o->mutable_schedule()->set_kind(v1::Schedule::PIECEWISE);
      Pieces(o->mutable_schedule(), {10, 20}, {0.25, rate});
    };
  };
  CHECK(Difference(plain, plain) == "same");
  CHECK(Difference(plain, [](auto* o) {
          o->mutable_schedule()->set_kind(v1::Schedule::CONSTANT);
        }) == "same");
  CHECK(Difference([](auto* o) { o->mutable_schedule()->set_warmup_steps(3); },
                   [](auto* o) {
                     o->mutable_schedule()->set_kind(v1::Schedule::CONSTANT);
                     o->mutable_schedule()->set_warmup_steps(3);
                   }) == "same");
  CHECK(Difference(plain, cosine) == "optimizer.schedule.kind: constant and cosine");
  CHECK(Difference(cosine, [&](auto* o) {
          cosine(o);
          o->mutable_schedule()->set_floor(0.1);
        }) == "optimizer.schedule.floor: 0 and 0.1");
  CHECK(Difference(plain, [](auto* o) { o->mutable_schedule()->set_warmup_steps(3); }) ==
        "optimizer.schedule.warmup_steps: 0 and 3");
  CHECK(Difference(piecewise(0.1), piecewise(0)) ==
        "optimizer.schedule.rates: [0.25, 0.1] and [0.25, 0]");
  CHECK(Difference(plain, [](auto* o) { o->set_clip_value(2); }) ==
        "optimizer.clip_value: 0 and 2");
  CHECK(Difference(plain, [](auto* o) { o->set_clip_chunk_norm(2); }) ==
        "optimizer.clip_chunk_norm: 0 and 2");
  CHECK(Difference(plain, [](auto* o) { o->set_clip_global_norm(2); }) ==
        "optimizer.clip_global_norm: 0 and 2");
  CHECK(Difference([](auto* o) { (*o->mutable_parameters())["l1"] = 2; }, plain) ==
        "optimizer.parameters[\"l1\"]: 2 and not set");
}

}  // namespace
}  // namespace verbena
