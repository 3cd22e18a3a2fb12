#include "core/base/median.h"

#include "tests/support/catch.h"

using shardrun::median;

TEST_CASE("the median is the middle value, or the mean of the two in the middle", "[base]") {
  CHECK(median({}) == 0);
  CHECK(median({3}) == 3);
  CHECK(median({5, 1, 3}) == 3);
  CHECK(median({4, 1, 3, 2}) == 2.5);
}
