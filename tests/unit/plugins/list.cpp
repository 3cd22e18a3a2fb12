#include <shardrun/sdk/strategy/glob.hpp>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "plugins/loader/plugin.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/unit/plugins/fixtures.h"

using namespace shardrun;
using namespace shardrun::test;
using namespace shardrun::plan;
using namespace shardrun::plugins;
using Catch::Contains;
using shardrun::sdk::glob_matches;

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

TEST_CASE("a glob matches the whole name", "[plugins]") {
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

namespace {

PluginInfo find(const std::vector<PluginInfo>& list, const std::filesystem::path& path) {
  const auto found = std::ranges::find(list, path, &PluginInfo::path);
  REQUIRE(found != list.end());
  return *found;
}

}  // namespace

TEST_CASE("the list holds every plugin, with its options or its error", "[plugins]") {
  const std::filesystem::path directory = SHARDRUN_FIXTURES;

  const std::vector<PluginInfo> list = list_plugins(fixtures);

  CHECK(list.size() == files_in(directory));
  CHECK(std::ranges::is_sorted(list, {}, &PluginInfo::path));
  const PluginInfo echo = find(list, directory / file_of("echo"));
  CHECK(echo.kind == "strategy");
  CHECK(echo.name == "echo");
  CHECK(echo.version == "1.0");
  CHECK(echo.abi == "1.9");
  CHECK(echo.options.size() == 6);
  CHECK(echo.error.empty());
  CHECK(echo.shadowed_by.empty());

  const PluginInfo old = find(list, directory / file_of("wrong_major"));
  CHECK(old.abi == "2.9");
  CHECK_THAT(old.error, Contains("is built for plugin ABI 2.9"));
  CHECK_THAT(find(list, directory / file_of("open_fails")).error, Contains("the table of costs is empty"));
}

TEST_CASE("the list says which plugins are shadowed", "[plugins]") {
  const std::filesystem::path original = std::filesystem::path(SHARDRUN_FIXTURES) / file_of("rows");
  const TemporaryFolder folder;
  std::filesystem::copy_file(original, folder / file_of("rows").string());

  const std::vector<PluginInfo> list = list_plugins({folder.path(), SHARDRUN_FIXTURES, "/nowhere/at/all"});

  CHECK(find(list, folder / file_of("rows").string()).shadowed_by.empty());
  CHECK(find(list, original).shadowed_by == folder / file_of("rows").string());
}

TEST_CASE("files that are not plugins are skipped, and plugins of unknown kinds are listed", "[plugins]") {
  const TemporaryFolder folder;
  for (const char* name : {"libshardrun.so", "shardrun_strategy_.so", "shardrun_strategy_a.so.1", "shardrun.so",
                           "shardrun_strategy_A.so", "notes.txt"}) {
    write_file(folder / name, "text");
  }
  std::filesystem::copy_file(std::filesystem::path(SHARDRUN_FIXTURES) / file_of("rows"),
                             folder / "shardrun_planner_rows.so");

  const std::vector<PluginInfo> list = list_plugins({folder.path()});

  REQUIRE(list.size() == 1);
  CHECK(list[0].kind == "planner");
  CHECK_THAT(list[0].error, Contains("its file's name says the planner 'rows'"));
  CHECK(plugin_names({folder.path()}, PluginKind::strategy).empty());
}

TEST_CASE("single splits nothing", "[plugins]") {
  const Strategy single = Strategy::open({SHARDRUN_BUILT_PLUGINS}, "single");
  StrategyRequest request = small_request(1);
  CHECK(single.make_plan(request) == plan::Plan{.strategy = "single"});

  request.job.mesh = {{"data", 1}, {"model", 1}};
  const plan::Plan plan = single.make_plan(request);
  CHECK(plan.mesh == std::vector<plan::MeshAxis>{{"data", 1}, {"model", 1}});
  CHECK(plan.axes.empty());
}

TEST_CASE("single refuses a job of several ranks and says what to do", "[plugins]") {
  const Strategy single = Strategy::open({SHARDRUN_BUILT_PLUGINS}, "single");
  const auto error = [&](const StrategyRequest& request) {
    return error_of([&] { static_cast<void>(single.make_plan(request)); });
  };
  StrategyRequest request = small_request(4);
  CHECK(error(request) ==
        "2: strategy 'single': it keeps everything on one rank, but the job has 4 ranks: set ranks = 1 in [job], or "
        "choose a strategy that splits ('shardrun plugins' lists them)");

  request.job.ranks = 1;
  request.job.mesh = {{"data", 2}};
  CHECK(error(request) ==
        "2: strategy 'single': it keeps everything on one rank, but [mesh] has data = 2: set it to 1 or leave [mesh] "
        "out");
}
