#pragma once

#include <string>

namespace shardrun {

/// This machine's name, for messages to people.
[[nodiscard]] std::string host_name();

}  // namespace shardrun
