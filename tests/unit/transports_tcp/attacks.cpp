// Attackers on the network: some come to a member's listener, and others stand between two members.

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/attacks.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"
#include "transports/tcp/rendezvous.h"

using namespace shardrun;
using namespace shardrun::test;
using namespace shardrun::tcp_transport;
using Catch::Contains;

namespace {

plugins::TransportSetup protect(const std::string& how) { return {.options = {{"protect", how}}}; }

constexpr std::size_t count = 100'000;

/// Whether an all_reduce of all ranks' ones is right.
bool sums_right(Rank& rank, double seconds) {
  auto group = rank.group(1, seconds);
  std::vector<float> data(count, 1.0F);
  auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, data.size(), data)}, after(30));
  run(op);
  return std::ranges::all_of(data, [&](float value) { return value == static_cast<float>(rank.size()); });
}

/// The number of ranks whose sum is right.
int right_sums(SharedHost& host, std::uint32_t ranks, const std::string& protection, double seconds = 30) {
  std::atomic<int> right = 0;
  run_ranks(
      host, "tcp", ranks, [&](Rank& rank) { right += sums_right(rank, seconds) ? 1 : 0; }, protect(protection));
  return right;
}

Socket connection_to(const Endpoint& address) {
  Socket socket(::socket(address.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.address), address.bytes) == 0
             ? std::move(socket)
             : Socket();
}

void say(const Socket& socket, const std::string& bytes) {
  (void)::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

/// The first words of TLS by somebody who has another key.
std::string client_hello() {
  std::array<int, 2> ends = {};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const Socket other(ends[1]);
  Connection connection(
      Socket{ends[0]},
      tls::psk_connection(tls::psk_context(tls::End::client, {9}), {.offered = "1 somebody", .meant = {}}),
      Protection::tls);
  (void)connection.advance();
  std::string said(4096, '\0');
  said.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::recv(other.get(), said.data(), said.size(), 0))));
  return said;
}

struct Scan {
  const char* name;
  std::function<void(Socket, std::vector<Socket>& held)> act;
};

std::vector<Scan> scans() {
  const auto says = [](const std::string& text) {
    return [text](Socket socket, std::vector<Socket>& held) {
      say(socket, text);
      held.push_back(std::move(socket));
    };
  };
  const std::string hello = client_hello();
  REQUIRE(hello.size() > 100);
  std::string garbage(1000, '\0');
  for (std::size_t i = 0; i < garbage.size(); ++i) {
    garbage[i] = static_cast<char>(i * 2654435761U >> 7U);
  }
  return {
      {"connects and closes", [](Socket, std::vector<Socket>&) {}},
      {"connects and resets",
       [](Socket socket, std::vector<Socket>&) {
         const linger at_once = {1, 0};
         ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
       }},
      {"connects and holds", says("")},
      {"says garbage", says(garbage)},
      {"says half of a member's first words", says(hello.substr(0, 50))},
      {"says first words with another key", says(hello)},
  };
}

/// A store that shows each address to an attacker before any member sees it. The attack goes on until nobody listens
/// there any more.
class ScannedHost final : public SharedHost {
 public:
  explicit ScannedHost(Scan scan) : scan_(std::move(scan)) {}
  ~ScannedHost() override {
    for (std::thread& each : attackers_) {
      each.join();
    }
  }

  void store_set(const std::string& key, std::string value) override {
    const Endpoint address = endpoint_of(value);
    {
      const std::lock_guard lock(mutex_);
      attack(address, more_than_are_heard, held_);
      attackers_.emplace_back([this, address] {
        while (connection_to(address)) {
          std::vector<Socket> held;
          attack(address, 10, held);
          ++attacks_meanwhile_;
        }
      });
    }
    SharedHost::store_set(key, std::move(value));
  }

  [[nodiscard]] int attacks_meanwhile() const noexcept { return attacks_meanwhile_; }

 private:
  static constexpr int more_than_are_heard = 100;

  void attack(const Endpoint& address, int times, std::vector<Socket>& held) const {
    for (int i = 0; i < times; ++i) {
      if (Socket socket = connection_to(address)) {
        scan_.act(std::move(socket), held);
      }
    }
  }

