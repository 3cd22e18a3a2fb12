// Attackers in the launcher's place, or between the launcher and its ranks.

#include <dlfcn.h>
#include <fmt/format.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/philox.h"
#include "core/base/process.h"
#include "core/launch/rank.h"
#include "core/launch/store_client.h"
#include "core/launch/tls.h"
#include "tests/support/attacks.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/middle.h"
#include "tests/unit/launch/attacks.h"
#include "tests/unit/launch/store.h"

using namespace shardrun::launch;
namespace ssl = boost::asio::ssl;
using boost::asio::ip::tcp;
using Catch::Matchers::Contains;
using shardrun::test::as_it_is;
using shardrun::test::attacks;
using shardrun::test::client_hello;
using shardrun::test::error_of;
using shardrun::test::Middle;
using shardrun::test::Store;
using std::chrono::milliseconds;

namespace {

std::atomic<int> failing_clients = 0;

}  // namespace

/// Replaces OpenSSL's function in this program: the next attempts of ranks to begin TLS can be made to fail.
extern "C" SSL* SSL_new(SSL_CTX* context) {
  static const auto real = reinterpret_cast<SSL* (*)(SSL_CTX*)>(::dlsym(RTLD_NEXT, "SSL_new"));
  if (failing_clients > 0 && ::SSL_CTX_get_ssl_method(context) == ::TLS_client_method()) {
    --failing_clients;
    return nullptr;
  }
  return real(context);
}

namespace {

Rank::Deadline in(milliseconds duration) { return Rank::Clock::now() + duration; }

constexpr std::chrono::seconds long_enough{60};

/// The context of a rank of this store, with another port to connect to.
RankContext context_at(const Store& store, int rank, std::uint16_t port) {
  RankContext context = store.context(rank);
  context.port = port;
  context.heartbeat = milliseconds(5);
  return context;
}

std::string digits_of(const Token& token) {
  std::string text;
  for (const std::uint8_t byte : token) {
    text += fmt::format("{:02x}", byte);
  }
  return text;
}

/// How a man in the middle changes one record. He forwards the others.
struct Attack {
  std::string what;
  bool to_launcher;
  int number;
  bool done = false;
  std::string held = {};

  Middle::Sent operator()(const Middle::Record& record) {
    if (!held.empty()) {
      return {.onwards = record.bytes + std::exchange(held, "")};
    }
    if (done || record.connection != 0 || record.to_launcher != to_launcher || record.number != number) {
      return as_it_is(record);
    }
    done = true;
    if (what == "repeat") {
      return {.onwards = record.bytes + record.bytes};
    }
    if (what == "omit") {
      return {};
    }
    if (what == "reflect") {
      return {.onwards = "", .back = record.bytes};
    }
    if (what == "delay") {
      held = record.bytes;
      return {};
    }
    std::string changed = record.bytes;
    const std::size_t at = 5 + static_cast<std::size_t>(record.number) % (changed.size() - 5);  // behind the header
    changed[at] = static_cast<char>(changed[at] ^ 1);
    return {.onwards = changed};
  }
};

/// The bytes that a rank sends after this answer to its first message, without alerts.
std::string answer(int rank, const std::function<std::string(const std::string& sent)>& with) {
  shardrun::test::send_bytes(rank, with(shardrun::test::read_record(rank)));
  ::shutdown(rank, SHUT_WR);
  std::string told;
  for (std::string record; !(record = shardrun::test::read_record(rank)).empty();) {
    told += record.starts_with(shardrun::test::alert_record) ? "" : record;
  }
  return told;
}

/// The bytes that a rank sends to this server.
std::string serve(int rank, ssl::context& tls) {
  boost::asio::io_context io;
  ssl::stream<tcp::socket> stream(io, tls);
  stream.next_layer().assign(tcp::v4(), ::dup(rank));
  boost::system::error_code failed;
  stream.handshake(ssl::stream_base::server, failed);
  std::string told(1, '\0');
  told.resize(stream.read_some(boost::asio::buffer(told), failed));
  return told;
}

/// A server that has a certificate, signed by itself, and not the key.
ssl::context with_certificate() {
  ssl::context tls(ssl::context::tlsv13_server);
  const std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)> key(::EVP_EC_gen("P-256"), ::EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&::X509_free)> certificate(::X509_new(), ::X509_free);
  ::X509_gmtime_adj(::X509_getm_notBefore(certificate.get()), 0);
  ::X509_gmtime_adj(::X509_getm_notAfter(certificate.get()), 3600);
  ::X509_set_pubkey(certificate.get(), key.get());
  ::X509_sign(certificate.get(), key.get(), ::EVP_sha256());
  REQUIRE(::SSL_CTX_use_certificate(tls.native_handle(), certificate.get()) == 1);
  REQUIRE(::SSL_CTX_use_PrivateKey(tls.native_handle(), key.get()) == 1);
  return tls;
}

}  // namespace

