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
  if (settings.heartbeat_timeout.count() > 0 && settings.heartbeat_timeout < 2 * settings.heartbeat_interval) {
    throw Error(ErrorCode::internal,
                fmt::format("ranks that answer every {} ms cannot be missed after {} ms: wait twice as long at least",
                            settings.heartbeat_interval.count(), settings.heartbeat_timeout.count()));
  }
  Supervisor supervisor(settings);
  return supervisor.run();
}

}  // namespace shardrun::launch
