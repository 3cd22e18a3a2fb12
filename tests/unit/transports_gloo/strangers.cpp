// Others on the machine: those who come to a member's listener, and those who stand between two members.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/attacks.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"
#include "transports/gloo/socket.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;
using gloo_transport::Endpoint;
using gloo_transport::Socket;

namespace {

constexpr std::array protections = {"none", "integrity", "encrypt"};

plugins::TransportSetup protect(const std::string& how) { return {.options = {{"protect", how}}}; }

Socket connection_to(const Endpoint& address) {
  Socket socket(::socket(address.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.address), address.bytes) != 0) {
    return {};
  }
  return socket;
}

void say(const Socket& socket, const std::vector<std::uint8_t>& bytes) {
  (void)::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

void reset(Socket socket) {
  const linger at_once = {1, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

/// A transport's store in which each address is known to an attacker before it is to any member, and attacked on until
/// nobody listens there any more.
class ScannedHost final : public SharedHost {
 public:
  using Attack = std::function<void(const Endpoint&, int times, std::vector<Socket>& held)>;

  explicit ScannedHost(Attack attack) : attack_(std::move(attack)) {}
  ~ScannedHost() override {
    for (std::thread& each : attackers_) {
      each.join();
    }
  }

  void store_set(const std::string& key, std::string value) override {
    const Endpoint address = gloo_transport::endpoint_of(value);
    {
      const std::lock_guard lock(mutex_);
      attack_(address, more_than_are_heard, held_);
      attackers_.emplace_back([this, address] {
        while (connection_to(address)) {
          std::vector<Socket> held;
          attack_(address, 10, held);
          ++attacks_meanwhile_;
        }
      });
    }
    SharedHost::store_set(key, std::move(value));
  }

  [[nodiscard]] int attacks_meanwhile() const noexcept { return attacks_meanwhile_; }

 private:
  static constexpr int more_than_are_heard = 100;

  std::mutex mutex_;
  Attack attack_;
  std::vector<Socket> held_;
  std::vector<std::thread> attackers_;
  std::atomic<int> attacks_meanwhile_ = 0;
};

struct Scan {
  const char* name;
  ScannedHost::Attack attack;
};

std::vector<Scan> scans() {
  const auto each = [](auto act) {
    return [act](const Endpoint& address, int times, std::vector<Socket>& held) {
      for (int i = 0; i < times; ++i) {
        if (Socket socket = connection_to(address)) {
          act(std::move(socket), held);
        }
      }
    };
  };
  std::vector<std::uint8_t> garbage(1000);
  for (std::size_t i = 0; i < garbage.size(); ++i) {
    garbage[i] = static_cast<std::uint8_t>(i * 2654435761U >> 7U);
  }
  std::vector<std::uint8_t> preamble(64);  // of Gloo's: a message of 2^40 bytes
  preamble[5] = preamble[8] = preamble[37] = 1;
  std::vector<std::uint8_t> hello(44);
  const std::string magic = "SRGLOO\x01\n\x01";
  std::copy(magic.begin(), magic.end(), hello.begin());
  std::vector<std::uint8_t> proof = hello;
  proof.resize(hello.size() + 32);
  return {
      {"connects and closes", each([](const Socket&, std::vector<Socket>&) {})},
      {"connects and resets", each([](Socket socket, std::vector<Socket>&) { reset(std::move(socket)); })},
      {"connects and holds", each([](Socket socket, std::vector<Socket>& held) { held.push_back(std::move(socket)); })},
      {"says garbage", each([garbage](Socket socket, std::vector<Socket>& held) {
         say(socket, garbage);
         held.push_back(std::move(socket));
       })},
      {"says what Gloo would", each([preamble](Socket socket, std::vector<Socket>& held) {
         say(socket, preamble);
         held.push_back(std::move(socket));
       })},
      {"says half of a member's first words", each([hello](Socket socket, std::vector<Socket>& held) {
         say(socket, {hello.begin(), hello.begin() + 20});
         held.push_back(std::move(socket));
       })},
      {"says a member's first words", each([hello](Socket socket, std::vector<Socket>& held) {
         say(socket, hello);
         held.push_back(std::move(socket));
       })},
      {"says a proof that is none", each([proof](Socket socket, std::vector<Socket>& held) {
         say(socket, proof);
         held.push_back(std::move(socket));
       })},
  };
}

constexpr std::size_t count = 100'000;

/// What an all_reduce of two ranks' ones is to each; 0 where it is not twos alone.
float all_twos(Rank& rank, double seconds) {
  auto group = rank.group(1, seconds);
  std::vector<float> data(count, 1.0F);
  auto op = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, data.size(), data)}, after(30));
  run(op);
  return std::ranges::all_of(data, [&](float value) { return value == static_cast<float>(rank.size()); }) ? 2.0F : 0.0F;
}

}  // namespace

