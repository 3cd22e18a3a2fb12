#include "core/http/page_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/http/listener.h"
#include "core/http/stream.h"

namespace shardrun::http {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr std::size_t most_page_connections = 64;

}  // namespace

class PageServer::Loop {
 public:
  Loop(const Endpoint& endpoint, Handler handler) : handler_(std::move(handler)) {
    try {
      listen(endpoint);
    } catch (const boost::system::system_error& error) {
      throw Error(ErrorCode::usage,
                  fmt::format("cannot listen at {}: {}: choose another address or port, or 0 for any free port",
                              to_string(endpoint), error.code().message()));
    }
    settings_ = {.receiving = std::chrono::seconds(10),
                 .idle = std::chrono::seconds(30),
                 .admit = [this](const Request& request) { return admit(request); }};
    listener_.accept();
    thread_ = thread_without_signals("the thread that serves pages", [this] { io_.run(); });
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop() {
    asio::post(io_, [this] {
      listener_.close();
      for (const auto& each : std::set(connections_)) {
        each->close();
      }
      io_.stop();
    });
    thread_.join();
  }

  [[nodiscard]] const std::string& address() const noexcept { return address_; }

 private:
  void listen(const Endpoint& endpoint) {
    tcp::resolver resolver(io_);
    const tcp::endpoint found =
        *resolver.resolve(endpoint.host, std::to_string(endpoint.port), tcp::resolver::passive).begin();
    const tcp::endpoint bound = listener_.open(found);
    is_loopback_ = bound.address().is_loopback();
    address_ = "http://" + to_string(Endpoint{.host = bound.address().to_string(), .port = bound.port()});
  }

  /// Takes a connection. At the limit, closes the one that has been silent longest, so that clients that ask nothing or
  /// do not read make no other client wait.
  void receive(Listener::Socket socket) {
    if (connections_.size() >= most_page_connections) {
      const std::shared_ptr<Connection> silent =
          *std::ranges::min_element(connections_, {}, [](const auto& each) { return each->moved_at(); });
      silent->close();
    }
    const auto connection = std::make_shared<Connection>(
        io_, make_stream(std::move(socket), nullptr), "", settings_, bodies_,
        Connection::Events{.asked = [this](const auto& from, const Request& request) { answer(*from, request); },
                           .answered = [](const auto&...) {},
                           .closed = [this](Connection& closed) { connections_.erase(closed.shared_from_this()); }});
    connections_.insert(connection);
    connection->start();
  }

  [[nodiscard]] std::optional<Response> admit(const Request& request) const {
    if (is_loopback_ && !names_loopback(request)) {
      return text_response(403, "this server answers requests to this host alone\n");
    }
    if (request.method != "GET" && request.method != "HEAD") {
      Response refused = text_response(405, "this server takes GET and HEAD\n");
      refused.fields.emplace_back("Allow", "GET, HEAD");
      return refused;
    }
    return std::nullopt;
  }

  void answer(Connection& connection, const Request& request) {
    try {
      const std::optional<Response> page = handler_(request.path);
      connection.respond(page ? *page : text_response(404, "there is nothing here\n"));
    } catch (const std::exception& error) {
      connection.respond(text_response(500, fmt::format("the page could not be made: {}\n", error.what())));
    }
  }

  const Handler handler_;
  ConnectionSettings settings_;
  std::string address_;
  asio::io_context io_{1};
  Listener listener_{io_, [] { return true; },
                     [this](Listener::Socket socket, const std::string&) { receive(std::move(socket)); }};
  std::set<std::shared_ptr<Connection>> connections_;
  std::size_t bodies_ = 0;
  bool is_loopback_ = false;
  std::thread thread_;
};

PageServer::PageServer(const Endpoint& endpoint, Handler handler)
    : loop_(std::make_unique<Loop>(endpoint, std::move(handler))) {}

PageServer::~PageServer() = default;

const std::string& PageServer::address() const noexcept { return loop_->address(); }

}  // namespace shardrun::http
