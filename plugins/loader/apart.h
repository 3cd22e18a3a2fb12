#pragma once

#include <chrono>
#include <functional>
#include <string_view>

namespace shardrun::plugins {

/// Runs `act` first in a child process, with nothing on its standard streams. So a plugin that ends its process ends
/// only that one. Throws Error{plugin} with what `act` threw. Where the child ended, or did not finish within `limit`,
/// the error names `plugin` and says so. The child and everything it started in its process group have ended on return.
/// REQUIRES: no other thread holds a lock that `act` may need, and no plugin is open in this process.
void try_apart(std::string_view plugin, std::chrono::milliseconds limit, const std::function<void()>& act);

}  // namespace shardrun::plugins