TEST_CASE("traffic between ranks and launcher cannot be read on the way", "[launch][attack]") {
  Store store(1);
  Middle middle(store.context(0).port, as_it_is);
  const RankContext context = context_at(store, 0, middle.port());
  {
    Rank rank(context, Store::job, in(long_enough));
    rank.set("the name of a key", "what is told to ranks");
    CHECK(rank.get("the name of a key", in(long_enough)) == "what is told to ranks");
    rank.message("kind", "what is told to the launcher");
    rank.goodbye(in(long_enough));
  }
  middle.end();
  store.end();

  CHECK(store.messages() == "what is told to the launcher");
  CHECK(middle.seen().size() > 300);
  for (const std::string& secret :
       {std::string(text_of(context.token)), digits_of(context.token), std::string("the name of a key"),
        std::string("what is told"), std::string(Store::job), shardrun::host_name()}) {
    // Short secrets, such as host names of two bytes, may occur in random bytes by chance.
    CHECK((secret.size() < 6 || middle.seen().find(secret) == std::string::npos));
  }
}

TEST_CASE("a man in the middle changes nothing without being noticed", "[launch][attack]") {
  const std::vector<std::string> kinds = {"change", "repeat", "omit", "reflect", "delay"};
  int altered = 0;
  int unseen = 0;
  int joined = 0;
  const int count = attacks(20);
  std::mt19937 random(7);
  for (int i = 0; i < count; ++i) {
    Attack attack{.what = kinds[static_cast<std::size_t>(i) % kinds.size()],
                  .to_launcher = i / 5 % 2 == 0,
                  .number = static_cast<int>(random() % 8)};
    // The handshake ends with the rank's hello and the launcher's welcome.
    const bool in_handshake = attack.number < (attack.to_launcher ? 3 : 4);
    if (in_handshake && (attack.what == "delay" || attack.what == "omit")) {
      attack.what = "change";  // nothing would follow, and both ends wait
    }
    const int joined_before = joined;
    // This is long enough that, on a busy machine too, the attack hits the first connection of the rank.
    const milliseconds hello_timeout = in_handshake ? std::chrono::seconds(2) : long_enough;
    Store store(1, {.hello_timeout = hello_timeout, .answers_heartbeats = true});
    Middle middle(store.context(0).port, std::ref(attack));
    std::string sent;
    const std::string error = error_of([&] {
      Rank rank(context_at(store, 0, middle.port()), Store::job, in(long_enough));
      for (int key = 0; key < 8; ++key) {
        sent += "message;";
        rank.message("kind", "message;");
        rank.set(std::to_string(key), "value");
        altered += rank.get(std::to_string(key), in(long_enough)) == "value" ? 0 : 1;
      }
      ++joined;
      if (!in_handshake) {
        (void)rank.get("never", in(long_enough));
      }
    });
    middle.end();
    store.end();
    INFO(attack.what << (attack.to_launcher ? " to the launcher " : " to the rank ") << attack.number << ": " << error);
    CHECK(attack.done);
    CHECK(sent.starts_with(store.messages()));
    const bool seen =
        in_handshake || error.find("the job is aborted: the connection to the launcher is lost") != std::string::npos;
    CHECK(seen);
    unseen += seen ? 0 : 1;
    if (!in_handshake) {
      CHECK(joined == joined_before);
    } else if (attack.to_launcher && attack.what != "repeat") {
      CHECK(joined == joined_before + 1);  // at its next attempt
    }
  }
  WARN(count << " attacks: " << altered << " values altered, " << unseen << " changes unseen, " << joined
             << " ranks joined in spite of them");
  CHECK(altered == 0);
  CHECK(unseen == 0);
}

