#pragma once

#include <string_view>

namespace shardrun {

/// Writes to standard error. A text that cannot be shown is lost: whoever has an error to tell has nobody to tell that.
void write_to_standard_error(std::string_view text) noexcept;

}  // namespace shardrun
