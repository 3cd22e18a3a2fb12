#include "core/conformance/expect.h"

#include <fmt/format.h>

#include <thread>

namespace shardrun::conformance {

ErrorCode failure_of(plugins::TransportOp& op, const std::string& what) {
  return code_of(what, [&] {
    require(op.wait(after(failure_limit_s)),
            fmt::format("{} was still under way {} s after it had to end", what, failure_limit_s));
  });
}

ErrorCode polled_failure_of(plugins::TransportOp& op, const std::string& what) {
  return code_of(what, [&] {
    const std::int64_t latest = after(failure_limit_s);
    while (!op.test()) {
      require(plugins::transport_clock() < latest,
              fmt::format("{} was polled and still under way {} s after it had to end", what, failure_limit_s));
      std::this_thread::yield();
    }
  });
}

}  // namespace shardrun::conformance
