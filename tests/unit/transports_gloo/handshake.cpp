#include "transports/gloo/handshake.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun::gloo_transport;
using Catch::Contains;
using State = Handshake::State;

namespace {

constexpr std::size_t all_bytes = 44 + 3 * 32;

const Key run_secret = {1, 2, 3};

ChannelBinding binding() {
  return {.run = "run", .group = "1/0,0,1", .connector = 1, .acceptor = 0, .addresses = "127.0.0.1 5 to 127.0.0.1 6"};
}

std::array<Socket, 2> pair_of_sockets() {
  std::array<int, 2> ends = {};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
  return {Socket(ends[0]), Socket(ends[1])};
}

Handshake connector(Socket socket, const ChannelBinding& meant = binding(), const Key& key = secret) {
  return Handshake::connecting(std::move(socket), key, meant.connector, [meant](std::uint32_t) { return meant; });
}

Handshake acceptor(Socket socket, const ChannelBinding& meant = binding(), const Key& key = secret) {
  return Handshake::accepting(std::move(socket), key, [meant](std::uint32_t member) {
    ChannelBinding heard = meant;
    heard.connector = member;
    return heard;
  });
}

/// Bytes that one side of a handshake has sent, and what is done to each of them on its way: its place among those of
/// both sides, and it; nothing: it is lost, and all after it.
using Change = std::function<std::optional<std::uint8_t>(std::size_t, std::uint8_t)>;

/// Somebody between the two ends.
class Between {
 public:
  explicit Between(Change change = {}) : change_(std::move(change)) {
    std::array<Socket, 2> first = pair_of_sockets();
    std::array<Socket, 2> second = pair_of_sockets();
    to_connector_ = std::move(first[0]);
    to_acceptor_ = std::move(second[0]);
    of_connector = std::move(first[1]);
    of_acceptor = std::move(second[1]);
  }

  /// Until neither side says anything more.
  std::pair<State, State> run(Handshake& one, Handshake& other) {
    for (;;) {
      std::pair<State, State> states;
      states.first = one.advance();
      const bool passed_on = pass(to_connector_, to_acceptor_);
      states.second = other.advance();
      if (!pass(to_acceptor_, to_connector_) && !passed_on) {
        return states;
      }
    }
  }

  Socket of_connector;
  Socket of_acceptor;

 private:
  bool pass(Socket& from, Socket& to) {
    std::array<std::uint8_t, 256> bytes = {};
    const ssize_t got = from ? ::read(from.get(), bytes.data(), bytes.size()) : 0;
    for (ssize_t i = 0; i < got; ++i) {
      const auto byte = change_ ? change_(passed_++, bytes[static_cast<std::size_t>(i)])
                                : std::optional(bytes[static_cast<std::size_t>(i)]);
      if (!byte || !to) {
        to = Socket();
        from = Socket();
        return true;
      }
      (void)::send(to.get(), &*byte, 1, MSG_NOSIGNAL);
    }
    return got > 0;
  }

  Change change_;
  std::size_t passed_ = 0;
  Socket to_connector_;
  Socket to_acceptor_;
};

}  // namespace

TEST_CASE("gloo: members of one run prove themselves and agree on a key for each direction") {
  Between between;
  Handshake one = connector(std::move(between.of_connector));
  Handshake other = acceptor(std::move(between.of_acceptor));
  CHECK(between.run(one, other) == std::pair(State::proven, State::proven));
  CHECK(other.connector() == 1);
  CHECK(one.sending_key() == other.receiving_key());
  CHECK(one.receiving_key() == other.sending_key());
  CHECK(one.sending_key() != one.receiving_key());
}

TEST_CASE("gloo: each connection has keys of its own") {
  std::vector<Key> keys;
  for (int i = 0; i < 2; ++i) {
    Between between;
    Handshake one = connector(std::move(between.of_connector));
    Handshake other = acceptor(std::move(between.of_acceptor));
    REQUIRE(between.run(one, other).second == State::proven);
    keys.push_back(one.sending_key());
  }
  CHECK(keys[0] != keys[1]);
}