  std::mutex mutex_;
  Scan scan_;
  std::vector<Socket> held_;
  std::vector<std::thread> attackers_;
  std::atomic<int> attacks_meanwhile_ = 0;
};

/// Collects what this process writes to standard error, until end().
class StandardError {
 public:
  StandardError() : before_(::dup(STDERR_FILENO)), file_(::memfd_create("stderr", MFD_CLOEXEC)) {
    ::dup2(file_.get(), STDERR_FILENO);
  }
  ~StandardError() { end(); }
  StandardError(const StandardError&) = delete;
  StandardError& operator=(const StandardError&) = delete;

  std::string end() {
    ::dup2(before_.get(), STDERR_FILENO);
    std::string text(4096, '\0');
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::pread(file_.get(), text.data(), text.size(), 0))));
    return text;
  }

 private:
  Socket before_;
  Socket file_;
};

}  // namespace

TEST_CASE("tcp: strangers at a listener neither end a run nor take part in it, and are counted") {
  const std::string protection = GENERATE("tls", "none");
  const std::vector<Scan> all = scans();
  int meanwhile = 0;
  for (int i = 0; i < attacks(static_cast<int>(all.size())); ++i) {
    const Scan& scan = all[static_cast<std::size_t>(i) % all.size()];
    INFO(protection << ", " << scan.name);
    ScannedHost host(scan);
    StandardError said;
    const int right = right_sums(host, 3, protection);
    const std::string text = said.end();
    CHECK(right == 3);
    CHECK_THAT(text, Contains("transport tcp: while the group 'all' was connected, ") &&
                         Contains(" connections of strangers were dropped\n"));
    meanwhile += host.attacks_meanwhile();
  }
  CHECK(meanwhile > 0);
}

namespace {

/// A store that holds rank 0's address back until rank 1 has dropped five strangers.
class LateHost final : public SharedHost {
 public:
  void store_set(const std::string& key, std::string value) override {
    if (key.ends_with("/0")) {
      const Endpoint address = endpoint_of(store_get(key.substr(0, key.size() - 1) + "1", after(30)));
      // The first stranger may come before rank 1 begins to wait.
      for (int i = 0; i < 5; ++i) {
        const Socket stranger = connection_to(address);
        say(stranger, std::string(64, 'x'));
        pollfd watched = {stranger.get(), POLLIN, 0};
        dropped_ += ::poll(&watched, 1, 10'000);
      }
    }
    SharedHost::store_set(key, std::move(value));
  }

  [[nodiscard]] int dropped() const noexcept { return dropped_; }

 private:
  int dropped_ = 0;
};

}  // namespace

TEST_CASE("tcp: a listener is served while its member waits for addresses, and each stranger counts") {
  LateHost host;
  StandardError said;
  const int right = right_sums(host, 2, "tls");
  CHECK(said.end() == "transport tcp: while the group 'all' was connected, 5 connections of strangers were dropped\n");
  CHECK(right == 2);
  CHECK(host.dropped() == 5);
}

TEST_CASE("tcp: nothing is said of strangers where none came") {
  SharedHost host;
  StandardError said;
  const int right = right_sums(host, 2, "tls");
  CHECK(said.end().empty());
  CHECK(right == 2);
}

namespace {

/// Passes on the bytes of connections to another address, in both directions. Of the bytes of the side that connects,
/// it alters the one at `altered`.
class Relay {
 public:
  Relay(Endpoint to, std::size_t altered)
      : to_(to), altered_(altered), listener_(listen_on("127.0.0.1")), thread_([this] { serve(); }) {}
  ~Relay() {
    stopping_ = true;
    thread_.join();
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  [[nodiscard]] std::string address() const { return own_end(listener_).text(); }
  [[nodiscard]] bool has_altered() const noexcept { return has_altered_; }

 private:
  struct Line {
    std::array<Socket, 2> ends;
    std::size_t said = 0;  ///< the number of bytes from the first end
  };

  void serve() {
    std::vector<Line> lines;
    while (!stopping_) {
      std::vector<pollfd> watched = {{listener_.get(), POLLIN, 0}};
      for (const Line& line : lines) {
        watched.push_back({line.ends[0].get(), POLLIN, 0});
        watched.push_back({line.ends[1].get(), POLLIN, 0});
      }
      (void)::poll(watched.data(), watched.size(), 10);
      for (std::size_t i = 1; i < watched.size(); ++i) {
        if (watched[i].revents != 0) {
          pass_on(lines[(i - 1) / 2], (i - 1) % 2);
        }
      }
      std::erase_if(lines, [](const Line& line) { return !line.ends[0]; });
      if (Socket visitor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)); visitor) {
        if (Socket onward = connection_to(to_)) {
          lines.push_back({{std::move(visitor), std::move(onward)}});
        }
      }
    }
  }

