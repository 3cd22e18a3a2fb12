#pragma once

#include <string>
#include <string_view>

namespace shardrun::launch {

/// The first setting in which two jobs differ, where each is written as sections of `key = value` lines: "[train]
/// steps = 50 here, 60 there". Empty where they are the same.
[[nodiscard]] std::string first_difference(std::string_view here, std::string_view there);

}  // namespace shardrun::launch
