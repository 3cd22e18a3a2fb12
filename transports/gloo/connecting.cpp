#include "transports/gloo/connecting.h"

#include <gloo/transport/context.h>

#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "transports/gloo/connection.h"
#include "transports/gloo/meeting.h"

namespace shardrun::gloo_transport {
namespace {

using sdk::TransportError;

/// Gloo multiplies it by five. A wait that runs into it closes the whole context: deadlines are kept by the group.
constexpr std::chrono::milliseconds patience = std::chrono::hours(24 * 365) / 5;

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
    transportContext_->setTimeout(patience);
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

/// Where `member` listens. Waits until it does.
std::string published_by(const sdk::Config& config, const sdk::GroupSpec& group, const std::string& prefix,
                         std::uint32_t member) {
  try {
    return config.host.store_get(prefix + std::to_string(member), group.deadline);
  } catch (const TransportError& error) {
    if (error.status() != SR_TIMEOUT) {
      throw;
    }
    throw TransportError(SR_TIMEOUT, "past the deadline, waiting for " + name_of(group, member));
  }
}

}  // namespace

std::string name_of(const sdk::GroupSpec& group, std::uint32_t peer) {
  return "member " + std::to_string(peer) + " (rank " + std::to_string(group.members[peer]) + ")";
}

/// Gloo's reasons begin with "[file:line] ".
std::string reason_of(const std::exception& error) {
  const std::string_view text = error.what();
  const std::size_t end = text.find("] ");
  return std::string(text.substr(text.starts_with('[') && end != std::string_view::npos ? end + 2 : 0));
}

sdk::Option protect_option() {
  return sdk::text_option(
      "protect", "auto", {"auto", "none", "integrity", "encrypt"},
      "what is done to bytes on the wire, beyond the proof by which each connection begins: none, a "
      "tag (integrity) or encryption too; auto: none within a machine, integrity between machines");
}

Protection protection_between(const sdk::Config& config, std::uint32_t one_rank, std::uint32_t other_rank) {
  const std::string said = config.options.text("protect");
  for (const Protection protection : {Protection::none, Protection::integrity, Protection::encrypt}) {
    if (said == name_of(protection)) {
      return protection;
    }
  }
  const bool is_within_machine = config.machines.empty() ? config.local_world_size == config.world_size
                                                         : config.machines[one_rank] == config.machines[other_rank];
  return is_within_machine ? Protection::none : Protection::integrity;
}

std::unique_ptr<gloo::Context> connect_members(const sdk::Config& config, const sdk::GroupSpec& group,
                                               std::shared_ptr<gloo::transport::Device>& device,
                                               std::uint64_t generation) {
  const Key& secret = secret_of(config);
  const std::string id = text_of(group, generation);
  const std::string prefix = "gloo/" + config.job + "/" + id + "/";
  Socket listener = listen_for(config);
  config.host.store_set(prefix + std::to_string(group.rank), own_end(listener).text());
  Meeting meeting(
      group, config.host, secret,
      [&](std::uint32_t connector, std::uint32_t acceptor) {
        return Subject{.run = config.job,
                       .group = id,
                       .connector = connector,
                       .acceptor = acceptor,
                       .protection = protection_between(config, group.members[connector], group.members[acceptor]),
                       .addresses = ""};
      },
      [&](std::uint32_t member) { return name_of(group, member); }, std::move(listener));
  for (std::uint32_t peer = 0; peer < group.rank; ++peer) {
    meeting.connect_to(peer, published_by(config, group, prefix, peer));
  }
  Proven proven = meeting.run();
  try {
    return std::make_unique<Context>(group, device, std::move(proven));
  } catch (const std::exception& error) {  // Gloo has several bases
    throw TransportError(SR_INTERNAL, "Gloo does not take the connections: " + reason_of(error));
  }
}

}  // namespace shardrun::gloo_transport