  void pass_on(Line& line, std::size_t from) {
    std::string bytes(1 << 16, '\0');
    const ssize_t got = line.ends[0] ? ::recv(line.ends[from].get(), bytes.data(), bytes.size(), MSG_DONTWAIT) : 0;
    if (got <= 0) {
      line.ends = {};
      return;
    }
    bytes.resize(static_cast<std::size_t>(got));
    if (from == 0) {
      if (altered_ >= line.said && altered_ - line.said < bytes.size()) {
        bytes[altered_ - line.said] ^= 0x40;
        has_altered_ = true;
      }
      line.said += bytes.size();
    }
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t put = ::send(line.ends[1 - from].get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (put <= 0) {
        line.ends = {};
        return;
      }
      at += static_cast<std::size_t>(put);
    }
  }

  Endpoint to_;
  std::size_t altered_;
  Socket listener_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> has_altered_ = false;
  std::thread thread_;
};

/// A store that gives rank 1 the address of a relay, which stands between it and rank 0.
class RelayedHost final : public SharedHost {
 public:
  explicit RelayedHost(std::size_t altered) : altered_(altered) {}

  void store_set(const std::string& key, std::string value) override {
    if (key.ends_with("/0")) {
      relay_ = std::make_unique<Relay>(endpoint_of(value), altered_);
      value = relay_->address();
    }
    SharedHost::store_set(key, std::move(value));
  }

  [[nodiscard]] bool has_altered() const noexcept { return relay_ && relay_->has_altered(); }

 private:
  std::size_t altered_;
  std::unique_ptr<Relay> relay_;
};

constexpr std::size_t handshake_bytes = 1000;  // the most that the side that connects needs

}  // namespace

TEST_CASE("tcp: nobody between two members alters what they sum") {
  const int n = attacks(4);
  for (int i = 0; i < n; ++i) {
    const std::size_t place = handshake_bytes + count * 3 * static_cast<std::size_t>(i) / static_cast<std::size_t>(n);
    INFO("byte " << place);
    RelayedHost host(place);
    std::string error;  // the error of rank 0, to which the altered bytes come
    run_ranks(
        host, "tcp", 2,
        [&](Rank& rank) {
          const std::string message = error_of([&] { (void)sums_right(rank, 30); });
          if (rank.rank() == 0) {
            error = message;
          }
        },
        protect("tls"));
    CHECK(host.has_altered());
    CHECK_THAT(error, Contains("member 1 (rank 1): it is lost: bytes from it were altered on the way"));
  }
}

TEST_CASE("tcp: where bytes are not protected, connections that somebody passes on prove nothing") {
  RelayedHost host(handshake_bytes);
  CHECK_THAT(error_of([&] { (void)right_sums(host, 2, "none", 0.3); }),
             Contains("past the deadline, waiting for member"));
  CHECK_FALSE(host.has_altered());
}

TEST_CASE("tcp: where bytes are protected they may be passed on, as networks do") {
  RelayedHost host(SIZE_MAX);
  CHECK(right_sums(host, 2, "tls") == 2);
}