TEST_CASE("gloo: ends with different descriptions of their connection refuse each other") {
  ChannelBinding meant = binding();
  Key key = run_secret;
  SECTION("secret") { key[31] = 1; }
  SECTION("run") { meant.run = "another"; }
  SECTION("group") { meant.group = "1/1,0,1"; }
  SECTION("connector") { meant.connector = 2; }
  SECTION("acceptor") { meant.acceptor = 1; }
  SECTION("protection") { meant.protection = Protection::integrity; }
  SECTION("addresses") { meant.addresses = "127.0.0.1 7 to 127.0.0.1 6"; }
  SECTION("what is of one field is of another") {
    meant.run = "ru";
    meant.group = "n1/0,0,1";
  }
  Between between;
  Handshake one = connector(std::move(between.of_connector), meant, key);
  Handshake other =
      Handshake::accepting(std::move(between.of_acceptor), run_secret, [](std::uint32_t) { return binding(); });
  CHECK(between.run(one, other).second == State::refused);
  CHECK_THAT(other.why(), Contains("does not know the secret of this run"));
}

TEST_CASE("gloo: a handshake with an altered byte fails on at least one side") {
  for (std::size_t place = 0; place < all_bytes; ++place) {
    INFO("byte " << place);
    Between between(
        [&](std::size_t at, std::uint8_t byte) { return std::optional<std::uint8_t>(at == place ? byte ^ 1U : byte); });
    Handshake one = connector(std::move(between.of_connector));
    Handshake other = acceptor(std::move(between.of_acceptor));
    const auto [first, second] = between.run(one, other);
    CHECK((first != State::proven || second != State::proven));
    // The last of the flights is what the acceptor says.
    CHECK((second == State::refused || place >= all_bytes - 32));
    CHECK(first != State::proven);
  }
}

TEST_CASE("gloo: a handshake cut short at any byte fails on the connecting side") {
  for (std::size_t place = 0; place < all_bytes; ++place) {
    INFO("byte " << place);
    Between between([&](std::size_t at, std::uint8_t byte) { return at < place ? std::optional(byte) : std::nullopt; });
    Handshake one = connector(std::move(between.of_connector));
    Handshake other = acceptor(std::move(between.of_acceptor));
    (void)between.run(one, other);
    CHECK(one.advance() == State::refused);
    CHECK(other.advance() == (place < all_bytes - 32 ? State::refused : State::proven));
  }
}

TEST_CASE("gloo: bytes of an earlier handshake prove nothing") {
  std::vector<std::uint8_t> heard;
  {
    Between between([&](std::size_t, std::uint8_t byte) {
      heard.push_back(byte);
      return std::optional(byte);
    });
    Handshake one = connector(std::move(between.of_connector));
    Handshake other = acceptor(std::move(between.of_acceptor));
    REQUIRE(between.run(one, other).first == State::proven);
  }
  REQUIRE(heard.size() == all_bytes);
  std::array<Socket, 2> ends = pair_of_sockets();
  SECTION("said by one who connects") {
    Handshake other = acceptor(std::move(ends[1]));
    REQUIRE(::write(ends[0].get(), heard.data(), 44) == 44);
    REQUIRE(::write(ends[0].get(), heard.data() + 76, 32) == 32);
    CHECK(other.advance() == State::refused);
  }
  SECTION("said by one who listens") {
    Handshake one = connector(std::move(ends[1]));
    REQUIRE(::write(ends[0].get(), heard.data() + 44, 32) == 32);
    REQUIRE(::write(ends[0].get(), heard.data() + 108, 32) == 32);
    CHECK(one.advance() == State::refused);
  }
}

TEST_CASE("gloo: a member's own bytes sent back to it prove nothing") {
  std::array<Socket, 2> ends = pair_of_sockets();
  Handshake one = connector(std::move(ends[1]));
  State state = one.advance();
  std::array<std::uint8_t, 256> bytes = {};
  while (state == State::under_way) {
    const ssize_t got = ::read(ends[0].get(), bytes.data(), bytes.size());
    REQUIRE(got > 0);
    REQUIRE(::write(ends[0].get(), bytes.data(), static_cast<std::size_t>(got)) == got);
    state = one.advance();
  }
  CHECK(state == State::refused);
}

TEST_CASE("gloo: two ends that both connect refuse each other") {
  Between between;
  Handshake one = connector(std::move(between.of_connector));
  Handshake other = connector(std::move(between.of_acceptor));
  const auto [first, second] = between.run(one, other);
  CHECK(first == State::refused);
  CHECK(second == State::refused);
}

TEST_CASE("gloo: a peer with another protocol is refused at once") {
  std::array<Socket, 2> ends = pair_of_sockets();
  Handshake other = acceptor(std::move(ends[1]));
  const std::array<std::uint8_t, 64> words = {48, 0, 0, 0, 0, 0, 0, 0, 3};
  REQUIRE(::write(ends[0].get(), words.data(), words.size()) == static_cast<ssize_t>(words.size()));
  CHECK(other.advance() == State::refused);
  CHECK_THAT(other.why(), Contains("does not speak as a member does"));
}