TEST_CASE("a changed first record only costs a rank another attempt", "[launch][attack]") {
  const bool to_launcher = GENERATE(true, false);
  const std::string what = GENERATE("change", "omit", "reflect");
  Store store(1, {.hello_timeout = milliseconds(100)});
  Middle middle(store.context(0).port, Attack{.what = what, .to_launcher = to_launcher, .number = 0});
  Rank rank(context_at(store, 0, middle.port()), Store::job, in(long_enough));
  rank.set("key", "value");
  CHECK(rank.get("key", in(long_enough)) == "value");
}

TEST_CASE("an imposter learns nothing and is named", "[launch][attack]") {
  const Token token = random_token();
  Token other = token;
  other[31] ^= 1U;
  ssl::context other_run(tls_context(shardrun::tls::End::server, other).release());
  ssl::context certified = with_certificate();
  const TlsContext launcher = tls_context(shardrun::tls::End::server, token);
  Tls earlier(launcher);
  std::string nothing;
  earlier.receive(client_hello(token), nothing);
  const std::string recorded = earlier.take_output();
  const std::vector<std::function<std::string(int rank)>> imposters = {
      [](int rank) { return answer(rank, [](const std::string&) { return "HTTP/1.0 200 OK\r\n\r\n"; }); },
      [](int rank) { return answer(rank, [](const std::string& sent) { return sent; }); },
      [&](int rank) { return answer(rank, [&](const std::string&) { return client_hello(token); }); },
      [&](int rank) { return answer(rank, [&](const std::string&) { return recorded; }); },
      [&](int rank) { return serve(rank, other_run); },
      [&](int rank) { return serve(rank, certified); },
  };
  const int count = attacks(static_cast<int>(imposters.size()));
  std::size_t connections = 0;
  for (int i = 0; i < count; ++i) {
    auto [listener, port] = shardrun::test::listen_at(0);
    std::string told;
    std::thread imposter([&, socket = listener.get()] {
      for (;;) {
        const shardrun::files::FileDescriptor rank(::accept(socket, nullptr, nullptr));
        if (!rank.is_open()) {
          return;
        }
        ++connections;
        told += imposters[static_cast<std::size_t>(i) % imposters.size()](rank.get());
      }
    });
    const StoreClientSettings settings{
        .store = {.address = "127.0.0.1", .port = port, .token = token, .most_unproved = 2},
        .hello = {.world_size = 1, .job_hash = shardrun::hash_name("")},
        .job = ""};
    const std::string error = error_of([&] { const StoreClient client(settings, in(long_enough)); });
    ::shutdown(listener.get(), SHUT_RDWR);
    imposter.join();
    INFO("imposter " << i);
    CHECK_THAT(error, Contains(fmt::format("what listens at 127.0.0.1 port {} has not proved that it knows this run's "
                                           "token: ",
                                           port)) &&
                          Contains("is SHARDRUN_TOKEN the same there"));
    CHECK(told.empty());
  }
  CHECK(connections == 2 * static_cast<std::size_t>(count));
}

TEST_CASE("a rank's first message has a fresh key exchange and no secret", "[launch][attack]") {
  const Token token = random_token();
  const std::string hello = client_hello(token);
  CHECK(hello != client_hello(token));
  CHECK(hello.find(text_of(token)) == std::string::npos);
  CHECK(hello.find(text_of(derive_key(token, "TLS of control connections"))) == std::string::npos);
  CHECK(hello.find(std::string("\x00\x2d\x00\x02\x01\x01", 6)) != std::string::npos);  // psk_dhe_ke
  CHECK(hello.find(std::string("\x00\x2a\x00\x00", 4)) == std::string::npos);          // early data
}

TEST_CASE("a rank tries again while another program listens at the launcher's port", "[launch]") {
  auto [listener, port] = shardrun::test::listen_at(0);
  const StoreServerSettings settings{.port = port, .token = random_token()};
  RankContext context;
  context.address = "127.0.0.1";
  context.port = port;
  context.token = settings.token;
  auto rank =
      std::async(std::launch::async, [&] { return std::make_unique<Rank>(context, Store::job, in(long_enough)); });
  { const shardrun::files::FileDescriptor unproved(::accept(listener.get(), nullptr, nullptr)); }
  listener = {};
  const Store store(1, settings);
  CHECK(rank.get() != nullptr);
}

