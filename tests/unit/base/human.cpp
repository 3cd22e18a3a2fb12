#include "core/base/human.h"
#include "core/files/folder.h"

#include <limits>

#include "tests/support/catch.h"

using namespace shardrun;

TEST_CASE("counts read as people write them", "[base]") {
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

TEST_CASE("bytes come in powers of 1024", "[base]") {
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(1023) == "1023 B");
  CHECK(human_bytes(1024) == "1.00 KiB");
  CHECK(human_bytes(1536) == "1.50 KiB");
  CHECK(human_bytes(12'900'000) == "12.3 MiB");
  CHECK(human_bytes(std::uint64_t{5} << 30U) == "5.00 GiB");
}

TEST_CASE("durations show their two largest units", "[base]") {
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

TEST_CASE("quantities have a prefix, a unit and a space before it", "[base]") {
  CHECK(human_quantity(0, "FLOP") == "0 FLOP");
  CHECK(human_quantity(0.5, "FLOP") == "0.5 FLOP");
  CHECK(human_quantity(180, "FLOP") == "180 FLOP");
  CHECK(human_quantity(57'344, "FLOP") == "57.3 kFLOP");
  CHECK(human_quantity(12.34e9, "FLOP/s") == "12.3 GFLOP/s");
  CHECK(human_quantity(3.349e18, "FLOP") == "3.35 EFLOP");
  CHECK(human_quantity(-1, "FLOP") == "-");
}

TEST_CASE("times that were measured keep three digits", "[base]") {
  CHECK(human_time(0) == "0.00 us");
  CHECK(human_time(45.62e-6) == "45.6 us");
  CHECK(human_time(999.6e-6) == "1.00 ms");
  CHECK(human_time(0.001234) == "1.23 ms");
  CHECK(human_time(0.3567) == "357 ms");
  CHECK(human_time(0.9999) == "1.00 s");
  CHECK(human_time(12.148075) == "12.1 s");
  CHECK(human_time(59.96) == "1m00s");
  CHECK(human_time(65) == "1m05s");
  CHECK(human_time(-1) == "-");
  CHECK(human_time(std::numeric_limits<double>::quiet_NaN()) == "-");
}

TEST_CASE("a count and its noun agree", "[base]") {
  CHECK(counted(1, "thread") == "1 thread");
  CHECK(counted(0, "thread") == "0 threads");
  CHECK(counted(4, "thread") == "4 threads");
  CHECK(counted(1, "process", "processes") == "1 process");
  CHECK(counted(2, "process", "processes") == "2 processes");
}
