#pragma once

#include "core/launch/protocol.h"
#include "core/launch/world.h"

namespace shardrun::launch {

/// A secret that this user's processes on this machine share, for ranks that were given none: TMPDIR/shardrun-UID/token
/// (/tmp without TMPDIR). The first that asks makes it, and it stays. Throws Error{usage} where the folder or the file
/// is not this user's alone, Error{io} where it can be neither read nor made.
[[nodiscard]] Token token_of_this_user(const Variables& variable = own_variable);

}  // namespace shardrun::launch
