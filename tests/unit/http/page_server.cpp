#include "core/http/page_server.h"

#include <poll.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <deque>
#include <stdexcept>

#include "core/base/error.h"
#include "tests/support/catch.h"

using namespace shardrun;
using Catch::Contains;

namespace {

namespace asio = boost::asio;

/// A client's connection to a server at http://ADDRESS:PORT.
class Client {
 public:
  explicit Client(const http::PageServer& server) {
    const std::optional<Endpoint> endpoint = endpoint_of(server.address().substr(std::string("http://").size()));
    REQUIRE(endpoint);
    socket_.connect({asio::ip::make_address(endpoint->host), endpoint->port});
  }

  /// Sends a request, and returns everything until the server closes the connection.
  std::string ask(const std::string& first_line, const std::string& host = "localhost") {
    send(first_line + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
    return rest();
  }
  /// Whether the server has sent something, or closed the connection, within these ms.
  bool hears(int ms) {
    pollfd awaited = {.fd = socket_.native_handle(), .events = POLLIN, .revents = 0};
    return ::poll(&awaited, 1, ms) == 1;
  }
  void send(const std::string& text) { asio::write(socket_, asio::buffer(text)); }
  std::string rest() {
    std::string received;
    boost::system::error_code ended;
    asio::read(socket_, asio::dynamic_buffer(received), ended);
    return received;
  }

 private:
  asio::io_context io_;
  asio::ip::tcp::socket socket_{io_};
};

std::optional<http::Response> page_at(const std::string& path) {
  if (path == "/broken") {
    throw std::runtime_error("no numbers");
  }
  return path == "/page" ? std::optional(http::Response{.type = "text/plain", .body = "a page"}) : std::nullopt;
}

std::string ask(const http::PageServer& server, const std::string& first_line, const std::string& host = "localhost") {
  return Client(server).ask(first_line, host);
}

}  // namespace

TEST_CASE("a page server answers GET and HEAD of the pages that there are", "[http]") {
  const http::PageServer server(Endpoint{}, page_at);
  CHECK_THAT(server.address(), Catch::StartsWith("http://127.0.0.1:") && !Catch::EndsWith(":0"));
  CHECK_THAT(ask(server, "GET /page?x=1"),
             Catch::StartsWith("HTTP/1.1 200 OK\r\n") && Catch::EndsWith("\r\n\r\na page"));
  CHECK_THAT(ask(server, "HEAD /page"), Contains("Content-Length: 6\r\n") && Catch::EndsWith("\r\n\r\n"));
  CHECK_THAT(ask(server, "GET /other"), Catch::StartsWith("HTTP/1.1 404 "));
  CHECK_THAT(ask(server, "GET /broken"), Catch::StartsWith("HTTP/1.1 500 ") && Contains("no numbers"));
  CHECK_THAT(ask(server, "POST /page"), Catch::StartsWith("HTTP/1.1 405 ") && Contains("Allow: GET, HEAD\r\n"));
}

TEST_CASE("a page server at a loopback address answers requests to this host alone", "[http]") {
  const http::PageServer server(Endpoint{}, page_at);
  CHECK_THAT(ask(server, "GET /page", "127.0.0.1:80"), Contains(" 200 "));
  CHECK_THAT(ask(server, "GET /page", "[::1]:80"), Contains(" 200 "));
  CHECK_THAT(ask(server, "GET /page", "elsewhere.example"), Catch::StartsWith("HTTP/1.1 403 "));
}

TEST_CASE("clients that ask nothing, or half of a request, keep no other waiting", "[http]") {
  const http::PageServer server(Endpoint{}, page_at);
  const std::string beginning = GENERATE("", "GET /page HTTP/1.1\r\n");
  std::deque<Client> silent;
  for (int i = 0; i < 64; ++i) {
    silent.emplace_back(server).send(beginning);
  }
  Client asking(server);
  asking.send("GET /page HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  REQUIRE(asking.hears(5'000));  // less than the time after which the silent ones are closed
  CHECK_THAT(asking.rest(), Catch::EndsWith("a page"));
  CHECK(silent.front().rest().empty());
  CHECK_FALSE(silent.back().hears(0));
}

TEST_CASE("a page server that ends closes its connections", "[http]") {
  std::optional<http::PageServer> server(std::in_place, Endpoint{}, page_at);
  Client idle(*server);
  static_cast<void>(ask(*server, "GET /page"));  // the connection before it has been accepted
  server.reset();
  CHECK(idle.rest().empty());
}

TEST_CASE("a page server says why it cannot listen", "[http]") {
  const http::PageServer server(Endpoint{}, page_at);
  const std::optional<Endpoint> taken = endpoint_of(server.address().substr(std::string("http://").size()));
  CHECK_THROWS_WITH(http::PageServer(*taken, page_at),
                    "cannot listen at " + to_string(*taken) +
                        ": Address already in use: choose another address or port, or 0 for any free port");
}
