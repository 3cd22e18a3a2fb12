#include "core/train/checkpointing.h"

#include "tests/support/catch.h"

using namespace shardrun;

namespace {

train::LeadTime::Time at(int seconds) { return train::LeadTime::Time() + std::chrono::seconds(seconds); }

}  // namespace

TEST_CASE("the time reserved before a limit leaves out the wait before the first step, and counts each step once",
          "[train]") {
  train::LeadTime lead;
  lead.begin(at(1000));
  CHECK(lead.look(at(1002), 4, false, 3) == 1.5 * (4 + 2) + 1);  // no step has ended yet
  lead.step_took(2);
  lead.step_took(1);
  CHECK(lead.look(at(1003), 4, false, 3) == 1.5 * (4 + 2 + 3 * 2) + 1);
  CHECK(lead.look(at(1004), 4, false, 0) == 1.5 * (4 + 2) + 1);
}

TEST_CASE("the time reserved before a limit has one evaluation, however many steps are to come", "[train]") {
  train::LeadTime lead;
  lead.begin(at(0));
  lead.step_took(1);
  CHECK(lead.look(at(100), 0, false, 1) == 1.5 * (100 + 1) + 1);
  CHECK(lead.look(at(101), 6, true, 1) == 1.5 * (6 + 100 + 1) + 6 + 1);
}
