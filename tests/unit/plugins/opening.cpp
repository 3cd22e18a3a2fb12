#include <shardrun/plugin.h>

#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/plugins/fixtures.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

TEST_CASE("a plugin that does not open says why", "[plugins]") {
  CHECK_THAT(open_error("unresolved"), Contains("cannot be loaded") && Contains("function_that_is_nowhere"));
  CHECK(open_error("open_fails") == "2: strategy plugin 'open_fails' refused to open: the table of costs is empty");
  CHECK_THAT(open_error("open_silent"), Contains("refused to open: status -77, and it gave no reason"));
  CHECK_THAT(open_error("open_nothing"), Contains("what strategy plugin 'open_nothing' opened is a null pointer"));
  CHECK_THAT(open_error("short_table"), Contains("has struct_size 40, expected 48 or more"));
  CHECK_THAT(open_error("no_functions"), Contains("without functions and with close"));
  CHECK_THAT(open_error("bad_default"), Contains("declares a default that it refuses: option 'level' is '7', "
                                                 "expected an integer of 0 to 3"));
  CHECK_THAT(open_error("bare_file"), Contains("option 0 may be a file and has no choices: its default must be one"));
}

TEST_CASE("a plugin in C and one of the SDK present themselves alike", "[plugins]") {
  const plugins::Strategy rows = plugins::Strategy::open(fixtures, "rows");
  CHECK(rows.manifest().name == "rows");
  CHECK(rows.manifest().version == "2.1");
  CHECK(rows.manifest().abi_major == 1);
  CHECK(rows.options().empty());

  const plugins::Strategy echo = plugins::Strategy::open(fixtures, "echo");
  CHECK(echo.manifest().name == "echo");
  REQUIRE(echo.options().size() == 6);
}

TEST_CASE("options arrive as they were declared", "[plugins]") {
  using plugins::OptionType;
  using plugins::OptionValue;
  const plugins::Strategy echo = plugins::Strategy::open(fixtures, "echo");
  const std::vector<plugins::OptionSpec>& options = echo.options();

  CHECK(options[0].name == "quiet");
  CHECK(options[0].type == OptionType::boolean);
  CHECK(options[0].default_value == OptionValue(false));
  CHECK(options[1].type == OptionType::integer);
  CHECK(options[1].default_value == OptionValue(std::int64_t{3}));
  CHECK(options[1].minimum == OptionValue(std::int64_t{1}));
  CHECK(options[1].maximum == OptionValue(std::int64_t{8}));
  CHECK(options[1].help == "How deep.");
  CHECK(options[2].type == OptionType::number);
  CHECK(options[2].default_value == OptionValue(0.25));
  CHECK(options[2].maximum == OptionValue(1.0));
  CHECK(options[3].choices == std::vector<std::string>{"a", "b"});
  CHECK(options[3].default_value == OptionValue("b"));
  CHECK_FALSE(options[3].file);
  CHECK(options[5].choices == std::vector<std::string>{"first", "last"});
  CHECK(options[5].file);
  CHECK_FALSE(options[0].minimum);
}

TEST_CASE("a plugin of a later minor works: what is new is passed over", "[plugins]") {
  const plugins::Strategy newer = plugins::Strategy::open(fixtures, "newer");
  CHECK(newer.manifest().abi_minor == SR_ABI_MINOR + 1);
  REQUIRE(newer.options().size() == 2);
  CHECK(newer.options()[1].name == "eager");
  CHECK(newer.options()[1].default_value == plugins::OptionValue(true));

  const plan::Plan plan = newer.make_plan(small_request(6));

  CHECK(plan.mesh == std::vector<plan::MeshAxis>{{"a", 2}, {"b", 3}});
  REQUIRE(plan.tensors.size() == 1);
  CHECK(plan.tensors[0].tensor == "w");
  CHECK(plan.tensors[0].dims == plan::DimSplits{{"a"}, {"b"}});
}
