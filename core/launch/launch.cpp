#include "core/launch/launch.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/launch/supervisor.h"

namespace shardrun::launch {

LaunchResult launch(const LaunchSettings& settings) {
  if (settings.ranks < 1 || settings.arguments.empty()) {
    throw Error(ErrorCode::internal, fmt::format("launching {} ranks with {} arguments: at least one of each is needed",
                                                 settings.ranks, settings.arguments.size()));
  }
  Supervisor supervisor(settings);
  return supervisor.run();
}

}  // namespace shardrun::launch
