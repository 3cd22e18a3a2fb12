#include <cstdint>
#include <limits>
#include <string>

#include "core/job/section.h"
#include "tests/unit/job/support.h"

using namespace shardrun;

namespace {

OptionValues one(OptionType type, std::string_view text) {
  const std::vector<std::string> choices =
      type == OptionType::text_list ? std::vector<std::string>() : std::vector<std::string>{"a", "b"};
  return job::make_options({{.name = "v", .type = type, .choices = choices}}, {{"v", text}});
}

bool is_refused(OptionType type, std::string_view text) {
  try {
    (void)one(type, text);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::job);
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("integers are digits within 64 bits", "[job]") {
  CHECK(one(OptionType::integer, "-12").integer("v") == -12);
  CHECK(one(OptionType::integer, "9223372036854775807").integer("v") == std::numeric_limits<std::int64_t>::max());
  CHECK(one(OptionType::integer, "-9223372036854775808").integer("v") == std::numeric_limits<std::int64_t>::min());
  for (const char* text : {"9223372036854775808", "-9223372036854775809", "1e3", "1.0", "12k", "0x10", "+1", "1_000",
                           " 1", "", "-", "one", "1 2"}) {
    INFO(text);
    CHECK(is_refused(OptionType::integer, text));
  }
}

TEST_CASE("bytes are digits with or without a unit", "[job]") {
  const auto bytes = [](std::string_view text) { return one(OptionType::bytes, text).integer("v"); };
  CHECK(bytes("123") == 123);
  CHECK(bytes("80G") == 80'000'000'000);
  CHECK(bytes("80 GB") == 80'000'000'000);
  CHECK(bytes("64KiB") == 65536);
  CHECK(bytes("1.5Mi") == 1572864);
  CHECK(bytes("2T") == 2'000'000'000'000);
  CHECK(bytes("1TiB") == std::int64_t{1} << 40U);
  for (const char* text : {"", "G", "-1G", "1.5", "80g", "1X", "1GG", "1iB", "1e9", "9999999999T", "1..5G", "1 G B"}) {
    INFO(text);
    CHECK(is_refused(OptionType::bytes, text));
  }
}

TEST_CASE("a seed is any unsigned 64-bit integer", "[job]") {
  CHECK(one(OptionType::seed, "18446744073709551615").seed("v") == std::numeric_limits<std::uint64_t>::max());
  CHECK(one(OptionType::seed, "0").seed("v") == 0);
  CHECK(is_refused(OptionType::seed, "18446744073709551616"));
  CHECK(is_refused(OptionType::seed, "-1"));
}

TEST_CASE("reals are finite", "[job]") {
  CHECK(one(OptionType::real, "1e-3").real("v") == 1e-3);
  CHECK(one(OptionType::real, "-.5").real("v") == -0.5);
  for (const char* text :
       {"nan", "NaN", "inf", "-inf", "infinity", "1e999", "1e-999", "0x1p3", "1,5", "1.0f", "", "+1"}) {
    INFO(text);
    CHECK(is_refused(OptionType::real, text));
  }
}

TEST_CASE("booleans are one of eight words", "[job]") {
  for (const char* text : {"true", "yes", "on", "1"}) {
    CHECK(one(OptionType::boolean, text).boolean("v"));
  }
  for (const char* text : {"false", "no", "off", "0"}) {
    CHECK_FALSE(one(OptionType::boolean, text).boolean("v"));
  }
  for (const char* text : {"True", "YES", "2", "", "y"}) {
    CHECK(is_refused(OptionType::boolean, text));
  }
}

TEST_CASE("lists are split at their separator", "[job]") {
  using Strings = std::vector<std::string>;
  CHECK(one(OptionType::text_list, "a , b,c").list("v") == Strings{"a", "b", "c"});
  CHECK(one(OptionType::text_list, R"(a\,b,c\\,d\e)").list("v") == Strings{"a,b", "c\\", "d\\e"});
  CHECK(is_refused(OptionType::text_list, "a,,b"));
  CHECK(is_refused(OptionType::text_list, "a,"));
  CHECK(is_refused(OptionType::text_list, ","));
  const std::vector<OptionSpec> some = {{.name = "v", .type = OptionType::text_list, .choices = {"one", "two"}}};
  CHECK(job::make_options(some, {{"v", "two, one"}}).list("v") == Strings{"two", "one"});
  try {
    static_cast<void>(job::make_options(some, {{"v", "one, tow"}}));
    FAIL("an element that is no choice was accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::job);
    CHECK(error.message().ends_with("is not one of one, two (did you mean 'two'?)"));
  }
}

TEST_CASE("ranges include their ends unless they say otherwise", "[job]") {
  const auto with = [](const char* text, bool minimum_excluded, bool maximum_excluded) {
    return job::make_options({{.name = "v",
                               .type = OptionType::real,
                               .minimum = 0,
                               .maximum = 1,
                               .minimum_excluded = minimum_excluded,
                               .maximum_excluded = maximum_excluded}},
                             {{"v", text}})
        .real("v");
  };
  CHECK(with("0", false, false) == 0);
  CHECK(with("1", false, false) == 1);
  CHECK_THROWS_WITH(with("0", true, false), "option v: [options] v = 0: must be more than 0 and at most 1");
  CHECK_THROWS_WITH(with("1", false, true), "option v: [options] v = 1: must be at least 0 and less than 1");
  CHECK_THROWS_AS(with("-0.1", false, false), Error);
  CHECK_THROWS_AS(with("1.1", false, false), Error);
}

TEST_CASE("options have their default, their value, or none", "[job]") {
  const std::vector<OptionSpec> specs = {
      {.name = "a", .type = OptionType::integer, .default_value = "7"},
      {.name = "b", .type = OptionType::integer, .optional = true},
      {.name = "c", .type = OptionType::choice, .choices = {"x", "y"}},
  };

  const OptionValues values = job::make_options(specs, {{"c", "y"}});

  CHECK(values.integer("a") == 7);
  CHECK_FALSE(values.has("b"));
  CHECK(values.text("c") == "y");
  CHECK(to_string(values) == "a = 7\nc = y\n");
  CHECK_THROWS_WITH(job::make_options(specs, {}),
                    "options: [options] needs the key 'c', which is missing; write c = ... under [options] "
                    "(one of x, y)");
  CHECK_THROWS_WITH(job::make_options(specs, {{"c", "y"}, {"aa", "1"}}),
                    "option aa: [options] has no key 'aa' (did you mean 'a'?); it has a, b, c");
  CHECK(test::refusal(ErrorCode::internal, [&] { return values.real("a"); }).find("another type") != std::string::npos);
  CHECK(test::refusal(ErrorCode::internal, [&] { return values.integer("b"); }).find("no value") != std::string::npos);
}
