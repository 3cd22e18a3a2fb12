#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// A value of one call that a stage sends or receives, or makes together with all stages.
struct StageMessage {
  enum class Kind : std::uint8_t {
    send,
    receive,
    meet,  ///< a collective of all stages
  } kind = Kind::send;
  Link link = {};  ///< of a send and a receive
  std::size_t call = 0;
  graph::ValueId value = {};
  std::size_t segment = 0;                ///< index in the stage's segments
  std::optional<std::size_t> place = {};  ///< see order_launches()
};

/// Names of a message for an error text.
struct MessageName {
  std::string action;
  std::string node;
};

/// Simulates the message lists of all stages. A receive waits until the message was sent. A send waits while the link
/// already has as many messages in flight as it may. A meeting waits for all stages. Returns the smallest number in
/// flight per link with which every list ends. Throws Error{job} if there is none: the message says what each stage
/// waits for. `name` names a message in that text.
[[nodiscard]] std::size_t least_under_way(const IdVector<StageId, std::vector<StageMessage>>& stages,
                                          const std::function<MessageName(const StageMessage& message)>& name);

}  // namespace shardrun::partition
