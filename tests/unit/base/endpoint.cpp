#include "core/base/endpoint.h"

#include "tests/support/catch.h"

using namespace shardrun;

TEST_CASE("endpoints are read as they are written", "[base]") {
  CHECK(to_string(*endpoint_of("9100")) == "127.0.0.1:9100");
  for (const char* const text : {"127.0.0.1:0", "0.0.0.0:9100", "[::1]:9100", "localhost:65535"}) {
    CAPTURE(text);
    CHECK(to_string(*endpoint_of(text)) == text);
  }
  for (const char* const text : {"", ":", ":9100", "host", "host:", "1:65536", "1:-1", "1:9100x", "::1:9100", "[::1]",
                                 "[]:1", "http://a:1", "a b:1", "+1"}) {
    CAPTURE(text);
    CHECK_FALSE(endpoint_of(text));
  }
}
