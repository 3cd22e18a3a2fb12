#include "transports/gloo/connecting.h"

#include <gloo/transport/context.h>
#include <shardrun/sdk/transport/worker.hpp>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "transports/gloo/connection.h"
#include "transports/gloo/protection.h"
#include "transports/gloo/rendezvous.h"

namespace shardrun::gloo_transport {
namespace {

using sdk::TransportError;

/// Gloo multiplies it by five. A wait that reaches it closes the whole context, so the group keeps the deadlines
/// itself.
constexpr std::chrono::milliseconds gloo_timeout = std::chrono::hours(24 * 365) / 5;

/// How long one request for an address waits in the store. Incoming connections are not served meanwhile.
constexpr std::chrono::nanoseconds store_wait = std::chrono::milliseconds(20);

/// Contains the members, since groups with the same id may have different members.
std::string text_of(const sdk::GroupSpec& group, std::uint64_t generation) {
  std::string text = std::to_string(group.id) + "/" + std::to_string(generation);
  for (const std::uint32_t member : group.members) {
    text += "," + std::to_string(member);
  }
  return text;
}

class Context final : public gloo::Context {
 public:
  Context(const sdk::GroupSpec& group, std::shared_ptr<gloo::transport::Device>& device, Proven proven)
      : gloo::Context(static_cast<int>(group.rank), static_cast<int>(group.size())) {
    device_ = device;
    transportContext_ = device->createContext(rank, size);
    transportContext_->setTimeout(gloo_timeout);
    adopt(*transportContext_, *device, std::move(proven));
  }
};

const Key& secret_of(const sdk::Config& config) {
  if (!config.secret) {
    throw TransportError(SR_INVALID,
                         "the host gives no secret by which ranks prove themselves: a newer one does (plugin ABI 1.4)");
  }
  return *config.secret;
}

Socket listen_for(const sdk::Config& config) {
  // An empty name would mean the machine's own name, whose address other machines may not reach.
  const std::string address = config.address.empty() ? "127.0.0.1" : config.address;
  try {
    return listen_on(address);
  } catch (const std::exception& error) {
    throw TransportError(SR_INVALID, "cannot listen on '" + address + "': " + error.what() +
                                         "; the address has to be one of this machine's");
  }
}

/// Where `member` listens; nothing if it has not published that yet.
std::optional<std::string> published_by(const sdk::Config& config, const std::string& prefix, std::uint32_t member) {
  try {
    return config.host.store_get(prefix + std::to_string(member), sdk::Deadline::now() + store_wait);
  } catch (const TransportError& error) {
    if (error.status() != SR_TIMEOUT) {
      throw;
    }
    return std::nullopt;
  }
}

/// Writes to standard error, the only log that a transport has.
void say_strangers(const sdk::GroupSpec& group, std::uint64_t count) {
  const std::string line = "transport gloo: while the group '" + group.name + "' was connected, " +
                           std::to_string(count) + " connections of strangers were dropped\n";
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

/// Removes the "[file:line] " that Gloo puts before a reason.
std::string reason_of(const std::exception& error) {
  const std::string_view text = error.what();
  const std::size_t end = text.find("] ");
  return std::string(text.substr(text.starts_with('[') && end != std::string_view::npos ? end + 2 : 0));
}

Connections connect_members(const sdk::Config& config, const sdk::GroupSpec& group,
                            std::shared_ptr<gloo::transport::Device>& device, std::uint64_t generation) {
  const Key& secret = secret_of(config);
  const std::string id = text_of(group, generation);
  const std::string prefix = "gloo/" + config.job + "/" + id + "/";
  Socket listener = listen_for(config);
  config.host.store_set(prefix + std::to_string(group.rank), own_end(listener).text());
  GroupRendezvous rendezvous(
      group, config.host, secret,
      [&](std::uint32_t connector, std::uint32_t acceptor, const Endpoint& from, const Endpoint& to) {
        const Protection protection =
            protection_between(config, group.members[connector], group.members[acceptor], from, to);
        return ChannelBinding{.run = config.job,
                              .group = id,
                              .connector = connector,
                              .acceptor = acceptor,
                              .protection = protection,
                              // Address translation may change addresses, which is allowed where records are protected.
                              .addresses = protection == Protection::none ? from.text() + " to " + to.text() : ""};
      },
      [&](std::uint32_t member) { return published_by(config, prefix, member); }, std::move(listener));
  Connections connections;
  Proven proven = rendezvous.run();
  for (const std::optional<Handshake>& each : proven) {
    connections.protections.push_back(each ? each->protection() : Protection::none);
  }
  if (rendezvous.strangers() > 0) {
    say_strangers(group, rendezvous.strangers());
  }
  try {
    connections.context = std::make_unique<Context>(group, device, std::move(proven));
  } catch (const std::exception& error) {  // Gloo throws several unrelated types
    throw TransportError(SR_INTERNAL, "Gloo does not take the connections: " + reason_of(error));
  }
  return connections;
}

}  // namespace shardrun::gloo_transport
