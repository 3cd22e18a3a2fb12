#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <shardrun/sdk/transport.hpp>
#include <shardrun/sdk/transport/link_group.hpp>
#include <shardrun/sdk/transport/two_function_transport.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "transports/tcp/rendezvous.h"

namespace shardrun::tcp_transport {
namespace {

using sdk::TransportError;

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

/// How long one request for an address waits in the store. Meanwhile incoming connections are not served.
constexpr std::chrono::nanoseconds store_wait = std::chrono::milliseconds(20);
/// How often a wait for a peer checks whether to give up.
constexpr std::chrono::nanoseconds check_interval = std::chrono::milliseconds(50);

/// The store's key under which a group's members publish their addresses. It names the members, because two groups with
/// the same id may differ in them.
std::string name_in_store(const sdk::Config& config, const sdk::GroupSpec& group) {
  std::string name = "tcp/" + config.job + "/" + std::to_string(group.id) + "/";
  for (const std::uint32_t member : group.members) {
    name += std::to_string(member) + ",";
  }
  return name + "/";
}

const tls::Key& secret_of(const sdk::Config& config) {
  if (!config.secret) {
    throw TransportError(SR_INVALID,
                         "the host gives no secret by which ranks prove themselves: a newer one does (plugin ABI 1.4)");
  }
  return *config.secret;
}

Socket listen_for(const sdk::Config& config) {
  // An empty name would mean the machine's own name, whose address may not be reachable from other machines.
  const std::string address = config.address.empty() ? "127.0.0.1" : config.address;
  try {
    return listen_on(address);
  } catch (const std::runtime_error& error) {
    throw TransportError(SR_INVALID, "cannot listen on '" + address + "': " + error.what() +
                                         "; the address has to be one of this machine's");
  }
}

/// The address at which `member` listens; nothing if it has not published it yet.
std::optional<std::string> published_by(const sdk::Config& config, const std::string& name, std::uint32_t member) {
  try {
    return config.host.store_get(name + std::to_string(member), sdk::Deadline::now() + store_wait);
  } catch (const TransportError& error) {
    if (error.status() != SR_TIMEOUT) {
      throw;
    }
    return std::nullopt;
  }
}

/// Reports strangers on standard error, because a group has no other log.
void say_strangers(const sdk::GroupSpec& group, std::uint64_t count) {
  const std::string line = "transport tcp: while the group '" + group.name + "' was connected, " +
                           std::to_string(count) + " connections of strangers were dropped\n";
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

Rendezvous::Met meet(const sdk::Config& config, const sdk::GroupSpec& group) {
  const tls::Key& secret = secret_of(config);
  const std::string name = name_in_store(config, group);
  Socket listener = listen_for(config);
  config.host.store_set(name + std::to_string(group.rank), own_end(listener).text());
  Rendezvous rendezvous({.group = group,
                         .host = config.host,
                         .secret = secret,
                         .protection = config.options.text("protect") == "none" ? Protection::none : Protection::tls,
                         .name = name,
                         .address_of = [&](std::uint32_t member) { return published_by(config, name, member); }},
                        std::move(listener));
  return rendezvous.run();
}

template <class Pass>
std::size_t passed_by(Pass pass) {
  try {
    return pass();
  } catch (const std::runtime_error& error) {
    throw TransportError(SR_PEER_LOST, std::string("it is lost: ") + error.what());
  }
}

std::vector<sdk::Option> Mesh::options() {
  return {sdk::text_option("protect", "tls", {"tls", "none"},
                           "what is done to bytes on the wire, beyond the proof by which each connection begins: "
                           "TLS 1.3 encrypts them, none leaves them as they are")};
}

Mesh::Mesh(const sdk::Config& config, const sdk::GroupSpec& group, const sdk::Cancel&) {
  if (group.size() == 1) {
    return;
  }
  Rendezvous::Met met;
  try {
    met = meet(config, group);
  } catch (const TransportError& error) {
    throw error.within("connecting the group '" + group.name + "'");
  }
  outgoing_ = std::move(met.outgoing);
  incoming_ = std::move(met.incoming);
  watched_.reserve(outgoing_.size() + incoming_.size());
  if (met.strangers > 0) {
    say_strangers(group, met.strangers);
  }
}

std::size_t Mesh::try_send(std::uint32_t peer, std::span<const iovec> parts) {
  return passed_by([&] { return outgoing_[peer]->send(parts); });
}

std::size_t Mesh::try_receive(std::uint32_t peer, std::span<const iovec> parts) {
  return passed_by([&] { return incoming_[peer]->receive(parts); });
}

void Mesh::wait(std::span<const std::uint32_t> to, std::span<const std::uint32_t> from, sdk::Deadline deadline) {
  const std::chrono::nanoseconds left = std::min(deadline.left(), check_interval);
  watched_.clear();
  for (const auto& [peers, connections] : {std::pair(to, &outgoing_), std::pair(from, &incoming_)}) {
    for (const std::uint32_t peer : peers) {
      const Connection& connection = *(*connections)[peer];
      watched_.push_back({connection.descriptor(), connection.awaited(), 0});
    }
  }
  (void)::poll(watched_.data(), watched_.size(),
               static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
}

/// Sends and receives over sockets, with the SDK's collectives. Listeners bind to the address that the host gives, or
/// else to the loopback interface.
class TcpTransport : public sdk::TwoFunctionTransport<Mesh> {
 public:
  void open(const sdk::Config& config) { config_ = config; }

  /// A failed group leaves its addresses in the store. The generation, a count of such groups, tells them apart.
  std::unique_ptr<sdk::Group> group(const sdk::GroupSpec& spec) {
    sdk::Config config = config_;
    config.job += "/" + std::to_string(generations_[{spec.id, spec.members}]++);
    TwoFunctionTransport::open(config);
    return TwoFunctionTransport::group(spec);
  }

 private:
  sdk::Config config_;
  std::map<std::pair<std::uint64_t, std::vector<std::uint32_t>>, std::uint64_t> generations_;
};

}  // namespace
}  // namespace shardrun::tcp_transport

SHARDRUN_EXPORT_TRANSPORT(shardrun::tcp_transport::TcpTransport, "tcp", "1.0", "ethernet socket sockets ip network")
