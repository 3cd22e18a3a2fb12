#include "core/base/suggest.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun;

TEST_CASE("the nearest name is suggested, a far one is not", "[base]") {
  const std::vector<std::string> names = {"learning_rate", "steps", "warmup", "clip"};

  CHECK(nearest_name("learning_rat", names) == "learning_rate");
  CHECK(nearest_name("setps", names) == "steps");
  CHECK(nearest_name("zzz", names).empty());
  CHECK(nearest_name(std::string(100000, 'x'), names).empty());
  CHECK(did_you_mean("warm_up", names) == " (did you mean 'warmup'?)");
  CHECK(did_you_mean("banana", names).empty());
}
