#include "core/launch/job_text.h"

#include "tests/support/catch.h"

using shardrun::launch::first_difference;

TEST_CASE("the first difference of two jobs names section, key and both values", "[launch]") {
  const std::string here = "[job]\nranks = 2\n\n[train]\nsteps = 50\n";
  CHECK(first_difference(here, here).empty());
  CHECK(first_difference(here, "[job]\nranks = 2\n\n[train]\nsteps = 60\n") == "[train] steps = 50 here, 60 there");
  CHECK(first_difference(here, "[job]\nranks = 2\n\n[train]\n") == "[train] steps = 50 here, not there");
  CHECK(first_difference(here, "[job]\nsteps = 50\n[train]\nsteps = 50\n") == "[job] ranks = 2 here, not there");
  CHECK(first_difference(here, "[train]\nsteps = 50\n[job]\nranks = 2\nthreads = 1") ==
        "[job] threads = 1 there, not here");
  CHECK(first_difference("a = 1\nb = 2", "b = 2\na = 1") == "the order of their lines");
  CHECK(first_difference("", here) == "[job] there, not here");
  CHECK(first_difference(here + "[strategy]\n", here) == "[strategy] here, not there");
  CHECK(first_difference("shm 2 8\n", "gloo 2 8") == "shm 2 8 here, not there");
  CHECK(first_difference("[job]\nkey = ", "[job]\nkey = a = b") == "[job] key =  here, a = b there");
}
