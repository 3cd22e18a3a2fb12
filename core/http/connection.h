#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/http/stream.h"

namespace shardrun::http {

struct Request {
  std::string method;
  std::string path;  ///< without a query
  boost::beast::http::fields fields;
  std::string body;
};

struct Response {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> fields = {};  ///< besides those of every response
};

[[nodiscard]] Response text_response(int status, std::string text);

/// Settings that connections share.
struct ConnectionSettings {
  std::size_t most_body_bytes = 0;                        ///< limit for the body of a request
  std::size_t most_bodies_bytes = 0;                      ///< limit for all bodies that are being received
  std::chrono::milliseconds receiving{30'000};            ///< from a request's first byte to its last
  std::chrono::milliseconds idle{75'000};                 ///< limit for the time between requests
  std::chrono::milliseconds sending{30'000};              ///< limit for a time in which the client takes no byte
  std::size_t most_unsent_bytes = std::size_t{1} << 20U;  ///< limit for events that the client has not taken

  /// Called with the header of a request. A response refuses the request, and ends the connection if a body follows.
  std::function<std::optional<Response>(const Request& request)> admit;
  /// Makes the response to a request that cannot be read.
  std::function<Response(int status, std::string message)> refusal = [](int status, const std::string& message) {
    return text_response(status, message + "\n");
  };
};

/// A client's connection: HTTP/1.0 and 1.1, one request after the other. Functions and callbacks are called only on the
/// io_context's thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Events {
    /// Called with a request. It is answered by respond(), or by begin_events() to end_events().
    std::function<void(const std::shared_ptr<Connection>& connection, Request request)> asked;
    /// Called when a response is complete or given up, for the log. `status`: 0 if the client was gone before.
    std::function<void(const Request& request, const std::string& peer, int status, std::size_t bytes,
                       std::chrono::steady_clock::duration took)>
        answered;
    std::function<void(Connection& connection)> closed;  ///< called once, last
  };

  /// `bodies`: bytes of all bodies that are being received. It and `settings` must outlive this object.
  Connection(boost::asio::io_context& io, std::unique_ptr<Stream> stream, std::string peer,
             const ConnectionSettings& settings, std::size_t& bodies, Events events);

  void start();
  /// Closes the connection without waiting.
  void close();
  /// Closes the connection once no request is in work.
  void close_when_idle();

  void respond(const Response& response);
  /// Begins a response of server-sent events.
  void begin_events();
  /// Sends an event with this data.
  void send_event(std::string_view data);
  void end_events();
  /// The time when a byte was last received or sent or, if none was, when the connection was made.
  [[nodiscard]] std::chrono::steady_clock::time_point moved_at() const noexcept { return moved_at_; }
  [[nodiscard]] bool has_begun_events() const noexcept { return is_streaming_; }

  /// Sets a function that is called if the client is gone while its request is in work. The response's end drops it.
  void on_gone(std::function<void()> gone) { gone_ = std::move(gone); }

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void read();
  void take(std::string_view bytes);
  /// Parses what has arrived until a request is complete.
  void parse();
  [[nodiscard]] bool admit_header();
  void refuse(int status, std::string message);
  void begin_request();
  void end_response();
  void send(std::string bytes);
  void write();
  void linger();
  void arm(boost::asio::steady_timer& timer, std::chrono::milliseconds time, std::function<void()> late);
  void count_body(std::size_t bytes);

  std::unique_ptr<Stream> stream_;
  std::string peer_;
  const ConnectionSettings& settings_;
  std::size_t& bodies_;
  std::size_t body_ = 0;  ///< bytes of bodies_ that are this connection's
  Events events_;
  boost::asio::steady_timer deadline_;  ///< time limit for receiving
  boost::asio::steady_timer stall_;     ///< time limit for sending
  std::optional<Parser> parser_;
  Request request_;
  std::string buffer_;    ///< receives the bytes of a read
  std::string received_;  ///< bytes that are not parsed yet
  std::deque<std::string> unsent_;
  std::size_t written_ = 0;  ///< how many bytes of unsent_.front() are written
  std::size_t unsent_bytes_ = 0;
  std::size_t sent_bytes_ = 0;  ///< bytes of this response
  int status_ = 0;
  std::chrono::steady_clock::time_point asked_at_;
  std::chrono::steady_clock::time_point moved_at_ = std::chrono::steady_clock::now();
  std::function<void()> gone_;
  bool is_open_ = true;
  bool is_reading_ = false;
  bool is_writing_ = false;
  bool is_in_work_ = false;   ///< whether a request is being answered; then none is parsed
  bool is_answered_ = false;  ///< whether its response is complete; perhaps it is not sent yet
  bool is_streaming_ = false;
  bool is_chunked_ = false;
  bool keeps_alive_ = true;
  bool is_head_ = false;
  bool is_lingering_ = false;  ///< whether the last response is made; then received bytes are dropped
};

/// Whether the fields Host and Origin name this host's loopback, or are missing. A server that listens at a loopback
/// address and asks for no token refuses other requests, because they come from pages of other sites that a browser on
/// this host shows.
[[nodiscard]] bool names_loopback(const Request& request);

}  // namespace shardrun::http
