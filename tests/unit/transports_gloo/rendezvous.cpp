#include "transports/gloo/rendezvous.h"

#include <shardrun/sdk/transport/worker.hpp>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <future>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/transport_ranks.h"
#include "transports/gloo/protection.h"

using namespace shardrun;
using namespace shardrun::gloo_transport;

namespace {

ChannelBinding binding_of(std::uint32_t connector, std::uint32_t acceptor) {
  return {.run = "run", .group = "1", .connector = connector, .acceptor = acceptor, .addresses = ""};
}

sdk::Config config_of(const std::string& protect) {
  sdk::Config config;
  config.world_size = config.local_world_size = 2;
  const sr_option_value value = {
      .struct_size = sizeof(sr_option_value), .type = SR_OPTION_TEXT, .name = "protect", .text = protect.c_str()};
  config.options = sdk::OptionValues(&value, 1, sizeof(value));
  return config;
}

Protection between(const sdk::Config& config, const std::string& from, const std::string& to) {
  return protection_between(config, 0, 1, endpoint_of(from + " 4000"), endpoint_of(to + " 5000"));
}

}  // namespace

TEST_CASE("gloo: a hundred members that connect at once keep no member out") {
  constexpr std::uint32_t members = 100;
  sdk::GroupSpec group{.rank = 0, .name = "all", .id = 1, .deadline = sdk::Deadline::from_border(test::after(60))};
  group.members.resize(members);
  std::iota(group.members.begin(), group.members.end(), 0U);
  sr_transport_host raw = {};
  std::atomic<bool> has_lost_one = false;
  raw.self = &has_lost_one;
  raw.aborted = [](void* self) -> std::uint32_t { return static_cast<std::atomic<bool>*>(self)->load() ? 1 : 0; };
  const sdk::TransportHost host(&raw);
  const Key secret = {1, 2, 3};
  Socket listener = listen_on("127.0.0.1");
  const Endpoint address = own_end(listener);

  // All have come before the last of them says a word, and the first come last.
  std::deque<Socket> sockets;
  for (std::uint32_t member = 1; member < members; ++member) {
    Socket& socket = sockets.emplace_front(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.address), address.bytes) == 0);
  }
  GroupRendezvous rendezvous(
      group, host, secret,
      [](std::uint32_t connector, std::uint32_t acceptor, const Endpoint&, const Endpoint&) {
        return binding_of(connector, acceptor);
      },
      [](std::uint32_t) { return std::optional<std::string>(); }, std::move(listener));
  auto met = std::async(std::launch::async, [&] { return rendezvous.run(); });
  std::uint32_t proven = 0;
  std::vector<Handshake> kept;
  for (std::uint32_t member = 1; member < members; ++member) {
    kept.push_back(Handshake::connecting(std::move(sockets[member - 1]), secret, member,
                                         [member](std::uint32_t) { return binding_of(member, 0); }));
    proven += kept.back().advance() == Handshake::State::proven ? 1 : 0;
  }
  CHECK(proven == members - 1);
  has_lost_one = proven != members - 1;
  CHECK(met.get().size() == members);
  CHECK(rendezvous.strangers() == 0);
}

TEST_CASE("gloo: two machines with the same name still protect their messages") {
  sdk::Config config = config_of("auto");
  CHECK(between(config, "10.0.0.5", "10.0.0.6") == Protection::integrity);
  CHECK(between(config, "127.0.0.1", "10.0.0.6") == Protection::integrity);
  CHECK(between(config, "fe80::1", "fe80::2") == Protection::integrity);
  CHECK(between(config, "::1", "127.0.0.1") == Protection::integrity);
  CHECK(between(config, "10.0.0.5", "10.0.0.5") == Protection::none);
  CHECK(between(config, "127.0.0.1", "127.0.0.2") == Protection::none);
  CHECK(between(config, "::1", "::1") == Protection::none);
  config.machines = {0, 0};
  CHECK(between(config, "10.0.0.5", "10.0.0.6") == Protection::integrity);
  CHECK(between(config, "10.0.0.5", "10.0.0.5") == Protection::none);
  config.machines = {0, 1};
  CHECK(between(config, "127.0.0.1", "127.0.0.1") == Protection::integrity);
  CHECK(between(config_of("none"), "10.0.0.5", "10.0.0.6") == Protection::none);
  CHECK(between(config_of("encrypt"), "127.0.0.1", "127.0.0.1") == Protection::encrypt);
}
