#include <shardrun/plugin.h>

#include <limits>
#include <string>
#include <vector>

#include "core/options/options.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/unit/plugins/fixtures.h"

using namespace shardrun;
using namespace shardrun::test;
using namespace shardrun::plugins;
using Catch::Contains;

TEST_CASE("a plugin that does not open reports why", "[plugins]") {
  CHECK_THAT(open_error("unresolved"), Contains("cannot be loaded") && Contains("function_that_is_nowhere"));
  CHECK(open_error("open_fails") == "2: strategy plugin 'open_fails' refused to open: the table of costs is empty");
  CHECK_THAT(open_error("open_silent"), Contains("refused to open: status -77, and it gave no reason"));
  CHECK_THAT(open_error("open_nothing"), Contains("what strategy plugin 'open_nothing' opened is a null pointer"));
  CHECK_THAT(open_error("short_table"), Contains("has struct_size 40, expected 48 or more"));
  CHECK_THAT(open_error("no_functions"), Contains("without functions and with close"));
  CHECK_THAT(open_error("bad_default"), Contains("declares a default that it refuses: option 'level' is '7', "
                                                 "expected an integer, at least 0 and at most 3"));
  CHECK_THAT(open_error("bare_file"), Contains("option 0 may be a file and has no choices: its default must be one"));
}

TEST_CASE("a plugin in C and a plugin of the SDK have the same manifest fields", "[plugins]") {
  const plugins::Strategy rows = plugins::Strategy::open(fixtures, "rows");
  CHECK(rows.manifest().name == "rows");
  CHECK(rows.manifest().version == "2.1");
  CHECK(rows.manifest().abi_major == 1);
  CHECK(rows.options().empty());

  const plugins::Strategy echo = plugins::Strategy::open(fixtures, "echo");
  CHECK(echo.manifest().name == "echo");
  REQUIRE(echo.options().size() == 6);
}

TEST_CASE("options arrive with their declared types, defaults and limits", "[plugins]") {
  const plugins::Strategy echo = plugins::Strategy::open(fixtures, "echo");
  const std::vector<OptionSpec>& options = echo.options();

  CHECK(options[0].name == "quiet");
  CHECK(options[0].type == OptionType::boolean);
  CHECK(options[0].default_value == "false");
  CHECK(options[1].type == OptionType::integer);
  CHECK(options[1].default_value == "3");
  CHECK(options[1].minimum == 1);
  CHECK(options[1].maximum == 8);
  CHECK(options[1].help == "How deep.");
  CHECK(options[2].type == OptionType::real);
  CHECK(options[2].default_value == "0.25");
  CHECK(options[2].maximum == 1.0);
  CHECK(options[3].choices == std::vector<std::string>{"a", "b"});
  CHECK(options[3].default_value == "b");
  CHECK(options[3].type == OptionType::choice);
  CHECK(options[5].choices == std::vector<std::string>{"first", "last"});
  CHECK(options[5].type == OptionType::choice_or_path);
  CHECK_FALSE(options[0].minimum);
}

TEST_CASE("a plugin of a later minor version works without its new fields", "[plugins]") {
  const plugins::Strategy newer = plugins::Strategy::open(fixtures, "newer");
  CHECK(newer.manifest().abi_minor == SR_ABI_MINOR + 1);
  REQUIRE(newer.options().size() == 2);
  CHECK(newer.options()[1].name == "eager");
  CHECK(newer.options()[1].default_value == "true");

  const plan::Plan plan = newer.make_plan(small_request(6));

  CHECK(plan.mesh == std::vector<plan::MeshAxis>{{"a", 2}, {"b", 3}});
  REQUIRE(plan.tensors.size() == 1);
  CHECK(plan.tensors[0].tensor == "w");
  CHECK(plan.tensors[0].dims == plan::DimSplits{{"a"}, {"b"}});
}

namespace {

const std::vector<OptionSpec> specs = {
    {.name = "zero", .type = OptionType::integer, .default_value = "1", .minimum = 0, .maximum = 3},
    {.name = "share",
     .type = OptionType::real,
     .default_value = "0.5",
     .minimum = 0,
     .maximum = std::numeric_limits<double>::infinity()},
    {.name = "schedule", .type = OptionType::choice, .default_value = "1f1b", .choices = {"1f1b", "gpipe"}},
};

std::string refusal(const OptionValues& values) {
  return error_of([&] { static_cast<void>(checked_with_defaults(specs, values)); });
}

}  // namespace

TEST_CASE("missing options get their defaults, given ones stay", "[plugins]") {
  const OptionValues values = checked_with_defaults(specs, {{"zero", std::int64_t{2}}});

  CHECK(values == OptionValues{{"zero", std::int64_t{2}}, {"share", 0.5}, {"schedule", "1f1b"}});
}

TEST_CASE("an option that does not fit its declaration is refused", "[plugins]") {
  CHECK(refusal({{"zerro", std::int64_t{2}}}) ==
        "2: there is no option 'zerro' (did you mean 'zero'?); known: zero, share, schedule");
  CHECK(refusal({{"zero", std::int64_t{4}}}) ==
        "2: option 'zero' is '4', expected an integer, at least 0 and at most 3");
  CHECK(refusal({{"zero", 1.0}}) == "2: option 'zero' is '1', expected an integer, at least 0 and at most 3");
  CHECK(refusal({{"share", -0.5}}) == "2: option 'share' is '-0.5', expected a number, at least 0 and at most inf");
  CHECK(refusal({{"share", std::numeric_limits<double>::quiet_NaN()}}) ==
        "2: option 'share' is 'nan', expected a number, at least 0 and at most inf");
  CHECK(refusal({{"schedule", "zigzag"}}) == "2: option 'schedule' is 'zigzag', expected one of 1f1b, gpipe");
  CHECK(error_of([] {
          static_cast<void>(checked_with_defaults({}, {{"x", true}}));
        }) == "2: there is no option 'x'; none is taken");
}
