#include "core/data/split.h"

#include <fmt/format.h>

#include <cmath>

#include "core/base/error.h"

namespace shardrun::data {

std::int64_t training_count(std::int64_t count, double fraction, std::string_view source) {
  if (!(fraction > 0 && fraction <= 1)) {
    throw Error(ErrorCode::job, fmt::format("[data] split = {}: expected a fraction in (0, 1]", fraction));
  }
  const auto training = static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(count)));
  if (training == 0) {
    throw Error(ErrorCode::data,
                fmt::format("'{}': [data] split = {} of its {} samples or tokens leaves none to train on", source,
                            fraction, count));
  }
  return training;
}

}  // namespace shardrun::data
