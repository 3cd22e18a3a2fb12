#pragma once

#include <string>
#include <string_view>

namespace shardrun::launch {

/// The first setting in which two jobs differ, for example "[train] steps = 50 here, 60 there". Empty if they are
/// equal. Each job is given as text with sections of `key = value` lines.
[[nodiscard]] std::string first_difference(std::string_view here, std::string_view there);

}  // namespace shardrun::launch
