#include "core/plan/hook.h"

#include <fmt/format.h>

namespace shardrun::plan {

const char* to_string(HookKind kind) noexcept {
  return kind == HookKind::sync_gradients ? "sync_gradients" : "after_step";
}

std::string to_string(const HookGroup& group) {
  return fmt::format("hook {} of {}{}", to_string(group.kind),
                     group.tensors.empty() ? "nothing" : group.tensors.front().name,
                     group.tensors.size() > 1 ? fmt::format(" and {} more", group.tensors.size() - 1) : "");
}

}  // namespace shardrun::plan
