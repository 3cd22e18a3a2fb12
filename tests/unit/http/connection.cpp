#include "core/http/connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/local/stream_protocol.hpp>

#include "core/files/descriptor.h"
#include "core/http/stream.h"
#include "tests/support/catch.h"

using namespace shardrun;
using Catch::Contains;

namespace {

using Local = boost::asio::local::stream_protocol;

/// A connection whose other end is a socket of the test.
class ConnectionCase {
 public:
  explicit ConnectionCase(std::function<void(http::ConnectionSettings&)> change = {}) {
    settings_ = {.most_body_bytes = 100, .most_bodies_bytes = 1000, .admit = [](const auto&) { return std::nullopt; }};
    if (change) {
      change(settings_);
    }
    std::array<int, 2> ends = {};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    client_ = files::FileDescriptor(ends[0]);
    Local::socket socket(io_, Local(), ends[1]);
    connection_ = std::make_shared<http::Connection>(
        io_, http::make_stream(std::move(socket), nullptr), "test", settings_, bodies,
        http::Connection::Events{
            .asked =
                [this](const auto& connection, http::Request request) {
                  asked.push_back(request.method + " " + request.path + " " + request.body);
                  if (answer) {
                    answer(*connection);
                  }
                },
            .answered = [this](const auto&, const auto&, int status, auto, auto) { statuses.push_back(status); },
            .closed = [this](auto&) { is_closed = true; }});
    connection_->start();
  }