TEST_CASE("gloo: strangers at a listener neither end a run nor join it") {
  for (const char* const protection : protections) {
    int failed = 0;
    int wrong = 0;
    int meanwhile = 0;
    const std::vector<Scan> all = scans();
    for (int i = 0; i < attacks(static_cast<int>(all.size())); ++i) {
      const Scan& scan = all[static_cast<std::size_t>(i) % all.size()];
      INFO(protection << ", " << scan.name);
      ScannedHost host(scan.attack);
      std::array<float, 3> sums = {};
      const std::string error = error_of([&] {
        run_ranks(
            host, "gloo", 3, [&](Rank& rank) { sums[rank.rank()] = all_twos(rank, 30); }, protect(protection));
      });
      CHECK(error == "nothing");
      failed += error == "nothing" ? 0 : 1;
      wrong += sums == std::array<float, 3>{2, 2, 2} ? 0 : 1;
      meanwhile += host.attacks_meanwhile();
    }
    CHECK(failed == 0);
    CHECK(wrong == 0);
    CHECK(meanwhile > 0);
  }
}

namespace {

/// What this process writes to standard error from here on.
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
    const ssize_t bytes = ::pread(file_.get(), text.data(), text.size(), 0);
    text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
    return text;
  }

 private:
  Socket before_;
  Socket file_;
};

/// A transport's store in which rank 0's address stands only once rank 1 has dropped a stranger.
class LateHost final : public SharedHost {
 public:
  void store_set(const std::string& key, std::string value) override {
    if (key.ends_with("/0")) {
      std::string first = key;
      first.back() = '1';
      const Endpoint address = gloo_transport::endpoint_of(store_get(first, after(30)));
      // The first may come before rank 1 begins to wait.
      for (int i = 0; i < 5 && was_heard_; ++i) {
        const Socket stranger = connection_to(address);
        say(stranger, std::vector<std::uint8_t>(64, 'x'));
        pollfd watched = {stranger.get(), POLLIN, 0};
        was_heard_ = ::poll(&watched, 1, 10'000) == 1;
      }
    }
    SharedHost::store_set(key, std::move(value));
  }

  [[nodiscard]] bool was_heard() const noexcept { return was_heard_; }

 private:
  bool was_heard_ = true;
};

}  // namespace

TEST_CASE("gloo: a listener is served while its member waits for addresses, and strangers are counted") {
  LateHost host;
  StandardError said;
  std::atomic<int> right = 0;
  run_ranks(host, "gloo", 2, [&](Rank& rank) { right += all_twos(rank, 30) == 2.0F ? 1 : 0; });
  CHECK(right == 2);
  CHECK(said.end() == "transport gloo: while the group 'all' was connected, 5 connections of strangers were dropped\n");
  CHECK(host.was_heard());
}

TEST_CASE("gloo: no strangers are reported if none came") {
  StandardError said;
  std::atomic<int> right = 0;
  run_ranks("gloo", 2, [&](Rank& rank) { right += all_twos(rank, 30) == 2.0F ? 1 : 0; });
  CHECK(right == 2);
  CHECK(said.end().empty());
}

