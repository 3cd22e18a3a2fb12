#pragma once

#include <chrono>
#include <functional>
#include <string_view>

namespace shardrun::plugins {

/// Runs `act` in a process of its own first, with nothing on its standard streams, so that a plugin that ends its
/// process ends that one. Throws Error{plugin} with what `act` threw, or that names `plugin` and says how it ended or
/// that it did not within `limit`. The process and what it started in its process group are gone at the end.
/// REQUIRES: no other thread holds a lock that `act` may need: no plugin is open in this process.
void try_apart(std::string_view plugin, std::chrono::milliseconds limit, const std::function<void()>& act);

}  // namespace shardrun::plugins
