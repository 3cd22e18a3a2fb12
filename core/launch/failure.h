#pragma once

namespace shardrun::launch {

/// Whether what a rank failed of began with it, or followed from another's failure (a lost peer, an abort).
enum class FailureKind { own, consequence };

}  // namespace shardrun::launch
