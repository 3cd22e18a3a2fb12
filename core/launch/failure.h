#pragma once

namespace shardrun::launch {

/// Why a rank failed.
enum class FailureKind {
  own,          ///< by itself
  consequence,  ///< because of another rank's failure: a lost peer, an abort
  permanent,    ///< by itself, and it would fail again: a loss that is NaN, damaged data
};

}  // namespace shardrun::launch