namespace {

/// A store that gives rank 1 its own address in place of rank 0's.
class ReflectingHost final : public SharedHost {
 public:
  [[nodiscard]] std::string store_get(const std::string& key, std::int64_t deadline) override {
    return key.ends_with("/0") ? SharedHost::store_get(key.substr(0, key.size() - 1) + "1", deadline)
                               : SharedHost::store_get(key, deadline);
  }
};

/// A member of a group, with all that it needs to meet others.
struct Member {
  Member(std::uint32_t rank, std::uint32_t members, double seconds)
      : group{.rank = rank,
              .members = std::vector<std::uint32_t>(members),
              .name = "all",
              .deadline = sdk::Deadline::from_border(after(seconds))},
        listener(listen_on("127.0.0.1")),
        address(own_end(listener).text()) {
    std::iota(group.members.begin(), group.members.end(), 0U);
    raw.struct_size = sizeof(raw);
    raw.self = &is_ending;
    raw.now = [](void*) { return plugins::transport_clock(); };
    raw.aborted = [](void* self) -> std::uint32_t { return *static_cast<std::atomic<bool>*>(self) ? 1 : 0; };
    host = sdk::TransportHost(&raw);
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /// "met", or the error.
  std::string meet(const std::vector<std::string>& addresses) {
    Rendezvous rendezvous({.group = group,
                           .host = host,
                           .secret = secret,
                           .protection = protection,
                           .name = name,
                           .address_of = [&](std::uint32_t member) { return std::optional(addresses[member]); }},
                          std::move(listener));
    try {
      met = rendezvous.run();
    } catch (const sdk::TransportError& error) {
      return error.what();
    }
    return "met";
  }

  sdk::GroupSpec group;
  std::atomic<bool> is_ending = false;  ///< whether the job is ending
  sr_transport_host raw = {};
  sdk::TransportHost host;
  tls::Key secret = {7};
  Protection protection = Protection::tls;
  std::string name = "run/group";
  Socket listener;
  std::string address;
  Rendezvous::Met met;
};

/// What meet() gives for two members that try to meet.
std::array<std::string, 2> meeting_of(Member& one, Member& other) {
  const std::vector<std::string> addresses = {one.address, other.address};
  auto first = std::async(std::launch::async, [&] { return one.meet(addresses); });
  const std::string second = other.meet(addresses);
  return {first.get(), second};
}

}  // namespace

TEST_CASE("tcp: a member that is sent to itself refuses the connection") {
  ReflectingHost host;
  const std::string error = error_of([&] { (void)right_sums(host, 2, GENERATE("tls", "none"), 0.3); });
  CHECK_THAT(error, Contains("past the deadline, waiting for member"));
}

TEST_CASE("tcp: members meet only with one secret, one protection and one group") {
  Member one(0, 2, 1);
  Member other(1, 2, 1);
  SECTION("the same") { CHECK(meeting_of(one, other) == std::array<std::string, 2>{"met", "met"}); }
  SECTION("another secret") {
    other.secret = {8};
    const auto [first, second] = meeting_of(one, other);
    CHECK_THAT(first, Contains("past the deadline, waiting for member 1") && Contains("strangers were dropped"));
    CHECK_THAT(second, Contains("past the deadline, waiting for member 0") && Contains("strangers were dropped"));
  }
  SECTION("another protection") {
    other.protection = Protection::none;
    CHECK_THAT(meeting_of(one, other)[0], Contains("past the deadline, waiting for member 1"));
  }
  SECTION("another group, or generation of it") {
    other.name = "run/group/1";
    CHECK_THAT(meeting_of(one, other)[0], Contains("past the deadline, waiting for member 1"));
  }
}

TEST_CASE("tcp: a member that listens no more is lost") {
  Member one(0, 2, 30);
  const std::string address = Member(1, 2, 30).address;
  CHECK_THAT(one.meet({one.address, address}), Contains("member 1 (rank 1) is lost: Connection refused"));
}

TEST_CASE("tcp: members keep no other member out, however many come at a time") {
  constexpr std::uint32_t members = 40;
  std::vector<std::unique_ptr<Member>> all;
  std::vector<std::string> addresses;
  for (std::uint32_t member = 0; member < members; ++member) {
    all.push_back(std::make_unique<Member>(member, members, 60));
    addresses.push_back(all.back()->address);
  }
  std::vector<std::future<std::string>> meetings;
  for (const auto& member : all) {
    meetings.push_back(std::async(std::launch::async, [&] { return member->meet(addresses); }));
  }
  int met = 0;
  for (auto& meeting : meetings) {
    met += meeting.get() == "met" ? 1 : 0;
  }
  CHECK(met == members);
  CHECK(std::ranges::all_of(all, [](const auto& member) { return member->met.strangers == 0; }));
}

namespace {

bool is_dropped(const Socket& socket, int milliseconds) {
  pollfd watched = {socket.get(), POLLIN, 0};
  return ::poll(&watched, 1, milliseconds) == 1;
}

}  // namespace

TEST_CASE(
    "tcp: as many strangers are heard as are allowed beside the group, and each more costs the oldest his place") {
  constexpr std::uint32_t members = 5;
  Member one(0, members, 60);
  const Member silent(1, members, 60);
  const Endpoint address = endpoint_of(one.address);
  auto meeting =
      std::async(std::launch::async, [&] { return one.meet(std::vector<std::string>(members, silent.address)); });

  std::vector<Socket> strangers;
  for (std::size_t i = 0; i < Rendezvous::most_strangers + members + 2; ++i) {
    strangers.push_back(connection_to(address));
  }
  CHECK(is_dropped(strangers[1], 10'000));  // the last one has been accepted
  CHECK(is_dropped(strangers[0], 0));
  CHECK_FALSE(is_dropped(strangers[2], 200));
  CHECK(std::ranges::count_if(strangers, [](const Socket& each) { return is_dropped(each, 0); }) == 2);

  one.is_ending = true;
  CHECK_THAT(meeting.get(), Contains("the job ends"));
}

TEST_CASE("tcp: a member that listens and says nothing is waited for until the deadline or the end of the job") {
  Member one(0, 2, GENERATE(0.05, 1e6));
  const Member silent(1, 2, 30);
  const bool ends = one.group.deadline.left() > std::chrono::hours(1);
  auto meeting = std::async(std::launch::async, [&] { return one.meet({one.address, silent.address}); });
  one.is_ending = ends;
  CHECK_THAT(meeting.get(), Contains(ends ? "the job ends" : "past the deadline, waiting for member 1 (rank 1)"));
}

TEST_CASE("tcp: ranks meet over IPv6, by a name with several addresses, and again under the same id") {
  const std::string address = GENERATE("::1", "localhost");
  std::string why = "nothing";
  try {
    (void)listen_on(address);
  } catch (const std::runtime_error& error) {
    why = error.what();
  }
  if (address == "::1" && why != "nothing") {
    WARN("not tried over IPv6, which this machine lacks: " << why);
    return;
  }
  SharedHost host;
  std::array<int, 2> right = {};
  const auto act = [&](std::uint32_t number) {
    Rank rank(host, "tcp", number, 2, address);
    right[number] += sums_right(rank, 30) ? 1 : 0;
    right[number] += sums_right(rank, 30) ? 1 : 0;
  };
  std::thread first(act, 0);
  act(1);
  first.join();
  CHECK(right == std::array<int, 2>{2, 2});
}

TEST_CASE("tcp: an address that is every one of this machine's, or none of them, is refused") {
  SharedHost host;
  Rank rank(host, "tcp", 0, 2, GENERATE("0.0.0.0", "::", "192.0.2.1"));
  CHECK_THAT(error_of([&] { (void)rank.group(1, 1); }),
             Contains("cannot listen on") && Contains("one of this machine's"));
}

TEST_CASE("tcp: a host that gives no secret is refused") {
  SharedHost host;
  auto transport = plugins::Transport::load({SHARDRUN_BUILT_PLUGINS}, "tcp");
  transport.open({.world_size = 2, .local_world_size = 2, .job = "test", .address = "127.0.0.1"}, host);
  const std::vector<std::uint32_t> members = {0, 1};
  CHECK_THAT(error_of([&] {
               (void)transport.group(
                   {.members = members, .name = "all", .id = 1, .deadline = sdk::Deadline::from_border(after(1))});
             }),
             Contains("gives no secret"));
}
