#include "core/plan/pipeline.h"

#include <fmt/format.h>

namespace shardrun::plan {

std::string_view letter(Action::Kind kind) noexcept {
  return std::string_view("FBIW").substr(static_cast<std::size_t>(kind), 1);
}

std::string to_string(const Action& action) {
  return fmt::format("{}{}{}", action.chunk, letter(action.kind), action.microbatch);
}

}  // namespace shardrun::plan
