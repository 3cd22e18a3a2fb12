#include "core/base/philox.h"

#include "tests/support/catch.h"

using namespace shardrun;

TEST_CASE("philox gives the published known answers", "[base]") {
  // Random123, kat_vectors, philox4x32 with 10 rounds.
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == PhiloxBlock{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U});
  CHECK(philox({0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU, 0xFFFFFFFFU}, {0xFFFFFFFFU, 0xFFFFFFFFU}) ==
        PhiloxBlock{0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU});
  CHECK(philox({0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U}, {0xA4093822U, 0x299F31D0U}) ==
        PhiloxBlock{0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U});
}

TEST_CASE("streams differ by seed and by name", "[base]") {
  CHECK(stream_key(1, "a") != stream_key(2, "a"));
  CHECK(stream_key(1, "a") != stream_key(1, "b"));
  CHECK(stream_key(1, "a") == stream_key(1, "a"));
}

TEST_CASE("uniform stays below one", "[base]") {
  CHECK(uniform(0) == 0.0F);
  CHECK(uniform(0xFFFFFFFFU) < 1.0F);
}
