#include "core/bench/settings.h"

#include <shardrun/transport.h>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun::bench;
using shardrun::test::error_of;
using Sizes = std::vector<std::uint64_t>;

TEST_CASE("sizes are numbers with units, lists and ranges", "[bench]") {
  CHECK(parse_sizes("8", 2) == Sizes{8});
  CHECK(parse_sizes("1K,3kb,2KiB,1m,1G", 2) == Sizes{1024, 3072, 2048, 1U << 20U, 1U << 30U});
  CHECK(parse_sizes("8-64", 2) == Sizes{8, 16, 32, 64});
  CHECK(parse_sizes("8-70", 4) == Sizes{8, 32});
  CHECK(parse_sizes("1K-1K,5B", 4) == Sizes{1024, 5});
  CHECK(parse_sizes("1024G", 2) == Sizes{std::uint64_t{1} << 40U});
}

TEST_CASE("malformed sizes are refused with the reason", "[bench]") {
  const auto refusal = [](const char* text) { return error_of([&] { (void)parse_sizes(text, 2); }); };
  for (const char* text : {"", "0", "-8", "K", "99999999999999999999", "8,,9"}) {
    CHECK_THAT(refusal(text), Catch::Matchers::StartsWith("2: --sizes: '") && Catch::Matchers::Contains("is no size"));
  }
  for (const char* text : {"8X", "8KM", "8iB", "8K B"}) {
    CHECK_THAT(refusal(text), Catch::Matchers::Contains("has no such unit"));
  }
  CHECK_THAT(refusal("1025G"), Catch::Matchers::Contains("is too large"));
  CHECK_THAT(refusal("8-4"), Catch::Matchers::Contains("'8-4' ends before it begins"));
  CHECK_THAT(refusal("1-2-3"), Catch::Matchers::Contains("is no range"));
}

TEST_CASE("ops, types and reductions are parsed by name, without repeats", "[bench]") {
  CHECK(parse_ops("all_reduce,send_recv,all_reduce") == std::vector<std::uint32_t>{SR_OP_ALL_REDUCE, SR_OP_SEND});
  CHECK(parse_ops("all").size() == 13);
  CHECK(parse_dtypes("all").size() == 10);
  CHECK(parse_reductions("min,max") == std::vector<std::uint32_t>{SR_REDUCE_MIN, SR_REDUCE_MAX});
  CHECK_THAT(error_of([] { (void)parse_ops("send"); }), Catch::Matchers::StartsWith("2: --op: there is no 'send'"));
  for (const char* const name : {"bfloat16 bf16", "float32 f32", "int64 i64", "uint8 u8"}) {
    const std::string both(name);
    const std::string given = both.substr(0, both.find(' '));
    CHECK_THAT(error_of([&] { (void)parse_dtypes(given); }),
               Catch::Matchers::StartsWith("2: --dtype: there is no '" + given + "' (did you mean '" +
                                           both.substr(given.size() + 1) + "'?)"));
  }
}
