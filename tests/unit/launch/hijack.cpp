// Who stands where the launcher is expected, or between it and its ranks.

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/host_name.h"
#include "core/base/philox.h"
#include "core/launch/handshake.h"
#include "core/launch/rank.h"
#include "core/launch/store_client.h"
#include "tests/support/attacks.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/middle.h"
#include "tests/unit/launch/attacks.h"
#include "tests/unit/launch/store.h"

using namespace shardrun::launch;
using Catch::Matchers::Contains;
using shardrun::test::as_it_is;
using shardrun::test::attacks;
using shardrun::test::before_payload;
using shardrun::test::error_of;
using shardrun::test::Middle;
using shardrun::test::Store;
using std::chrono::milliseconds;

namespace {

std::atomic<int> failing_draws = 0;

}  // namespace

/// Instead of the C library's, for this program: the next draws of random bytes can be made to fail.
extern "C" ssize_t getrandom(void* bytes, size_t count, unsigned int flags) {
  if (failing_draws > 0) {
    --failing_draws;
    errno = EIO;
    return -1;
  }
  return ::syscall(SYS_getrandom, bytes, count, flags);
}

namespace {

Rank::Deadline in(milliseconds duration) { return Rank::Clock::now() + duration; }

constexpr std::chrono::seconds long_enough{60};

/// Of a store whose ranks connect to another port.
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

/// What a man in the middle does to one frame; the rest he passes on.
struct Attack {
  std::string what;
  bool to_launcher;
  int number;
  bool done = false;
  std::string held = {};

  Middle::Sent operator()(const Middle::Frame& frame) {
    if (!held.empty()) {
      return {.onwards = frame.bytes + std::exchange(held, "")};
    }
    if (done || frame.connection != 0 || frame.to_launcher != to_launcher || frame.number != number) {
      return as_it_is(frame);
    }
    done = true;
    if (what == "repeat") {
      return {.onwards = frame.bytes + frame.bytes};
    }
    if (what == "omit") {
      return {};
    }
    if (what == "reflect") {
      return {.onwards = "", .back = frame.bytes};
    }
    if (what == "delay") {
      held = frame.bytes;
      return {};
    }
    std::string changed = frame.bytes;
    const std::size_t at = frame_header_bytes + static_cast<std::size_t>(frame.number) % (changed.size() - 4);
    changed[at] = static_cast<char>(changed[at] ^ 1);
    return {.onwards = changed};
  }
};

}  // namespace

TEST_CASE("what ranks and their launcher tell each other is not to be seen on the way", "[launch][attack]") {
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
    // Two bytes, as some hosts are named, stand in random ones by chance.
    CHECK((secret.size() < 6 || middle.seen().find(secret) == std::string::npos));
  }
}