TEST_CASE("a rank tries again however often its connection is closed at once", "[launch]") {
  auto [listener, port] = shardrun::test::listen_at(0);
  const StoreServerSettings settings{.port = port, .token = random_token()};
  const StoreClientSettings of_rank{
      .store = {.address = "127.0.0.1", .port = port, .token = settings.token, .most_unproved = 2},
      .hello = {.world_size = 1, .job_hash = shardrun::hash_name(Store::job)},
      .job = Store::job};
  auto rank = std::async(std::launch::async, [&] { return std::make_unique<StoreClient>(of_rank, in(long_enough)); });
  for (int i = 0; i < 4; ++i) {
    const shardrun::files::FileDescriptor hung_up(::accept(listener.get(), nullptr, nullptr));
  }
  listener = {};
  const Store store(1, settings);
  CHECK(rank.get() != nullptr);
}

TEST_CASE("a rank goes on when its connection cannot be served for a while", "[launch]") {
  Store store(1);
  failing_clients = 2;
  Rank rank(store.context(0), Store::job, in(long_enough));
  CHECK(failing_clients == 0);
  rank.set("key", "value");
  CHECK(rank.get("key", in(long_enough)) == "value");
}

TEST_CASE("a rank that is slow to greet keeps its place when strangers greet at once", "[launch][attack]") {
  Store store(1, {.hello_timeout = std::chrono::hours(1), .max_strangers = 2});
  const auto come = [&] { return shardrun::test::connect_to_port(store.context(0).port); };
  const auto greet = [&](const shardrun::files::FileDescriptor& guest) {
    shardrun::test::send_bytes(guest.get(), client_hello(store.context(0).token));
    return shardrun::test::read_record(guest.get()).starts_with(shardrun::test::handshake_record);
  };
  const auto first = come();
  CHECK(greet(first));
  const auto second = come();
  CHECK(greet(second));
  const auto slow = come();
  const auto last = come();  // the first connection is dropped
  CHECK(greet(last));
  while (!shardrun::test::read_record(first.get()).empty()) {
  }
  CHECK(greet(slow));
}

TEST_CASE("a rank waits for a listener's proof only until its deadline", "[launch]") {
  const auto [listener, port] = shardrun::test::listen_at(0);
  const StoreClientSettings settings{
      .store = {.address = "127.0.0.1", .port = port, .proof_timeout = milliseconds(20), .most_unproved = 1}};
  CHECK_THAT(error_of([&] { const StoreClient client(settings, in(milliseconds(500))); }),
             Contains("could not join its job") && Contains("it did not answer within 20 ms"));
}

TEST_CASE("a recorded handshake proves nothing", "[launch][attack]") {
  Store store(2);
  const int count = attacks(5);
  std::size_t strangers = 0;
  for (int i = 0; i < count; ++i) {
    std::string recorded;
    bool is_whole = false;
    for (milliseconds wait(50); !is_whole; wait *= 2) {
      // The hello is held back, so that its rank does not count as joined.
      Middle middle(store.context(1).port, [&](const Middle::Record& record) {
        const bool is_hello = record.to_launcher && record.number == 2;
        is_whole = is_whole || (is_hello && record.connection == 0);
        return is_hello ? Middle::Sent{} : as_it_is(record);
      });
      CHECK_THAT(error_of([&] { Rank(context_at(store, 1, middle.port()), Store::job, in(wait)); }),
                 Contains("could not join its job"));
      middle.end();
      recorded = middle.first_seen_from_rank();
    }
    const auto replay = shardrun::test::connect_to_port(store.context(1).port);
    shardrun::test::send_bytes(replay.get(), recorded);
    CHECK(shardrun::test::read_record(replay.get()).starts_with(shardrun::test::handshake_record));
    while (!shardrun::test::read_record(replay.get()).empty()) {
    }
    CHECK(store.strangers() > strangers);
    strangers = store.strangers();
  }
  const Rank rank(store.context(1), Store::job, in(long_enough));
}
