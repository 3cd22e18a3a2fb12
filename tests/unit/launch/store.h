#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "core/launch/rank.h"
#include "core/launch/store_server.h"

namespace shardrun::test {

/// The store of a job of one or two ranks, on a thread of its own.
class Store {
 public:
  static constexpr const char* job = "[job]\nranks = 2\n";

  /// `on_failed`: called on the store's thread when a rank reports its failure.
  explicit Store(
      int world_size, launch::StoreServerSettings settings = {}, std::function<void()> on_failed = [] {})
      : token_(settings.token == launch::Token{} ? launch::random_token() : settings.token), world_size_(world_size) {
    settings.world_size = world_size;
    settings.token = token_;
    settings.job = settings.job.empty() ? job : settings.job;
    launch::StoreServerEvents events{
        .joined = [](int, const launch::Hello&) {},
        .came_with_other_job = [](const launch::Hello&, const std::string&) {},
        .heard = [](int) {},
        .message = [this](int, std::string_view, std::string_view bytes) { messages_ += bytes; },
        .failed = [on_failed = std::move(on_failed)](int, launch::FailureKind, std::optional<int>,
                                                     std::string_view) { on_failed(); },
        .abort_heard = [](int) {},
        .said_goodbye = [](int) {},
        .paused = [](int) {},
        .closed = [](int, const std::string&) {},
        .log = [this](const std::string& line) { logs_ += line + "\n"; }};
    server_.emplace(io_, std::move(settings), std::move(events));
    thread_ = std::thread([this] { io_.run(); });
  }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store() { end(); }

  void end() {
    if (thread_.joinable()) {
      io_.stop();
      thread_.join();
      server_.reset();
    }
  }

  void abort(const std::string& reason) {
    boost::asio::post(io_, [this, reason] { server_->abort(reason); });
  }

  [[nodiscard]] launch::RankContext context(int rank) const {
    return {.rank = rank, .world_size = world_size_, .address = "127.0.0.1", .port = server_->port(), .token = token_};
  }

  [[nodiscard]] std::size_t strangers() {
    std::promise<std::size_t> count;
    boost::asio::post(io_, [&] { count.set_value(server_->strangers()); });
    return count.get_future().get();
  }

  /// The lines of the log. REQUIRES: end() was called.
  [[nodiscard]] const std::string& logs() const { return logs_; }

  /// The bytes of all messages, one after the other. REQUIRES: end() was called.
  [[nodiscard]] const std::string& messages() const { return messages_; }

 private:
  const launch::Token token_;
  const int world_size_;
  boost::asio::io_context io_;
  std::optional<launch::StoreServer> server_;
  std::string messages_;
  std::string logs_;
  std::thread thread_;
};

}  // namespace shardrun::test
