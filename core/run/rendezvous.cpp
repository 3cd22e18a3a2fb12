#include "core/run/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>

#include "core/compile/plugins.h"
#include "core/launch/world.h"

namespace shardrun::run {
namespace {

std::vector<plugins::Transport> find_messengers(const Messengers& messengers) {
  std::vector<plugins::Transport> found = messengers.load();
  std::erase_if(found, [](const plugins::Transport& transport) { return !transport.shares_first(); });
  return found;
}

/// Whether a transport can tell the address. False for transports that open another one: whether they can depends on
/// that one.
bool can_share_first(const plugins::Transport& transport) {
  return transport.shares_first() && std::ranges::none_of(transport.options(), &OptionSpec::names_transport);
}

/// Advice for the error: "use transport = NAME, or " with an available transport that can tell the address.
std::string advice_on_transports(const plugins::Directories& directories) {
  std::string names;
  for (const std::string& name : plugins::plugin_names(directories, plugins::PluginKind::transport)) {
    try {
      if (can_share_first(plugins::Transport::load(directories, name))) {
        names += (names.empty() ? "" : " or ") + name;
      }
    } catch (const Error&) {
      // A transport that cannot be loaded is skipped: 'shardrun plugins' reports its error.
    }
  }
  return names.empty() ? "" : fmt::format("use transport = {}, or ", names);
}

/// Uses the first messenger that can tell `bytes`. All ranks agree on whether one can.
bool share_first(Rendezvous& rendezvous, const launch::World& world, std::string& bytes) {
  return std::ranges::any_of(rendezvous.messengers, [&](plugins::Transport& messenger) {
    return messenger.share_first(static_cast<std::uint32_t>(world.rank), static_cast<std::uint32_t>(world.size), bytes);
  });
}

}  // namespace

Messengers messengers_of(const job::Job& job) {
  return {
      .place = job.where("job", "transport"), .directories = compile::directories_of(job.plugins.path), .load = [&job] {
        std::vector<plugins::Transport> transports;
        for (const job::Chosen& chosen : job.transports) {
          transports.push_back(compile::load_transport(job, chosen.name));
        }
        return transports;
      }};
}

Error no_place(const Messengers& messengers, const launch::World& world) {
  return Error(ErrorCode::usage,
               fmt::format("{}: {} started this process as rank {} of {}, but no transport that they use can tell "
                           "them where they meet: {}set MASTER_ADDR and MASTER_PORT (where rank 0 shall listen) and "
                           "SHARDRUN_TOKEN (one secret, from 'openssl rand -hex 32') for all ranks",
                           messengers.place, world.launcher, world.rank, world.size,
                           advice_on_transports(messengers.directories)));
}

Rendezvous rendezvous_of(const Messengers& messengers, const launch::World& world) {
  Rendezvous rendezvous;
  const std::optional<launch::Token> token = launch::token_of();
  if (!world.is_by_variables && !(world.master && token)) {
    rendezvous.messengers = find_messengers(messengers);
  }
  if (world.master && rendezvous.messengers.empty()) {
    const std::vector<std::string> addresses = launch::resolve_for_others("MASTER_ADDR", world.master->address);
    if (token || std::ranges::all_of(addresses, launch::is_loopback)) {
      const auto own = std::ranges::find_if(addresses, launch::is_own_address);
      const std::string address = world.rank != 0          ? fmt::format("{}", fmt::join(addresses, ","))
                                  : own != addresses.end() ? *own
                                                           : addresses.front();
      return {.invitation = {.master = {.address = address, .port = world.master->port},
                             .token = token ? *token : launch::token_of_this_user()}};
    }
    if (world.is_by_variables) {
      throw Error(ErrorCode::usage,
                  fmt::format("the ranks meet at MASTER_ADDR = {}, which other machines reach: set SHARDRUN_TOKEN to "
                              "one secret on every host, so that strangers cannot join ('openssl rand -hex 32' makes "
                              "one)",
                              world.master->address));
    }
  }
  if (rendezvous.messengers.empty()) {
    throw no_place(messengers, world);
  }
  return rendezvous;
}

launch::Invitation invitation_of(const Rendezvous& rendezvous, const launch::World& world) {
  launch::Invitation invitation = rendezvous.invitation;
  if (!rendezvous.messengers.empty()) {
    const bool is_one_machine = world.local_size == world.size;
    invitation.master.address = is_one_machine ? "127.0.0.1" : launch::address_of_this_machine();
    invitation.token = launch::random_token();
  }
  return invitation;
}

bool invite(Rendezvous& rendezvous, const launch::World& world, const launch::Invitation& invitation) {
  std::string bytes = launch::encode(invitation);
  return rendezvous.messengers.empty() || share_first(rendezvous, world, bytes);
}

launch::Invitation hear_invitation(const Messengers& messengers, Rendezvous& rendezvous, const launch::World& world) {
  if (rendezvous.messengers.empty()) {
    return rendezvous.invitation;
  }
  std::string bytes(launch::invitation_bytes, '\0');
  if (!share_first(rendezvous, world, bytes)) {
    throw no_place(messengers, world);
  }
  return launch::decode_invitation(bytes);
}

}  // namespace shardrun::run
