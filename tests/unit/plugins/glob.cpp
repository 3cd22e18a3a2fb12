#include <shardrun/sdk/glob.hpp>

#include "tests/support/catch.h"

using shardrun::sdk::glob_matches;

TEST_CASE("a glob covers the whole name", "[plugins]") {
  CHECK(glob_matches("", ""));
  CHECK(glob_matches("*", ""));
  CHECK(glob_matches("*", "layer.0/residual"));
  CHECK(glob_matches("layer.*/residual", "layer.12/residual"));
  CHECK(glob_matches("layer.?/w", "layer.3/w"));
  CHECK(glob_matches("*.w*", "a.b.w"));
  CHECK(glob_matches("a*b*c", "a-b-b-c"));
  CHECK(glob_matches("[0]", "[0]"));

  CHECK_FALSE(glob_matches("", "a"));
  CHECK_FALSE(glob_matches("layer.?/w", "layer.12/w"));
  CHECK_FALSE(glob_matches("w", "ww"));
  CHECK_FALSE(glob_matches("*b", "abc"));
  CHECK_FALSE(glob_matches("a*b*c", "a-c-b"));
  CHECK_FALSE(glob_matches("?", ""));
}