  void send(std::string_view bytes) {
    REQUIRE(::send(client_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes));
    run();
  }
  /// Handles what has happened.
  void run() {
    io_.restart();
    io_.poll();
  }
  void run_to_close() {
    io_.restart();
    while (!is_closed && io_.run_one() > 0) {
    }
  }
  std::string received() {
    std::string bytes(1 << 20, '\0');
    const ssize_t count = ::recv(client_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    return bytes.substr(0, count > 0 ? static_cast<std::size_t>(count) : 0);
  }
  void leave() {
    client_ = {};
    run();
  }
  http::Connection& connection() { return *connection_; }

  std::vector<std::string> asked;
  std::vector<int> statuses;
  std::function<void(http::Connection&)> answer;
  std::size_t bodies = 0;
  bool is_closed = false;

 private:
  http::ConnectionSettings settings_;
  boost::asio::io_context io_;
  files::FileDescriptor client_;
  std::shared_ptr<http::Connection> connection_;
};

constexpr const char* get = "GET /a?b=c HTTP/1.1\r\nHost: a\r\n\r\n";

}  // namespace

TEST_CASE("a request may come byte by byte, and the next behind it waits", "[http]") {
  ConnectionCase one;
  const std::string post = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
  for (const char each : post) {
    one.send(std::string(1, each));
  }
  one.send(get);
  CHECK(one.asked == std::vector<std::string>{"POST /x abc"});
  one.connection().respond({.body = "first"});
  one.run();
  CHECK(one.asked == std::vector<std::string>{"POST /x abc", "GET /a "});
  one.connection().respond({.status = 404, .body = "second"});
  one.run();
  const std::string received = one.received();
  CHECK_THAT(received, Contains("HTTP/1.1 200 OK\r\n") && Contains("HTTP/1.1 404 Not Found\r\n"));
  CHECK(received.find("first") < received.find("second"));
  CHECK(one.statuses == std::vector<int>{200, 404});
  CHECK(one.bodies == 0);
  CHECK_FALSE(one.is_closed);
}

TEST_CASE("a client that leaves ends its request, and no longer counts", "[http]") {
  ConnectionCase one;
  one.send(get);
  bool is_gone = false;
  one.connection().on_gone([&] { is_gone = true; });
  one.leave();
  CHECK(is_gone);
  CHECK(one.is_closed);
  CHECK(one.statuses == std::vector<int>{0});
  ConnectionCase half;
  half.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 90\r\n\r\nabc");
  CHECK(half.bodies == 3);
  half.leave();
  CHECK(half.bodies == 0);
}

TEST_CASE("events are chunks, and a client that does not read them is left", "[http]") {
  ConnectionCase one;
  one.send(get);
  one.connection().begin_events();
  one.connection().send_event("{}");
  one.connection().end_events();
  one.run();
  CHECK_THAT(one.received(),
             Contains("Transfer-Encoding: chunked\r\n") && Contains("\r\n\r\na\r\ndata: {}\n\n\r\n0\r\n\r\n"));
  ConnectionCase slow([](http::ConnectionSettings& settings) { settings.most_unsent_bytes = 100'000; });
  slow.send(get);
  bool is_gone = false;
  slow.connection().on_gone([&] { is_gone = true; });
  slow.connection().begin_events();
  std::size_t sent = 0;
  for (; !is_gone && sent < 10'000'000; sent += 1000) {
    slow.connection().send_event(std::string(1000, 'x'));
    slow.run();
  }
  CHECK(is_gone);
  CHECK(sent < 2'000'000);  // the system's buffers, and 100 kB
}

TEST_CASE("a request that does not come to its end is answered, and the connection ends", "[http]") {
  ConnectionCase one([](http::ConnectionSettings& settings) { settings.receiving = std::chrono::milliseconds(1); });
  one.send("GET / HTTP/1.1\r\n");
  one.run_to_close();
  CHECK_THAT(one.received(), Contains("HTTP/1.1 408 ") && Contains("\r\nContent-Type: text/plain; charset=utf-8\r\n") &&
                                 Contains("\r\nX-Content-Type-Options: nosniff\r\n") &&
                                 Catch::EndsWith("\r\n\r\nthe request was not complete in time\n"));
  ConnectionCase idle([](http::ConnectionSettings& settings) { settings.idle = std::chrono::milliseconds(1); });
  idle.run_to_close();
  CHECK(idle.received().empty());
}

TEST_CASE("bodies are bounded, each and together", "[http]") {
  ConnectionCase large([](http::ConnectionSettings& settings) {
    settings.refusal = [](int status, const std::string& message) {
      return http::Response{.status = status, .body = "{" + message + "}"};
    };
  });
  large.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n");
  CHECK_THAT(large.received(), Contains("HTTP/1.1 413 ") && Contains("\r\nContent-Type: application/json\r\n") &&
                                   Catch::EndsWith("{the body has more than 100 bytes}"));
  ConnectionCase chunked;
  chunked.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n80\r\n" + std::string(128, 'a') +
               "\r\n");
  CHECK_THAT(chunked.received(), Contains("HTTP/1.1 413 "));
  ConnectionCase many;
  many.bodies = 990;
  many.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n" + std::string(20, 'a'));
  CHECK_THAT(many.received(), Contains("HTTP/1.1 503 "));
  CHECK(many.bodies == 990);
  ConnectionCase expecting;
  expecting.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  CHECK(expecting.received() == "HTTP/1.1 100 Continue\r\n\r\n");
}

TEST_CASE("requests wait until the client takes the responses before them", "[http]") {
  ConnectionCase one;
  one.answer = [](http::Connection& connection) { connection.respond({.body = std::string(500'000, 'x')}); };
  std::string many;
  for (int i = 0; i < 40; ++i) {
    many += get;
  }
  one.send(many);
  CHECK(one.asked.size() < 10);  // the system's buffers hold these responses
  std::size_t received = 0;
  for (std::size_t count = 1; count > 0; received += count) {
    count = one.received().size();
    one.run();
  }
  CHECK(one.asked.size() == 40);
  CHECK(received > 20'000'000);
}

TEST_CASE("a client that sends much behind a request in work is left", "[http]") {
  ConnectionCase one;
  one.send(get);
  bool is_gone = false;
  one.connection().on_gone([&] { is_gone = true; });
  one.send(std::string(60'000, 'x'));
  CHECK_FALSE(is_gone);
  one.send(std::string(60'000, 'x'));
  CHECK(is_gone);
}

TEST_CASE("extensions of chunks and trailers are bounded", "[http]") {
  for (const char* const begin : {"1;", "0\r\nA: "}) {
    ConnectionCase one;
    one.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + (begin + std::string(40'000, 'a')));
    CHECK_THAT(one.received(), Contains("HTTP/1.1 431 ") && Contains("extensions of a chunk, or trailers"));
    CHECK(one.asked.empty());
  }
}

TEST_CASE("requests whose end or host is ambiguous are refused", "[http]") {
  for (const char* const fields :
       {"Host: a\r\nTransfer-Encoding: chunked, gzip\r\n", "Host: a\r\nTransfer-Encoding: xchunked\r\n",
        "Host: a\r\nTransfer-Encoding: gzip\r\nContent-Length: 3\r\n",
        "Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n", "", "Host: a\r\nHost: b\r\n"}) {
    INFO(fields);
    ConnectionCase one;
    one.send(std::string("POST / HTTP/1.1\r\n") + fields + "\r\nabc");
    CHECK_THAT(one.received(), Contains("HTTP/1.1 400 ") && Contains("Connection: close"));
    CHECK(one.asked.empty());
  }
  ConnectionCase older;
  older.send("GET / HTTP/1.0\r\n\r\n");
  CHECK(older.asked.size() == 1);
}
