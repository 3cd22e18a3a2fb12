#pragma once

#include <shardrun/sdk/transport/link_group.hpp>
#include <shardrun/sdk/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transports/tcp/rendezvous.h"

namespace shardrun::tcp_transport {

/// The link of a group (sdk/transport/two_function_transport.hpp): two connections between each two members, one for
/// each direction. So the thread that sends and the one that receives share nothing.
class Mesh {
 public:
  [[nodiscard]] static std::vector<sdk::Option> options();

  /// Connects the members. A listener on this machine's address is open meanwhile. Groups with the same id and members
  /// differ in `config.job`. `cancel` outlives this. Throws TransportError.
  Mesh(const sdk::Config& config, const sdk::GroupSpec& group, const sdk::Cancel& cancel);

  void send(std::uint32_t peer, const void* data, std::size_t bytes, sdk::Deadline deadline);
  void receive(std::uint32_t peer, void* data, std::size_t bytes, sdk::Deadline deadline);

 private:
  void go_on(const Connection& connection, std::size_t passed, sdk::Deadline deadline) const;

  const sdk::Cancel& cancel_;
  Rendezvous::Connections outgoing_;
  Rendezvous::Connections incoming_;
};

}  // namespace shardrun::tcp_transport
