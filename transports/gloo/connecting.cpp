#include "transports/gloo/connecting.h"

#include <gloo/transport/context.h>
#include <shardrun/sdk/worker.hpp>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "transports/gloo/connection.h"
#include "transports/gloo/meeting.h"
#include "transports/gloo/protection.h"

namespace shardrun::gloo_transport {
namespace {

using sdk::TransportError;

/// Gloo multiplies it by five. A wait that runs into it closes the whole context: deadlines are kept by the group.
constexpr std::chrono::milliseconds gloo_timeout = std::chrono::hours(24 * 365) / 5;

/// How long the store is asked for an address at a time. Nobody who comes to the listener is heard meanwhile.
constexpr std::chrono::nanoseconds store_wait = std::chrono::milliseconds(20);

/// The members are part of it: groups of the same id need not share members.
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
  // An empty name would mean the machine's own, which need not be one that others reach.
  const std::string address = config.address.empty() ? "127.0.0.1" : config.address;
  try {
    return listen_on(address);
  } catch (const std::exception& error) {
    throw TransportError(SR_INVALID, "cannot listen on '" + address + "': " + error.what() +
                                         "; the address has to be one of this machine's");
  }
}

/// Where `member` listens; nothing where it has not said so soon.
std::optional<std::string> published_by(const sdk::Config& config, const std::string& prefix, std::uint32_t member) {
  try {
    return config.host.store_get(prefix + std::to_string(member), sdk::steady_now() + store_wait.count());
  } catch (const TransportError& error) {
    if (error.status() != SR_TIMEOUT) {
      throw;
    }
    return std::nullopt;
  }
}

/// A transport has no log but the standard error of its rank.
void say_strangers(const sdk::GroupSpec& group, std::uint64_t count) {
  const std::string line = "transport gloo: while the group '" + group.name + "' was connected, " +
                           std::to_string(count) + " connections of strangers were dropped\n";
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

/// Gloo's reasons begin with "[file:line] ".
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
  Meeting meeting(
      group, config.host, secret,
      [&](std::uint32_t connector, std::uint32_t acceptor, const Endpoint& from, const Endpoint& to) {
        const Protection protection =
            protection_between(config, group.members[connector], group.members[acceptor], from, to);
        return Subject{.run = config.job,
                       .group = id,
                       .connector = connector,
                       .acceptor = acceptor,
                       .protection = protection,
                       // Networks that translate addresses may change those of records that are protected.
                       .addresses = protection == Protection::none ? from.text() + " to " + to.text() : ""};
      },
      [&](std::uint32_t member) { return published_by(config, prefix, member); }, std::move(listener));
  Connections connections;
  Proven proven = meeting.run();
  for (const std::optional<Handshake>& each : proven) {
    connections.protections.push_back(each ? each->protection() : Protection::none);
  }
  if (meeting.strangers() > 0) {
    say_strangers(group, meeting.strangers());
  }
  try {
    connections.context = std::make_unique<Context>(group, device, std::move(proven));
  } catch (const std::exception& error) {  // Gloo has several bases
    throw TransportError(SR_INTERNAL, "Gloo does not take the connections: " + reason_of(error));
  }
  return connections;
}

}  // namespace shardrun::gloo_transport