TEST_CASE("a man in the middle changes nothing unseen", "[launch][attack]") {
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
    const bool in_handshake = attack.number < 2;
    if (in_handshake && (attack.what == "delay" || attack.what == "omit")) {
      attack.what = "change";  // nothing would follow, and both ends wait
    }
    const int joined_before = joined;
    // On a busy machine too, what is attacked is the first connection of the rank.
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

TEST_CASE("a greeting or a proof that is changed on its way costs a rank no more than another attempt",
          "[launch][attack]") {
  const bool to_launcher = GENERATE(true, false);
  const std::string what = GENERATE("change", "omit", "reflect");
  Store store(1, {.hello_timeout = milliseconds(100)});
  Middle middle(store.context(0).port, Attack{.what = what, .to_launcher = to_launcher, .number = 0});
  Rank rank(context_at(store, 0, middle.port()), Store::job, in(long_enough));
  rank.set("key", "value");
  CHECK(rank.get("key", in(long_enough)) == "value");
}

TEST_CASE("an imposter is told nothing, and is named", "[launch][attack]") {
  const Token token = random_token();
  Token other = token;
  other[31] ^= 1U;
  const SessionKeys recorded = session_keys(token, random_token(), Nonce{});
  const std::vector<std::function<std::string(const std::string& greeting)>> imposters = {
      [](const std::string&) { return std::string("HTTP/1.0 200 OK\r\n\r\n"); },
      [](const std::string& greeting) { return greeting; },
      [](const std::string&) { return FrameWriter(FrameType::welcome).finish(); },
      [](const std::string&) { return encode(Challenge{.nonce = random_token(), .proof = random_token()}); },
      [&](const std::string&) { return encode(Challenge{.nonce = {}, .proof = recorded.proof}); },
      [&](const std::string& greeting) {
        const Nonce nonce = decode_greeting(std::string_view(greeting).substr(before_payload));
        return encode(Challenge{.nonce = {}, .proof = session_keys(other, nonce, {}).proof});
      },
  };
  const int count = attacks(6);
  std::set<std::string> greetings;
  std::size_t connections = 0;
  for (int i = 0; i < count; ++i) {
    auto [listener, port] = shardrun::test::listen_at(0);
    std::string beyond;
    std::thread imposter([&, socket = listener.get()] {
      for (;;) {
        const shardrun::files::FileDescriptor rank(::accept(socket, nullptr, nullptr));
        if (!rank.is_open()) {
          return;
        }
        const std::string greeting = shardrun::test::read_frame(rank.get());
        greetings.insert(greeting);
        ++connections;
        shardrun::test::send_bytes(rank.get(), imposters[static_cast<std::size_t>(i) % imposters.size()](greeting));
        ::shutdown(rank.get(), SHUT_WR);
        beyond += shardrun::test::read_bytes(rank.get(), 1);
      }
    });
    const StoreClientSettings settings{
        .store = {.address = "127.0.0.1", .port = port, .token = token, .most_unproved = 2},
        .hello = {.world_size = 1, .job_hash = shardrun::hash_name("")},
        .job = ""};
    const std::string error = error_of([&] { const StoreClient client(settings, in(long_enough)); });
    ::shutdown(listener.get(), SHUT_RDWR);
    imposter.join();
    CHECK_THAT(error, Contains(fmt::format("what listens at 127.0.0.1 port {} has not proved that it knows this run's "
                                           "token: ",
                                           port)) &&
                          Contains("is SHARDRUN_TOKEN the same there"));
    CHECK(beyond.empty());
  }
  CHECK(connections == 2 * static_cast<std::size_t>(count));
  CHECK(greetings.size() == connections);
  for (const std::string& greeting : greetings) {
    CHECK(greeting.size() == before_payload + 4 + sizeof(Nonce));
    CHECK(greeting.find(text_of(token)) == std::string::npos);
  }
}

TEST_CASE("a rank tries on where something else listens until its launcher does", "[launch]") {
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

TEST_CASE("a rank that is hung up on before a word tries on, however often", "[launch]") {
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

TEST_CASE("a rank whose line cannot be served for a while does not end", "[launch]") {
  Store store(1);
  failing_draws = 2;
  Rank rank(store.context(0), Store::job, in(long_enough));
  CHECK(failing_draws == 0);
  rank.set("key", "value");
  CHECK(rank.get("key", in(long_enough)) == "value");
}

TEST_CASE("a rank that is slow to greet keeps its place before strangers that greet at once", "[launch][attack]") {
  Store store(1, {.hello_timeout = std::chrono::hours(1), .max_strangers = 2});
  const auto come = [&] { return shardrun::test::connect_to_port(store.context(0).port); };
  const auto greet = [](const shardrun::files::FileDescriptor& guest) {
    shardrun::test::send_bytes(guest.get(), encode_greeting(random_token()));
    const std::string answer = shardrun::test::read_frame(guest.get());
    return answer.size() > 5 && static_cast<FrameType>(answer[5]) == FrameType::challenge;
  };
  const auto first = come();
  CHECK(greet(first));
  const auto second = come();
  CHECK(greet(second));
  const auto slow = come();
  const auto last = come();  // the first goes
  CHECK(greet(last));
  CHECK(shardrun::test::read_bytes(first.get(), 1).empty());
  CHECK(greet(slow));
}

TEST_CASE("a rank waits for the proof of what listens no longer than it may", "[launch]") {
  const auto [listener, port] = shardrun::test::listen_at(0);
  const StoreClientSettings settings{
      .store = {.address = "127.0.0.1", .port = port, .proof_timeout = milliseconds(20), .most_unproved = 1}};
  CHECK_THAT(error_of([&, at = port] { const StoreClient client(settings, in(milliseconds(500))); }),
             Contains("could not join its job") && Contains("it did not answer within 20 ms"));
}

TEST_CASE("a handshake that was recorded is worth nothing", "[launch][attack]") {
  Store store(2);
  const int count = attacks(5);
  std::size_t strangers = 0;
  for (int i = 0; i < count; ++i) {
    std::string recorded;
    for (milliseconds wait(50); recorded.size() <= encode_greeting({}).size(); wait *= 2) {
      // The hello does not arrive, so that its rank is not taken.
      Middle middle(store.context(1).port, [](const Middle::Frame& frame) {
        return frame.to_launcher && frame.number == 1 ? Middle::Sent{} : as_it_is(frame);
      });
      CHECK_THAT(error_of([&] { Rank(context_at(store, 1, middle.port()), Store::job, in(wait)); }),
                 Contains("could not join its job"));
      middle.end();
      recorded = middle.first_seen_from_rank();
    }
    const auto replay = shardrun::test::connect_to_port(store.context(1).port);
    shardrun::test::send_bytes(replay.get(), recorded);
    CHECK(static_cast<FrameType>(shardrun::test::read_frame(replay.get()).at(5)) == FrameType::challenge);
    CHECK(shardrun::test::read_frame(replay.get()).empty());
    CHECK(store.strangers() > strangers);
    strangers = store.strangers();
  }
  const Rank rank(store.context(1), Store::job, in(long_enough));
}
