#include <algorithm>
#include <filesystem>

#include "tests/support/catch.h"
#include "tests/unit/plugins/fixtures.h"

using namespace shardrun;
using namespace shardrun::test;
using namespace shardrun::plugins;
using Catch::Contains;

namespace {

PluginInfo find(const std::vector<PluginInfo>& list, const std::filesystem::path& path) {
  const auto found = std::ranges::find(list, path, &PluginInfo::path);
  REQUIRE(found != list.end());
  return *found;
}

}  // namespace

TEST_CASE("the list holds every plugin, with its options or what is wrong with it", "[plugins]") {
  const std::filesystem::path directory = SHARDRUN_FIXTURES;

  const std::vector<PluginInfo> list = list_plugins(fixtures);

  CHECK(list.size() == files_in(directory));
  CHECK(std::ranges::is_sorted(list, {}, &PluginInfo::path));
  const PluginInfo echo = find(list, directory / file_of("echo"));
  CHECK(echo.kind == "strategy");
  CHECK(echo.name == "echo");
  CHECK(echo.version == "1.0");
  CHECK(echo.abi == "1.5");
  CHECK(echo.options.size() == 6);
  CHECK(echo.error.empty());
  CHECK(echo.shadowed_by.empty());

  const PluginInfo old = find(list, directory / file_of("wrong_major"));
  CHECK(old.abi == "2.5");
  CHECK_THAT(old.error, Contains("is built for plugin ABI 2.5"));
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

TEST_CASE("other files are passed over, other kinds are named", "[plugins]") {
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
