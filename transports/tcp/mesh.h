#pragma once

#include <shardrun/sdk/transport/link_group.hpp>
#include <shardrun/sdk/transport.hpp>

#include <poll.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transports/tcp/rendezvous.h"

namespace shardrun::tcp_transport {

/// The link of a group (sdk/transport/two_function_transport.hpp): two connections between each two members, one for
/// each direction. Its functions throw TransportError{SR_PEER_LOST} if a connection has broken.
class Mesh {
 public:
  [[nodiscard]] static std::vector<sdk::Option> options();
  [[nodiscard]] static sdk::Props props() { return {.flags = SR_TRANSPORT_AUTOMATIC}; }

  /// Connects the members. Meanwhile a listener on this machine's address is open. Groups with the same id and members
  /// have different `config.job`. Throws TransportError.
  Mesh(const sdk::Config& config, const sdk::GroupSpec& group, const sdk::Cancel& cancel);

  [[nodiscard]] std::size_t try_send(std::uint32_t peer, std::span<const iovec> parts);
  [[nodiscard]] std::size_t try_receive(std::uint32_t peer, std::span<const iovec> parts);
  void wait(std::span<const std::uint32_t> to, std::span<const std::uint32_t> from, sdk::Deadline deadline);

 private:
  Rendezvous::Connections outgoing_;
  Rendezvous::Connections incoming_;
  std::vector<pollfd> watched_;
};

}  // namespace shardrun::tcp_transport
