#include "core/metrics/human.h"

#include <limits>

#include "tests/support/catch.h"

using namespace shardrun::metrics;

TEST_CASE("counts read as people write them", "[metrics]") {
  CHECK(human_count(0) == "0");
  CHECK(human_count(7) == "7");
  CHECK(human_count(0.5) == "0.5");
  CHECK(human_count(999) == "999");
  CHECK(human_count(999.6) == "1.00k");
  CHECK(human_count(1000) == "1.00k");
  CHECK(human_count(12345) == "12.3k");
  CHECK(human_count(804096) == "804k");
  CHECK(human_count(124439808) == "124M");
  CHECK(human_count(7e9) == "7.00G");
  CHECK(human_count(-1) == "-");
  CHECK(human_count(std::numeric_limits<double>::quiet_NaN()) == "-");
  CHECK(human_count(std::numeric_limits<double>::infinity()) == "-");
}

TEST_CASE("bytes come in powers of 1024", "[metrics]") {
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(1023) == "1023 B");
  CHECK(human_bytes(1024) == "1.00 KiB");
  CHECK(human_bytes(1536) == "1.50 KiB");
  CHECK(human_bytes(12'900'000) == "12.3 MiB");
  CHECK(human_bytes(std::uint64_t{5} << 30U) == "5.00 GiB");
}

TEST_CASE("durations show their two largest units", "[metrics]") {
  CHECK(human_duration(0.42) == "0.42s");
  CHECK(human_duration(3.21) == "3.2s");
  CHECK(human_duration(9.96) == "10s");
  CHECK(human_duration(59.4) == "59s");
  CHECK(human_duration(59.6) == "1m00s");
  CHECK(human_duration(65) == "1m05s");
  CHECK(human_duration(3599.6) == "1h00m");
  CHECK(human_duration(2 * 3600 + 3 * 60 + 59) == "2h03m");
  CHECK(human_duration(4 * 86400 + 5 * 3600) == "4d05h");
  CHECK(human_duration(-1) == "-");
  CHECK(human_duration(std::numeric_limits<double>::infinity()) == "-");
}
