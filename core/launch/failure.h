#pragma once

namespace shardrun::launch {

/// Whether a rank failed by itself, or as a consequence of another's failure (a lost peer, an abort).
enum class FailureKind { own, consequence };

}  // namespace shardrun::launch
