#pragma once

#include "core/launch/protocol.h"
#include "core/launch/world.h"

namespace shardrun::launch {

/// A secret that all processes of this user on this machine share, for ranks without SHARDRUN_TOKEN. It is stored in
/// TMPDIR/shardrun-UID/token (/tmp if TMPDIR is not an absolute path). The first process that asks for it creates it.
/// Throws Error{usage} if another user owns the folder or the file or may access it, Error{io} if it can be neither
/// read nor created.
[[nodiscard]] Token token_of_this_user(const Variables& variable = own_variable);

}  // namespace shardrun::launch
