#include "core/serve/statistics.h"

#include "tests/support/catch.h"

using namespace shardrun;
using Catch::Contains;

TEST_CASE("a histogram counts durations up to each limit", "[serve]") {
  serve::Statistics statistics;
  for (const double seconds : {0.01, 0.02, 4.0, 1000.0}) {
    statistics.duration.add(seconds);
  }
  statistics.requests[200] = 3;
  const std::string text = serve::metrics_text(statistics, {.waiting = 4, .is_ready = true});
  CHECK_THAT(text, Contains("shardrun_request_seconds_bucket{le=\"0.01\"} 1\n") &&
                       Contains("shardrun_request_seconds_bucket{le=\"0.03\"} 2\n") &&
                       Contains("shardrun_request_seconds_bucket{le=\"2\"} 2\n") &&
                       Contains("shardrun_request_seconds_bucket{le=\"5\"} 3\n") &&
                       Contains("shardrun_request_seconds_bucket{le=\"+Inf\"} 4\n") &&
                       Contains("shardrun_request_seconds_sum 1004.03\n") &&
                       Contains("shardrun_request_seconds_count 4\n"));
  CHECK_THAT(text, Contains("shardrun_first_token_seconds_count 0\n") && Contains("\nshardrun_queue_length 4\n") &&
                       Contains("\nshardrun_ready 1\n") && Contains("shardrun_requests_total{status=\"200\"} 3\n"));
}
