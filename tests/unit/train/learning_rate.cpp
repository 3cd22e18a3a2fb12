#include "core/train/steps.h"

#include <cmath>

#include "tests/support/catch.h"

using namespace shardrun;
using train::learning_rate;

namespace {

job::TrainSettings settings(job::Schedule schedule, std::int64_t warmup) {
  job::TrainSettings train;
  train.steps = 110;
  train.learning_rate = 1.0;
  train.min_learning_rate = 0.2;
  train.schedule = schedule;
  train.warmup = warmup;
  return train;
}

}  // namespace

TEST_CASE("the learning rate rises in equal parts to the full one", "[train]") {
  const job::TrainSettings train = settings(job::Schedule::cosine, 10);
  CHECK(learning_rate(train, 0) == Approx(1.0 / 11));
  CHECK(learning_rate(train, 4) == Approx(5.0 / 11));
  CHECK(learning_rate(train, 9) == Approx(10.0 / 11));
  CHECK(learning_rate(train, 10) == 1.0);
}

TEST_CASE("the cosine is half-way at half the steps and ends at the smallest rate", "[train]") {
  const job::TrainSettings train = settings(job::Schedule::cosine, 10);
  CHECK(learning_rate(train, 35) == Approx(0.2 + 0.4 * (1 + std::sqrt(0.5))));
  CHECK(learning_rate(train, 60) == Approx(0.6));
  CHECK(learning_rate(train, 109) > 0.2);
  CHECK(learning_rate(train, 109) < 0.201);
  CHECK(learning_rate(train, 110) == Approx(0.2));
  CHECK(learning_rate(train, 1000) == Approx(0.2));
}

TEST_CASE("the linear schedule falls by the same amount each step", "[train]") {
  const job::TrainSettings train = settings(job::Schedule::linear, 10);
  CHECK(learning_rate(train, 10) == 1.0);
  CHECK(learning_rate(train, 11) == Approx(1.0 - 0.008));
  CHECK(learning_rate(train, 60) == Approx(0.6));
  CHECK(learning_rate(train, 110) == Approx(0.2));
}

TEST_CASE("a constant rate stays after warm-up", "[train]") {
  const job::TrainSettings train = settings(job::Schedule::constant, 10);
  CHECK(learning_rate(train, 5) == Approx(6.0 / 11));
  CHECK(learning_rate(train, 10) == 1.0);
  CHECK(learning_rate(train, 109) == 1.0);
}

TEST_CASE("without warm-up the first step has the full rate", "[train]") {
  for (const job::Schedule schedule : {job::Schedule::cosine, job::Schedule::linear, job::Schedule::constant}) {
    CHECK(learning_rate(settings(schedule, 0), 0) == 1.0);
  }
}

TEST_CASE("a job with only warm-up steps has a rate in each step", "[train]") {
  const job::TrainSettings train = settings(job::Schedule::cosine, 110);
  CHECK(learning_rate(train, 109) == Approx(110.0 / 111));
  CHECK(learning_rate(train, 110) == 1.0);
}
