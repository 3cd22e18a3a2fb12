#include "core/serve/server.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/string.hpp>
#include <charconv>
#include <csignal>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/text.h"
#include "core/http/connection.h"
#include "core/http/listener.h"
#include "core/http/stream.h"
#include "core/launch/process.h"
#include "core/serve/dispatcher.h"
#include "core/serve/questions.h"
#include "core/serve/replies.h"
#include "core/serve/statistics.h"

namespace shardrun::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t most_connections = 1024;
/// Bodies of more bytes than this are read only when no smaller one waits.
constexpr std::size_t most_small_bytes = std::size_t{64} << 10U;
/// All bodies that are received or wait to be read have at most this many times the bytes of the largest body.
constexpr std::size_t bodies_at_once = 16;

double seconds_of(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

/// Replaces each %XX of a path by its byte.
std::string unescaped(std::string_view path) {
  std::string text;
  for (; !path.empty(); path.remove_prefix(1)) {
    unsigned char byte = 0;
    const char* const digits = path.data() + 1;
    if (path.size() > 2 && path[0] == '%' && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      path.remove_prefix(2);
      text += static_cast<char>(byte);
    } else {
      text += path[0];
    }
  }
  return text;
}

std::string_view text_of(const beast::fields& fields, beast::field name) {
  const auto value = fields[name];
  return {value.data(), value.size()};
}

/// Compares in a time that does not depend on where the texts differ.
bool are_equal(std::string_view given, std::string_view expected) {
  return given.size() == expected.size() && CRYPTO_memcmp(given.data(), expected.data(), given.size()) == 0;
}

http::Response refusal_response(const Refusal& refusal) {
  http::Response response{.status = refusal.status, .body = error_json(refusal)};
  if (refusal.status == 429 || refusal.status == 503) {
    response.fields.emplace_back("Retry-After", "1");
  }
  if (refusal.status == 401) {
    response.fields.emplace_back("WWW-Authenticate", "Bearer");
  }
  return response;
}

/// A request whose body waits for the thread of reader_.
struct Unread {
  std::shared_ptr<http::Connection> connection;
  std::size_t bytes = 0;
  std::function<void()> read;
};

/// A request that is being answered.
struct Open {
  Question question;
  std::optional<Reply> reply;
  std::weak_ptr<http::Connection> connection;
  std::chrono::steady_clock::time_point begin;  ///< when the request was complete
  std::vector<std::uint64_t> prompts = {};      ///< the numbers that the dispatcher gave to the prompts
  std::unique_ptr<asio::steady_timer> deadline = {};
  bool has_token = false;
};

class Server {
 public:
  Server(const ServerSettings& settings, const infer::Language& language)
      : settings_(settings),
        model_{.name = settings.name, .language = &language},
        signals_(io_, SIGINT, SIGTERM),
        drain_(io_),
        listener_(
            io_, [this] { return connections_.size() < most_connections; },
            [this](http::Listener::Socket socket, std::string peer) { receive(std::move(socket), std::move(peer)); }),
        dispatcher_(io_, {.job = settings.job,
                          .most_waiting = settings.queue,
                          .log_job = [this](std::string_view line) { log(line); },
                          .log = [this](const std::string& line) { log(line); },
                          .changed = [this] { take_change(); }}) {
    http_ = {.most_body_bytes = settings.most_body_bytes,
             .most_bodies_bytes = settings.most_body_bytes * bodies_at_once,
             .admit = [this](const http::Request& request) { return admit(request); },
             .refusal =
                 [](int status, std::string message) {
                   return refusal_response({.status = status, .message = std::move(message)});
                 }};
    std::random_device seed;
    random_.seed((std::uint64_t{seed()} << 32U) | seed());
  }

  /// Serves until the end. Returns the exit code.
  int run() {
    open_tls();
    listen();
    await_signal();
    dispatcher_.start();
    io_.run();
    dispatcher_.kill();
    return code_;
  }

 private:
  void log(std::string_view line) { settings_.log(line, false); }

  void open_tls() {
    if (settings_.certificate.empty()) {
      return;
    }
    const auto attempt = [](const char* what, const std::filesystem::path& file, const auto& call) {
      try {
        call();
      } catch (const boost::system::system_error& error) {
        throw Error(ErrorCode::usage,
                    fmt::format("{} '{}' cannot be used for TLS: {}", what, file.string(), error.code().message()));
      }
    };
    tls_.emplace(asio::ssl::context::tls_server);
    tls_->set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
    attempt("the certificate", settings_.certificate,
            [&] { tls_->use_certificate_chain_file(settings_.certificate.string()); });
    attempt("the key", settings_.key,
            [&] { tls_->use_private_key_file(settings_.key.string(), asio::ssl::context::pem); });
  }

  void listen() {
    try {
      if (!settings_.socket.empty()) {
        listener_.open(settings_.socket);
        settings_.listens(fmt::format("unix:{}", settings_.socket.string()));
      } else {
        tcp::resolver resolver(io_);
        const tcp::endpoint found = *resolver.resolve(settings_.host, std::to_string(settings_.port)).begin();
        if (settings_.token.empty() && !settings_.is_open && !found.address().is_loopback()) {
          throw Error(ErrorCode::usage,
                      fmt::format("--host {} lets other hosts in: give --token-file or SHARDRUN_SERVE_TOKEN, which "
                                  "clients must then send, or --open to serve everybody",
                                  settings_.host));
        }
        const tcp::endpoint bound = listener_.open(found);
        const std::string address = bound.address().to_string();
        settings_.listens(fmt::format("{}://{}:{}", tls_ ? "https" : "http",
                                      bound.address().is_v6() ? "[" + address + "]" : address, bound.port()));
      }
    } catch (const boost::system::system_error& error) {
      throw Error(ErrorCode::usage,
                  settings_.socket.empty()
                      ? fmt::format("cannot listen at {} port {}: {}: choose another --host or --port", settings_.host,
                                    settings_.port, error.code().message())
                      : fmt::format("cannot listen at the socket '{}': {}: choose another --socket",
                                    settings_.socket.string(), error.code().message()));
    }
    listener_.accept();
  }

  void receive(http::Listener::Socket socket, std::string peer) {
    const auto connection = std::make_shared<http::Connection>(
        io_, http::make_stream(std::move(socket), tls_ ? &*tls_ : nullptr), std::move(peer), http_, bodies_,
        http::Connection::Events{.asked = [this](const auto& from, http::Request request) { answer(from, request); },
                                 .answered = [this](const auto&... all) { record(all...); },
                                 .closed =
                                     [this](http::Connection& closed) {
                                       connections_.erase(closed.shared_from_this());
                                       listener_.accept();
                                       end_if_closed();
                                     }});
    connections_.insert(connection);
    connection->start();
  }

  void record(const http::Request& request, const std::string& peer, int status, std::size_t bytes,
              std::chrono::steady_clock::duration took) {
    ++statistics_.requests[status];
    settings_.log(
        fmt::format("{} \"{} {}\" {} {} {:.3f}", peer, request.method.empty() ? "?" : request.method,
                    request.path.empty() ? "?" : request.path.substr(0, 200), status, bytes, seconds_of(took)),
        true);
  }

  /// Returns the response that refuses a request because of its header; nothing if the request is admitted.
  std::optional<http::Response> admit(const http::Request& request) {
    const auto refuse = [](Refusal refusal) { return std::optional(refusal_response(refusal)); };
    if (settings_.token.empty() && !settings_.is_open && settings_.socket.empty()) {
      // Pages of other sites, which a browser on this host shows, must not use the server.
      if (!http::names_loopback(request)) {
        return refuse({.status = 403, .message = "without a token this server answers requests to this host alone"});
      }
    }
    const auto route = routes_.find(request.path.starts_with("/v1/models/") ? "/v1/models/" : request.path);
    if (route == routes_.end()) {
      return refuse(
          {.status = 404, .message = fmt::format("there is nothing at {}", printable(request.path.substr(0, 100)))});
    }
    if (!settings_.token.empty() && !route->second.is_public) {
      constexpr std::string_view scheme = "Bearer ";
      const std::string_view given = text_of(request.fields, beast::field::authorization);
      if (!boost::beast::iequals(given.substr(0, scheme.size()), scheme) ||
          !are_equal(given.substr(scheme.size()), settings_.token)) {
        return refuse({.status = 401,
                       .message = "expected the field Authorization: Bearer TOKEN, with this server's token",
                       .code = "invalid_api_key"});
      }
    }
    if (request.method != route->second.method && !(route->second.method == "GET" && request.method == "HEAD")) {
      std::optional<http::Response> refused =
          refuse({.status = 405, .message = fmt::format("{} takes {}", route->first, route->second.method)});
      refused->fields.emplace_back("Allow", route->second.method);
      return refused;
    }
    return std::nullopt;
  }

  void answer(const std::shared_ptr<http::Connection>& connection, const http::Request& request) {
    const auto route = routes_.find(request.path.starts_with("/v1/models/") ? "/v1/models/" : request.path);
    or_refuse(connection, request.path, [&] { (this->*route->second.answer)(connection, request); });
  }

  /// Calls `call`, which answers the request. If it throws, sends the client a response with the error.
  template <typename Call>
  void or_refuse(const std::shared_ptr<http::Connection>& connection, const std::string& path, const Call& call) {
    try {
      call();
    } catch (const Refusal& refusal) {
      connection->respond(refusal_response(refusal));
    } catch (const std::exception& error) {
      log(fmt::format("a request to {} failed: {}", path, error.what()));
      connection->respond(refusal_response({.status = 500, .message = "the request could not be processed"}));
    }
  }

  void give_page(const std::shared_ptr<http::Connection>& connection, const http::Request&) {
    connection->respond(
        {.type = "text/html; charset=utf-8",
         .body = std::string(page),
         .fields = {
             {"Content-Security-Policy",
              "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
              "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"}}});
  }

  void give_health(const std::shared_ptr<http::Connection>& connection, const http::Request&) {
    const char* const state = is_draining_                                      ? "draining"
                              : dispatcher_.state() == Dispatcher::State::ready ? "ok"
                                                                                : "loading";
    connection->respond(
        {.status = state == std::string_view("ok") ? 200 : 503, .body = fmt::format("{{\"status\":\"{}\"}}", state)});
  }

  void give_metrics(const std::shared_ptr<http::Connection>& connection, const http::Request&) {
    connection->respond(
        {.type = "text/plain; version=0.0.4",
         .body = metrics_text(statistics_, {.waiting = dispatcher_.waiting(),
                                            .in_work = dispatcher_.in_work(),
                                            .slots = dispatcher_.slots(),
                                            .restarts = dispatcher_.restarts(),
                                            .connections = connections_.size(),
                                            .is_ready = dispatcher_.state() == Dispatcher::State::ready})});
  }

  [[nodiscard]] boost::json::object model_json() const {
    return {{"id", model_.name},
            {"object", "model"},
            {"created", created_},
            {"owned_by", "shardrun"},
            {"max_model_len", model_.context}};
  }

  void give_models(const std::shared_ptr<http::Connection>& connection, const http::Request&) {
    connection->respond({.body = boost::json::serialize(
                             boost::json::object{{"object", "list"}, {"data", boost::json::array{model_json()}}})});
  }

  void give_model(const std::shared_ptr<http::Connection>& connection, const http::Request& request) {
    const std::string name = unescaped(std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
    if (name != model_.name) {
      throw Refusal{
          .status = 404,
          .message = fmt::format("there is no model \"{}\": this server has \"{}\"", printable(name), model_.name),
          .param = "model",
          .code = "model_not_found"};
    }
    connection->respond({.body = boost::json::serialize(model_json())});
  }

  void require_ready() const {
    if (is_draining_ || dispatcher_.state() != Dispatcher::State::ready) {
      throw Refusal{.status = 503, .message = is_draining_ ? "the server is stopping" : "the model is being loaded"};
    }
  }

  /// Calls `read` with the request's body on the thread of reader_, because it takes long to make tokens of large
  /// texts. Then calls `go_on` with the result on this thread, unless the client is gone.
  template <typename Read, typename GoOn>
  void read_apart(const std::shared_ptr<http::Connection>& connection, const http::Request& request, const Read& read,
                  const GoOn& go_on) {
    require_ready();
    const std::size_t bytes = request.body.size();
    if (unread_ + bytes > http_.most_bodies_bytes) {
      throw Refusal{.status = 503, .message = "too many large requests are being read: try again later"};
    }
    unread_ += bytes;
    const auto call = [this, connection, path = request.path, body = request.body, model = model_, read, go_on] {
      std::optional<decltype(read(body, model))> found;
      std::exception_ptr failed;
      try {
        found = read(body, model);
      } catch (...) {
        failed = std::current_exception();
      }
      asio::post(io_, [this, connection, path, bytes = body.size(), found = std::move(found), failed, go_on]() mutable {
        unread_ -= bytes;
        is_reading_ = false;
        read_next();
        if (connections_.contains(connection)) {
          or_refuse(connection, path, [&] {
            if (failed) {
              std::rethrow_exception(failed);
            }
            require_ready();
            go_on(std::move(*found));
          });
        }
        end_if_drained();
      });
    };
    unread_requests_.emplace(bytes > most_small_bytes, Unread{connection, bytes, call});
    read_next();
  }

  void read_next() {
    while (!is_reading_ && !unread_requests_.empty()) {
      Unread next = std::move(unread_requests_.extract(unread_requests_.begin()).mapped());
      if (connections_.contains(next.connection)) {
        is_reading_ = true;
        asio::post(reader_, std::move(next.read));
      } else {
        unread_ -= next.bytes;
      }
    }
  }

  void give_tokens(const std::shared_ptr<http::Connection>& connection, const http::Request& request) {
    read_apart(connection, request, tokenize,
               [connection](std::string found) { connection->respond({.body = std::move(found)}); });
  }

  void give_text(const std::shared_ptr<http::Connection>& connection, const http::Request& request) {
    read_apart(connection, request, detokenize,
               [connection](std::string found) { connection->respond({.body = std::move(found)}); });
  }

  void complete_chat(const std::shared_ptr<http::Connection>& connection, const http::Request& request) {
    complete(connection, request, true);
  }

  void complete_text(const std::shared_ptr<http::Connection>& connection, const http::Request& request) {
    complete(connection, request, false);
  }

  void complete(const std::shared_ptr<http::Connection>& connection, const http::Request& request, bool is_chat) {
    read_apart(
        connection, request,
        [is_chat](const std::string& body, const ServedModel& model) { return read_question(is_chat, body, model); },
        [this, connection, begin = std::chrono::steady_clock::now()](Question question) {
          ask(connection, std::move(question), begin);
        });
  }

  void ask(const std::shared_ptr<http::Connection>& connection, Question question,
           std::chrono::steady_clock::time_point begin) {
    const auto open =
        std::make_shared<Open>(Open{.question = std::move(question), .connection = connection, .begin = begin});
    if (const std::vector<std::string>& unknown = open->question.unknown; !unknown.empty()) {
      log(fmt::format("a request has the field \"{}\"{}, without effect", unknown.front().substr(0, 60),
                      unknown.size() == 1 ? "" : fmt::format(" and {} more", unknown.size() - 1)));
    }
    open->reply.emplace(
        open->question, model_, fmt::format("{}-{:016x}", open->question.is_chat ? "chatcmpl" : "cmpl", random_()),
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count());
    const std::size_t choices = open->reply->choices();
    if (!dispatcher_.has_room(choices)) {
      throw Refusal{.status = 429,
                    .message = fmt::format("{} wait already: try again later",
                                           counted(static_cast<std::int64_t>(dispatcher_.waiting()), "prompt"))};
    }
    connection->on_gone([this, open] { give_up(*open); });
    open->deadline = std::make_unique<asio::steady_timer>(io_, settings_.timeout);
    open->deadline->async_wait([this, weak = std::weak_ptr(open)](error_code stopped) {
      if (const auto late = weak.lock(); late && !stopped) {
        fail(*late, {.status = 503,
                     .message = fmt::format("the answer was not complete within {} seconds", settings_.timeout.count()),
                     .code = "timeout"});
      }
    });
    statistics_.prompt_tokens += static_cast<std::uint64_t>(open->reply->prompt_tokens());
    const std::uint64_t random = random_();
    for (std::size_t choice = 0; choice < choices; ++choice) {
      open->prompts.push_back(
          dispatcher_.ask(line_of(open->question, choice, random),
                          {.told = [this, open, choice](const Piece& piece) { tell(*open, choice, piece); },
                           .failed =
                               [this, open](const Failure& failure) {
                                 fail(*open, {.status = failure.status, .message = failure.message});
                               }}));
    }
    open_.insert(open);
  }

  void tell(Open& open, std::size_t choice, const Piece& piece) {
    try {
      add(open, choice, piece);
    } catch (const std::exception& error) {
      log(fmt::format("an answer failed: {}", error.what()));
      fail(open, {.status = 500, .message = fmt::format("the answer could not be sent: {}", error.what())});
    }
  }

  void add(Open& open, std::size_t choice, const Piece& piece) {
    const std::shared_ptr<http::Connection> connection = open.connection.lock();
    if (connection == nullptr) {
      return give_up(open);
    }
    const bool is_of_answer = !piece.tokens.empty() || !piece.finish_reason.empty();
    if (is_of_answer && !std::exchange(open.has_token, true)) {
      statistics_.first_token.add(seconds_of(std::chrono::steady_clock::now() - open.begin));
    }
    if (open.question.streams && !connection->has_begun_events()) {
      connection->begin_events();
    }
    for (const std::string& event : open.reply->add(choice, piece)) {
      connection->send_event(event);
    }
    statistics_.answer_tokens += piece.tokens.size();
    if (!open.reply->is_complete()) {
      return;
    }
    end(open);
    if (!open.question.streams) {
      return connection->respond({.body = open.reply->whole()});
    }
    for (const std::string& event : open.reply->end()) {
      connection->send_event(event);
    }
    connection->end_events();
  }

  /// Sends an error and ends the request. Does nothing if it has ended before, because each of its prompts can fail.
  void fail(Open& open, const Refusal& refusal) {
    const std::shared_ptr<http::Connection> connection = open.connection.lock();
    cancel(open);
    if (!end(open) || connection == nullptr) {
      return;
    }
    if (!connection->has_begun_events()) {
      return connection->respond(refusal_response(refusal));
    }
    connection->send_event(error_json(refusal));
    connection->end_events();
  }

  /// Ends a request whose client is gone.
  void give_up(Open& open) {
    cancel(open);
    end(open);
  }

  void cancel(const Open& open) {
    std::ranges::for_each(open.prompts, [this](auto each) { dispatcher_.cancel(each); });
  }

  /// Ends the request. Returns false if it had ended before.
  bool end(Open& open) {
    if (std::erase_if(open_, [&](const auto& each) { return each.get() == &open; }) == 0) {
      return false;
    }
    statistics_.duration.add(seconds_of(std::chrono::steady_clock::now() - open.begin));
    open.deadline->cancel();
    return true;
  }

  void take_change() {
    model_.context = dispatcher_.context();
    model_.vocabulary = dispatcher_.vocabulary();
    model_.scores_prompts = dispatcher_.scores_prompts();
    model_.most_prompts = settings_.queue + static_cast<std::size_t>(dispatcher_.slots());
    if (dispatcher_.state() == Dispatcher::State::ready && !std::exchange(is_told_ready_, true)) {
      log(fmt::format("ready: {}, a context of {}", counted(dispatcher_.slots(), "slot"),
                      counted(model_.context, "token")));
    } else if (dispatcher_.state() == Dispatcher::State::loading) {
      is_told_ready_ = false;
    } else if (dispatcher_.state() == Dispatcher::State::ended) {
      if (!is_draining_) {
        log(fmt::format("{} before it was ready", dispatcher_.how_ended()));
        code_ = std::max(dispatcher_.exit_code(), 1);
      }
      return stop();
    }
    end_if_drained();
  }

  void await_signal() {
    signals_.async_wait([this](error_code failed, int signal) {
      if (failed) {
        return;
      }
      if (is_draining_) {
        log(fmt::format("ended at once by a second signal (SIG{})", ::sigabbrev_np(signal)));
        code_ = 128 + signal;
        return io_.stop();
      }
      is_draining_ = true;
      signal_ = signal;
      log(fmt::format("stopping after {} in work; a second signal ends them at once",
                      counted(static_cast<std::int64_t>(open_.size()), "request")));
      drain_.expires_after(settings_.drain);
      drain_.async_wait([this](error_code stopped) {
        if (stopped) {
          return;
        }
        if (!open_.empty()) {
          log(fmt::format("{} given up after {} seconds", counted(static_cast<std::int64_t>(open_.size()), "request"),
                          settings_.drain.count()));
          code_ = 128 + signal_;
        }
        const std::set<std::shared_ptr<Open>> late = open_;
        for (const auto& each : late) {
          fail(*each, {.status = 503, .message = "the server is stopping"});
        }
        stop();
      });
      if (dispatcher_.state() != Dispatcher::State::ready && open_.empty()) {
        return stop();
      }
      end_if_drained();
      await_signal();
    });
  }

  /// While the server drains, lets the job end once no request is left.
  void end_if_drained() {
    if (is_draining_ && open_.empty() && unread_ == 0 && dispatcher_.waiting() + dispatcher_.in_work() == 0 &&
        !std::exchange(is_finishing_, true)) {
      dispatcher_.finish();
    }
  }

  /// Kills the job and closes idle connections. Ends the loop when no connection is left, or after a second.
  void stop() {
    if (std::exchange(is_stopped_, true)) {
      return;
    }
    dispatcher_.kill();
    signals_.cancel();
    drain_.cancel();
    listener_.close();
    const auto all = connections_;
    for (const auto& each : all) {
      each->close_when_idle();
    }
    // Connections that still send a response get a second for it.
    drain_.expires_after(std::chrono::seconds(1));
    drain_.async_wait([this](error_code) { io_.stop(); });
    end_if_closed();
  }

  void end_if_closed() {
    if (is_stopped_ && connections_.empty()) {
      io_.stop();
    }
  }

  struct Route {
    std::string method;
    void (Server::*answer)(const std::shared_ptr<http::Connection>& connection, const http::Request& request);
    bool is_public = false;  ///< needs no token
  };

  const std::map<std::string, Route, std::less<>> routes_ = {
      {"/", {"GET", &Server::give_page, true}},
      {"/health", {"GET", &Server::give_health, true}},
      {"/metrics", {"GET", &Server::give_metrics}},
      {"/v1/models", {"GET", &Server::give_models}},
      {"/v1/models/", {"GET", &Server::give_model}},
      {"/v1/chat/completions", {"POST", &Server::complete_chat}},
      {"/v1/completions", {"POST", &Server::complete_text}},
      {"/tokenize", {"POST", &Server::give_tokens}},
      {"/detokenize", {"POST", &Server::give_text}},
  };

  const ServerSettings& settings_;
  ServedModel model_;
  http::ConnectionSettings http_;
  asio::io_context io_{1};
  std::optional<asio::ssl::context> tls_;
  asio::signal_set signals_;
  asio::steady_timer drain_;
  http::Listener listener_;
  Dispatcher dispatcher_;
  Statistics statistics_;
  std::set<std::shared_ptr<http::Connection>> connections_;
  std::set<std::shared_ptr<Open>> open_;
  std::size_t bodies_ = 0;
  std::multimap<bool, Unread> unread_requests_;  ///< first small, then large ones, each in the order of their arrival
  std::size_t unread_ = 0;                       ///< bytes of their bodies and of the body that is being read
  bool is_reading_ = false;
  std::mt19937_64 random_;
  const std::int64_t created_ =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  int code_ = 0;
  int signal_ = 0;
  bool is_draining_ = false;
  bool is_finishing_ = false;
  bool is_stopped_ = false;
  bool is_told_ready_ = false;
  asio::thread_pool reader_{1};  ///< declared last: its destructor waits for its thread, which uses other members
};

}  // namespace

int serve(const ServerSettings& settings, const infer::Language& language) {
  std::signal(SIGPIPE, SIG_IGN);  // errors of writes tell that a job or a client is gone
  // If the limit cannot be raised, fewer clients can connect at once.
  static_cast<void>(launch::raise_descriptor_limit(most_connections + launch::other_descriptors));
  return Server(settings, language).run();
}

}  // namespace shardrun::serve