namespace {

/// Passes on the bytes of connections to another address, in both directions, and alters one of those that the one who
/// connects says.
class Relay {
 public:
  Relay(Endpoint to, std::size_t altered)
      : to_(to), altered_(altered), listener_(gloo_transport::listen_on("127.0.0.1")), thread_([this] { serve(); }) {}
  ~Relay() {
    stopping_ = true;
    thread_.join();
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  [[nodiscard]] std::string address() const { return gloo_transport::own_end(listener_).text(); }
  /// Whether it has altered a byte.
  [[nodiscard]] bool has_altered() const noexcept { return has_altered_; }

 private:
  struct Line {
    std::array<Socket, 2> ends;
    std::size_t said = 0;  ///< by the first
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
    std::vector<std::uint8_t> bytes(1 << 16);
    const ssize_t got = line.ends[0] ? ::recv(line.ends[from].get(), bytes.data(), bytes.size(), MSG_DONTWAIT) : 0;
    if (got <= 0) {
      line.ends = {};
      return;
    }
    bytes.resize(static_cast<std::size_t>(got));
    if (from == 0) {
      if (altered_ >= line.said && altered_ - line.said < bytes.size()) {
        bytes[altered_ - line.said] ^= 0x40U;
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

/// A store that tells rank 1 the address of somebody else, who stands between it and rank 0.
class RelayedHost final : public SharedHost {
 public:
  explicit RelayedHost(std::size_t altered) : altered_(altered) {}

  void store_set(const std::string& key, std::string value) override {
    if (key.ends_with("/0")) {
      relay_ = std::make_unique<Relay>(gloo_transport::endpoint_of(value), altered_);
      value = relay_->address();
    }
    SharedHost::store_set(key, std::move(value));
  }

  [[nodiscard]] bool has_altered() const noexcept { return relay_ && relay_->has_altered(); }

 private:
  std::size_t altered_;
  std::unique_ptr<Relay> relay_;
};

struct Relayed {
  std::string error;  ///< "nothing" where there was none
  std::array<float, 2> sums = {};
  bool has_altered = false;
};

Relayed relayed(const std::string& protection, std::size_t altered, double seconds) {
  Relayed told;
  RelayedHost host(altered);
  told.error = error_of([&] {
    run_ranks(
        host, "gloo", 2, [&](Rank& rank) { told.sums[rank.rank()] = all_twos(rank, seconds); }, protect(protection));
  });
  told.has_altered = host.has_altered();
  return told;
}

constexpr std::size_t handshake_bytes = 76;    // of the side that connects
constexpr std::size_t said_bytes = count * 4;  // of an all_reduce between two, at least

}  // namespace

TEST_CASE("gloo: nobody between two members alters what they sum") {
  const int n = attacks(4);
  for (const char* const protection : {"integrity", "encrypt"}) {
    for (int i = 0; i < n; ++i) {
      // All over what is said: the preambles, what they agree on, and the data.
      const std::size_t place = handshake_bytes +
                                said_bytes * static_cast<std::size_t>(i) / static_cast<std::size_t>(n) +
                                17 * static_cast<std::size_t>(i);
      INFO(protection << ", byte " << place);
      const Relayed told = relayed(protection, place, 30);
      CHECK(told.has_altered);
      CHECK(told.sums[0] == 0.0F);
      CHECK_THAT(told.error, Contains("member "));
    }
  }
}

TEST_CASE("gloo: an altered byte is detected by its receiver, and the error says so") {
  const std::string protection = GENERATE("integrity", "encrypt");
  const std::size_t place = GENERATE(as<std::size_t>(), 100, 200'000);
  RelayedHost host(handshake_bytes + place);
  std::string error;
  run_ranks(
      host, "gloo", 2,
      [&](Rank& rank) {
        const std::string message = error_of([&] { (void)all_twos(rank, 30); });
        if (rank.rank() == 0) {
          error = message;
        }
      },
      protect(protection));
  CHECK_THAT(
      error,
      Contains("member 1 (rank 1) is lost: bytes from it were altered on the way (protect = " + protection + ")"));
}

TEST_CASE("gloo: where bytes are not protected, connections that somebody passes on prove nothing") {
  for (int i = 0; i < attacks(2); ++i) {
    const Relayed told = relayed("none", handshake_bytes + 1000 * static_cast<std::size_t>(i), 0.2);
    CHECK_FALSE(told.has_altered);
    CHECK(told.sums == std::array<float, 2>{});
    CHECK_THAT(told.error, Contains("past the deadline, waiting for member"));
  }
}

TEST_CASE("gloo: protected bytes may be relayed") {
  const Relayed told = relayed(GENERATE("integrity", "encrypt"), SIZE_MAX, 30);
  CHECK(told.error == "nothing");
  CHECK(told.sums == std::array<float, 2>{2, 2});
}

TEST_CASE("gloo: a host that gives no secret is refused") {
  SharedHost host;
  auto transport = plugins::Transport::load({SHARDRUN_BUILT_PLUGINS}, "gloo");
  transport.open({.world_size = 2, .local_world_size = 2, .job = "test", .address = "127.0.0.1"}, host);
  const std::vector<std::uint32_t> members = {0, 1};
  CHECK_THAT(error_of([&] {
               (void)transport.group(
                   {.members = members, .name = "all", .id = 1, .deadline = sdk::Deadline::from_border(after(1))});
             }),
             Contains("gives no secret"));
}
