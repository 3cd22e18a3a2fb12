#include <algorithm>
#include <filesystem>
#include <vector>

#include "plugins/loader/plugin.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using shardrun::test::error_of;

TEST_CASE("directories come from the job, then the environment, then the program's place", "[plugins]") {
  const std::vector<std::filesystem::path> configured = {"/job/a", "/job/b/../b"};
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").parent_path();

  const plugins::Directories found = plugins::plugin_directories(configured, "/env/c::/env/d:/job/a");

  REQUIRE(found.size() == 6);
  CHECK(found[0] == "/job/a");
  CHECK(found[1] == "/job/b");
  CHECK(found[2] == "/env/c");
  CHECK(found[3] == "/env/d");
  CHECK(found[4] == program / "lib/shardrun/v1");
  CHECK(found[5].string().ends_with("/shardrun/v1"));
  CHECK(found[5].parent_path().parent_path() != found[4].parent_path().parent_path());
}

TEST_CASE("without configuration only the program's place is searched, never the working directory", "[plugins]") {
  const plugins::Directories found = plugins::plugin_directories({}, nullptr);

  CHECK(found.size() == 2);
  CHECK(std::ranges::all_of(found, &std::filesystem::path::is_absolute));
}

TEST_CASE("a relative directory is refused with its origin", "[plugins]") {
  const std::vector<std::filesystem::path> configured = {"plugins"};

  CHECK_THAT(error_of([&] { static_cast<void>(plugins::plugin_directories(configured, nullptr)); }),
             Catch::Contains("2: [plugins] path holds 'plugins', which is relative"));
  CHECK_THAT(error_of([&] { static_cast<void>(plugins::plugin_directories({}, "/a:.")); }),
             Catch::Contains("2: SHARDRUN_PLUGIN_PATH holds '.', which is relative"));
}
