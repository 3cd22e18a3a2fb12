#include "transports/tcp/connection.h"

#include <csignal>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/transport_ranks.h"

using namespace shardrun;
using namespace shardrun::tcp_transport;
using Catch::Contains;

namespace {

using State = Connection::State;

constexpr tls::Key right_key = {1, 2, 3};

std::array<Socket, 2> two_ends() {
  std::array<int, 2> ends = {};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  return {Socket(ends[0]), Socket(ends[1])};
}

tls::Connection client(const std::string& identity = "1 to 0", const tls::Key& key = right_key) {
  return tls::psk_connection(tls::psk_context(tls::End::client, key), {.offered = identity, .meant = {}});
}

tls::Connection server(const std::string& identity = "1 to 0") {
  return tls::psk_connection(
      tls::psk_context(tls::End::server, right_key),
      {.offered = {}, .meant = [identity](std::string_view offered) { return offered == identity; }});
}

/// What can be read from `from` now.
std::string taken(const Socket& from) {
  std::string bytes(1 << 16, '\0');
  const ssize_t got = ::recv(from.get(), bytes.data(), bytes.size(), 0);
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return bytes;
}

void put(const Socket& to, std::string_view bytes) {
  REQUIRE(::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

/// Two ends of a connection, and somebody between them.
struct Between {
  explicit Between(Protection protection, tls::Connection from = client(), tls::Connection to = server()) {
    std::array<Socket, 2> left = two_ends();
    std::array<Socket, 2> right = two_ends();
    sender = std::make_unique<Connection>(std::move(left[0]), std::move(from), protection);
    receiver = std::make_unique<Connection>(std::move(right[0]), std::move(to), protection);
    at_sender = std::move(left[1]);
    at_receiver = std::move(right[1]);
  }

  /// Passes on what the ends say, at most `piece` bytes at a time, until nothing is said any more.
  void pass_on(std::size_t piece = SIZE_MAX) {
    bool is_silent = false;
    while (!is_silent) {
      (void)sender->advance();
      (void)receiver->advance();
      const std::string to_receiver = taken(at_sender);
      const std::string to_sender = taken(at_receiver);
      recorded += to_receiver;
      for (std::size_t at = 0; at < to_receiver.size(); at += std::min(piece, to_receiver.size() - at)) {
        put(at_receiver, std::string_view(to_receiver).substr(at, piece));
        (void)receiver->advance();
      }
      for (std::size_t at = 0; at < to_sender.size(); at += std::min(piece, to_sender.size() - at)) {
        put(at_sender, std::string_view(to_sender).substr(at, piece));
        (void)sender->advance();
      }
      is_silent = to_receiver.empty() && to_sender.empty();
    }
  }

  std::unique_ptr<Connection> sender;
  std::unique_ptr<Connection> receiver;
  Socket at_sender;
  Socket at_receiver;
  std::string recorded;  ///< what the sender has said
};

/// Whether two ends of one socket prove themselves to each other.
bool prove(Connection& sender, Connection& receiver) {
  for (int i = 0; i < 10; ++i) {
    (void)sender.advance();
    (void)receiver.advance();
  }
  return sender.advance() == State::proven && receiver.advance() == State::proven;
}

std::size_t say(Connection& to, const std::string& text) {
  const iovec part = {const_cast<char*>(text.data()), text.size()};
  return to.send({&part, 1});
}

/// Receives up to as many bytes as `text` has. Returns their number.
std::size_t hear(Connection& from, std::string& text) {
  const iovec part = {text.data(), text.size()};
  return from.receive({&part, 1});
}

std::string error_of_receive(Connection& connection) {
  std::string to(64, '\0');
  try {
    (void)hear(connection, to);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("tcp: two ends with one key and identity prove themselves, and bytes arrive as they were sent") {
  const Protection protection = GENERATE(Protection::tls, Protection::none);
  const std::size_t piece = GENERATE(as<std::size_t>(), 1, 7, SIZE_MAX);
  Between ends(protection);

  ends.pass_on(piece);

  REQUIRE(ends.sender->advance() == State::proven);
  REQUIRE(ends.receiver->advance() == State::proven);
  const std::string said = "a message of some length";
  ends.recorded.clear();
  CHECK(say(*ends.sender, said) == said.size());
  const std::string on_the_wire = taken(ends.at_sender);
  CHECK((on_the_wire.find(said) == std::string::npos) == (protection == Protection::tls));
  put(ends.at_receiver, on_the_wire);
  std::string heard(said.size(), '\0');
  CHECK(hear(*ends.receiver, heard) == said.size());
  CHECK(heard == said);
  CHECK(hear(*ends.receiver, heard) == 0);
}

TEST_CASE("tcp: parts longer than the socket takes arrive whole and in order") {
  const Protection protection = GENERATE(Protection::tls, Protection::none);
  const std::size_t second = GENERATE(as<std::size_t>(), 1, 16'368, 16'369, 1'000'000);
  std::array<Socket, 2> ends = two_ends();
  Connection sender(std::move(ends[0]), client(), protection);
  Connection receiver(std::move(ends[1]), server(), protection);
  REQUIRE(prove(sender, receiver));
  std::string said(16 + second, '\0');
  for (std::size_t i = 0; i < said.size(); ++i) {
    said[i] = static_cast<char>(i * 7 / 5);
  }
  std::string heard(said.size(), '\0');
  std::size_t sent = 0;
  std::size_t received = 0;
  const auto rest = [](std::string& text, std::size_t passed) {
    const std::size_t first = passed < 16 ? 16 - passed : 0;
    return std::array<iovec, 2>{
        {{text.data() + passed, first}, {text.data() + passed + first, text.size() - passed - first}}};
  };
  while (received < said.size()) {
    if (sent < said.size()) {
      const std::array<iovec, 2> parts = rest(said, sent);
      sent += sender.send(std::span(parts).subspan(sent < 16 ? 0 : 1));
    }
    const std::array<iovec, 2> parts = rest(heard, received);
    received += receiver.receive(std::span(parts).subspan(received < 16 ? 0 : 1));
  }
  CHECK(sent == said.size());
  CHECK(heard == said);
}

TEST_CASE("tcp: bytes that follow the handshake at once are not lost") {
  const Protection protection = GENERATE(Protection::tls, Protection::none);
  Between ends(protection);
  ends.pass_on();
  // The next two ends are connected directly: the sender says its first words before the receiver looks.
  std::array<Socket, 2> direct = two_ends();
  Connection sender(std::move(direct[0]), client(), protection);
  Connection receiver(std::move(direct[1]), server(), protection);
  while (sender.advance() == State::under_way) {
    (void)receiver.advance();
  }
  REQUIRE(sender.advance() == State::proven);
  const std::string said = "first words";
  CHECK(say(sender, said) == said.size());
  REQUIRE(receiver.advance() == State::proven);
  std::string heard(said.size(), '\0');
  CHECK(hear(receiver, heard) == said.size());
  CHECK(heard == said);
}

TEST_CASE("tcp: neither end accepts another key or another identity") {
  const Protection protection = GENERATE(Protection::tls, Protection::none);
  SECTION("key") {
    Between ends(protection, client("1 to 0", {1, 2, 4}));
    ends.pass_on();
    CHECK(ends.sender->advance() == State::refused);
    CHECK(ends.receiver->advance() == State::refused);
  }
  SECTION("identity") {
    Between ends(protection, client("1 to 2"));
    ends.pass_on();
    CHECK(ends.sender->advance() == State::refused);
    CHECK(ends.receiver->advance() == State::refused);
  }
}

TEST_CASE("tcp: a certificate is no proof") {
  const std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)> key(::EVP_EC_gen("P-256"), ::EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&::X509_free)> certificate(::X509_new(), ::X509_free);
  ::X509_gmtime_adj(::X509_getm_notBefore(certificate.get()), 0);
  ::X509_gmtime_adj(::X509_getm_notAfter(certificate.get()), 3600);
  REQUIRE(::X509_set_pubkey(certificate.get(), key.get()) == 1);
  REQUIRE(::X509_sign(certificate.get(), key.get(), ::EVP_sha256()) != 0);
  const tls::Context context(::SSL_CTX_new(::TLS_server_method()));
  REQUIRE(::SSL_CTX_use_certificate(context.get(), certificate.get()) == 1);
  REQUIRE(::SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1);
  tls::Connection impostor(::SSL_new(context.get()));
  ::SSL_set_accept_state(impostor.get());
  Between ends(GENERATE(Protection::tls, Protection::none), client(), std::move(impostor));

  ends.pass_on();

  REQUIRE(ends.sender->advance() == State::refused);
  CHECK(ends.sender->why() == "TLS succeeded without the key, by a certificate");
}

TEST_CASE("tcp: what a connection says is refused when it comes back to it") {
  std::array<Socket, 2> ends = two_ends();
  Connection sender(std::move(ends[0]), client(), GENERATE(Protection::tls, Protection::none));
  (void)sender.advance();
  put(ends[1], taken(ends[1]));
  CHECK(sender.advance() == State::refused);
}

TEST_CASE("tcp: a recorded connection proves nothing when it is replayed") {
  const Protection protection = GENERATE(Protection::tls, Protection::none);
  Between ends(protection);
  ends.pass_on();
  REQUIRE(ends.receiver->advance() == State::proven);
  const std::string said = "data";
  CHECK(say(*ends.sender, said) == said.size());
  ends.recorded += taken(ends.at_sender);

  std::array<Socket, 2> later = two_ends();
  Connection receiver(std::move(later[0]), server(), protection);
  put(later[1], ends.recorded);
  while (receiver.advance() == State::under_way && !taken(later[1]).empty()) {
  }
  CHECK(receiver.advance() == State::refused);
}

TEST_CASE("tcp: a byte altered on the way is found where bytes are protected") {
  Between ends(Protection::tls);
  ends.pass_on();
  const std::string said(1000, 'x');
  CHECK(say(*ends.sender, said) == said.size());
  std::string altered = taken(ends.at_sender);
  altered[GENERATE(as<std::size_t>(), 5, 500, 1000)] ^= 1;
  put(ends.at_receiver, altered);
  CHECK_THAT(error_of_receive(*ends.receiver), Contains("bytes from it were altered on the way"));
}

TEST_CASE("tcp: records left out or repeated are found") {
  Between ends(Protection::tls);
  ends.pass_on();
  std::array<std::string, 2> records;
  for (std::string& each : records) {
    CHECK(say(*ends.sender, "data") == 4);
    each = taken(ends.at_sender);
  }
  const bool repeats = GENERATE(false, true);
  put(ends.at_receiver, repeats ? records[0] + records[0] : records[1]);
  if (repeats) {
    std::string heard(4, '\0');
    CHECK(hear(*ends.receiver, heard) == 4);
  }
  CHECK_THAT(error_of_receive(*ends.receiver), Contains("bytes from it were altered on the way"));
}

TEST_CASE("tcp: a stranger is heard for no more than 4,096 bytes") {
  std::array<Socket, 2> ends = two_ends();
  Connection receiver(std::move(ends[0]), server(), Protection::tls);
  // The beginning of a ClientHello that claims to be 60,000 bytes long, in records of 1,000.
  std::string record = {22, 3, 1, 3, static_cast<char>(0xE8)};
  std::string first = record + std::string({1, 0, static_cast<char>(0xEA), 0x60}) + std::string(996, 'x');
  put(ends[1], first);
  CHECK(receiver.advance() == State::under_way);
  for (int i = 0; i < 4; ++i) {
    put(ends[1], record + std::string(1000, 'x'));
  }
  CHECK(receiver.advance() == State::refused);
  CHECK_THAT(receiver.why(), Contains("4096 bytes without a proof"));
}

TEST_CASE("tcp: keys are renewed, and what is sent with the next one arrives") {
  int renewals = 0;
  tls::Connection accepting = server();
  ::SSL_set_msg_callback_arg(accepting.get(), &renewals);
  ::SSL_set_msg_callback(accepting.get(),
                         [](int is_sent, int, int type, const void* message, std::size_t size, SSL*, void* count) {
                           const bool is_renewal = is_sent == 0 && type == SSL3_RT_HANDSHAKE && size != 0 &&
                                                   *static_cast<const unsigned char*>(message) == SSL3_MT_KEY_UPDATE;
                           *static_cast<int*>(count) += is_renewal ? 1 : 0;
                         });
  std::array<Socket, 2> ends = two_ends();
  Connection sender(std::move(ends[0]), client(), Protection::tls);
  Connection receiver(std::move(ends[1]), std::move(accepting), Protection::tls);
  REQUIRE(prove(sender, receiver));
  int wrong = 0;
  for (int i = 0; i < 2 * Connection::records_per_key + 1; ++i) {
    const std::string said(1, static_cast<char>(i));
    std::string heard(1, static_cast<char>(~i));
    wrong += say(sender, said) == 1 && hear(receiver, heard) == 1 && heard == said ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(renewals == 2);
}

TEST_CASE("tcp: to send to an end that is closed is an error and no signal") {
  static int signals = 0;
  signals = 0;
  const Protection protection = GENERATE(Protection::tls, Protection::none);
  struct sigaction counting = {};
  struct sigaction before = {};
  counting.sa_handler = [](int) { ++signals; };
  REQUIRE(sigaction(SIGPIPE, &counting, &before) == 0);
  std::array<Socket, 2> ends = two_ends();
  Connection sender(std::move(ends[0]), client(), protection);
  auto receiver = std::make_unique<Connection>(std::move(ends[1]), server(), protection);
  REQUIRE(prove(sender, *receiver));
  receiver.reset();
  CHECK_THROWS_WITH(say(sender, "data"), Contains("Broken pipe"));
  CHECK(signals == 0);
  CHECK(sigaction(SIGPIPE, &before, nullptr) == 0);
}

TEST_CASE("tcp: the end of the other end is an error that says so") {
  Between ends(GENERATE(Protection::tls, Protection::none));
  ends.pass_on();
  ends.at_receiver = Socket();
  CHECK(error_of_receive(*ends.receiver) == "the other end has closed the connection");
}

TEST_CASE("tcp: a rank knows in what time long messages came in, by the rank that sent them", "[tcp]") {
  run_ranks("tcp", 3, [](test::Rank& rank) {
    auto group = rank.group();
    const auto pass = [&](std::size_t count) {
      std::vector<float> data(count, 1.0F);
      auto op = group.prepare({test::request_of(SR_OP_BROADCAST, 1, count, data, 0)}, test::after(30));
      test::run(op);
    };
    pass(1000);
    const auto none = [&](std::uint32_t from) { return rank.transport().arrivals(from).bytes == 0; };
    bool knows_short = false;
    for (std::uint32_t from = 0; from < 3; ++from) {
      knows_short = knows_short || !none(from);
    }
    constexpr std::size_t many = 4'000'000;  // more than a read gives at once
    pass(many);
    std::uint64_t bytes = 0;
    std::uint64_t nanoseconds = 0;
    for (std::uint32_t from = 0; from < 3; ++from) {
      bytes += rank.transport().arrivals(from).bytes;
      nanoseconds += rank.transport().arrivals(from).nanoseconds;
    }
    const bool is_right = rank.rank() == 0 ? bytes == 0 : bytes > 2 * many && bytes <= 4 * many && nanoseconds > 0;
    if (knows_short || !is_right || !none(rank.rank())) {
      throw Error(ErrorCode::internal, "rank " + std::to_string(rank.rank()) + " knows of " + std::to_string(bytes) +
                                           " bytes in " + std::to_string(nanoseconds) + " ns");
    }
  });
}
