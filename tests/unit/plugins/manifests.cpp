#include "tests/support/catch.h"
#include "tests/unit/plugins/fixtures.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

TEST_CASE("the error for a missing plugin lists the folders searched and the plugins found", "[plugins]") {
  const TemporaryFolder empty;
  const plugins::Directories directories = {empty.path(), "/nowhere/at/all", SHARDRUN_FIXTURES};

  CHECK_THAT(open_error("rosw", directories),
             Contains("2: there is no strategy plugin 'rosw' (did you mean 'rows'?)") &&
                 Contains("available: bad_default, bare_file, echo,") && Contains("shardrun_strategy_rosw.so in: ") &&
                 Contains(empty.path().string() + ", /nowhere/at/all (no such directory), " SHARDRUN_FIXTURES) &&
                 Contains("SHARDRUN_PLUGIN_PATH"));
  CHECK_THAT(open_error("rows", {}), Contains("available: none") && Contains("no directory"));
}

TEST_CASE("the name that other programs use for a plugin suggests the plugin's name", "[plugins]") {
  CHECK(plugins::inspect(std::filesystem::path(SHARDRUN_FIXTURES) / file_of("rows")).aliases ==
        std::vector<std::string>{"rowwise", "row_parallel"});
  for (const char* name : {"row_parallel", "Rowwise", "row-parallel", "ROWS"}) {
    CHECK_THAT(open_error(name), Contains("it is 'rows' here") || Contains("did you mean 'rows'?"));
  }
  // A name of a plugin's own comes first.
  CHECK_THAT(open_error("Echo"), Contains("'Echo' is no name of a strategy plugin (did you mean 'echo'?)"));
}

TEST_CASE("a plugin name with a path or odd characters is refused", "[plugins]") {
  for (const char* name : {"../rows", "a/b", "", ".", "Rows", "rows.so", "r\nows"}) {
    CHECK_THAT(open_error(name), Contains("is no name of a strategy plugin"));
  }
}

TEST_CASE("an invalid manifest is refused before the plugin's code runs", "[plugins]") {
  CHECK_THAT(open_error("no_manifest"), Contains("does not export shardrun_manifest_v1"));
  CHECK_THAT(open_error("no_open"), Contains("does not export shardrun_open_v1"));
  CHECK_THAT(open_error("wrong_magic"), Contains("0x12345678, expected 0x4e555253"));
  CHECK_THAT(open_error("wrong_major"),
             Contains("is built for plugin ABI 2.9, but this shardrun offers 1.9") && Contains("rebuild the plugin"));
  CHECK_THAT(open_error("newer_host"), Contains("needs plugin ABI 1.12 or later, but this shardrun offers 1.9"));
  CHECK_THAT(open_error("unknown_kind"), Contains("kind 99, which this shardrun does not know"));
  CHECK_THAT(open_error("misnamed"),
             Contains("says that it is the strategy 'other', but its file's name says the strategy 'misnamed'") &&
                 Contains("name the file shardrun_strategy_other.so"));
  CHECK_THAT(open_error("endless_name"), Contains("has no end"));
  CHECK_THAT(open_error("short_manifest"), Contains("struct_size 116, expected 120 or more"));
}

TEST_CASE("the first directory that has the file decides, even with a bad one", "[plugins]") {
  const TemporaryFolder folder;
  write_file(folder / file_of("rows").string(), "text");

  CHECK_THAT(open_error("rows", {folder.path(), SHARDRUN_FIXTURES}), Contains("ELF signature"));
  CHECK(open_error("rows", {SHARDRUN_FIXTURES, folder.path()}) == "nothing");
}
