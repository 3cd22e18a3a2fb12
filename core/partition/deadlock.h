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

/// A value of one call that a stage sends or receives, or a collective that all stages take part in.
struct StageMessage {
  enum class Kind : std::uint8_t {
    send,
    receive,
    meet,  ///< a collective of all stages
  } kind = Kind::send;
  Link link = {};  ///< for send and receive
  std::size_t call = 0;
  graph::ValueId value = {};
  std::size_t segment = 0;                ///< index of the segment in the stage's list
  std::optional<std::size_t> place = {};  ///< position in the order of launches; see order_launches()
};

/// How an error text names a message.
struct MessageName {
  std::string action;
  std::string node;
};

/// Simulates the message lists of all stages. A receive waits until the message was sent, a send waits while its link
/// has the maximum of messages in flight, and a collective waits for all stages. Returns the smallest such maximum with
/// which every list ends. Throws Error{job}, naming what each stage waits for, if there is none. `name`: names a
/// message in that text.
[[nodiscard]] std::size_t least_under_way(const IdVector<StageId, std::vector<StageMessage>>& stages,
                                          const std::function<MessageName(const StageMessage& message)>& name);

}  // namespace shardrun::partition
