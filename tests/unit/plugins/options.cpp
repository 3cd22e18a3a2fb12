#include "core/options/options.h"

#include <limits>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using shardrun::test::error_of;

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
  return error_of([&] { static_cast<void>(with_defaults(specs, values)); });
}

}  // namespace

TEST_CASE("missing options get their defaults, given ones stay", "[plugins]") {
  const OptionValues values = with_defaults(specs, {{"zero", std::int64_t{2}}});

  CHECK(values == OptionValues{{"zero", std::int64_t{2}}, {"share", 0.5}, {"schedule", "1f1b"}});
}

TEST_CASE("an option that does not fit its declaration is refused", "[plugins]") {
  CHECK(refusal({{"zerro", std::int64_t{2}}}) ==
        "2: there is no option 'zerro' (did you mean 'zero'?); known: zero, share, schedule");
  CHECK(refusal({{"zero", std::int64_t{4}}}) == "2: option 'zero' is '4', expected an integer, at least 0 and at most 3");
  CHECK(refusal({{"zero", 1.0}}) == "2: option 'zero' is '1', expected an integer, at least 0 and at most 3");
  CHECK(refusal({{"share", -0.5}}) == "2: option 'share' is '-0.5', expected a number, at least 0 and at most inf");
  CHECK(refusal({{"share", std::numeric_limits<double>::quiet_NaN()}}) ==
        "2: option 'share' is 'nan', expected a number, at least 0 and at most inf");
  CHECK(refusal({{"schedule", "zigzag"}}) == "2: option 'schedule' is 'zigzag', expected one of 1f1b, gpipe");
  CHECK(error_of([] {
          static_cast<void>(with_defaults({}, {{"x", true}}));
        }) == "2: there is no option 'x'; none is taken");
}
