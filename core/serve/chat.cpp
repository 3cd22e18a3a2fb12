#include "core/serve/server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/standard_error.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/files/descriptor.h"
#include "core/serve/dispatcher.h"

namespace shardrun::serve {
namespace {

constexpr std::size_t most_line_bytes = std::size_t{1} << 20U;

class Chat {
 public:
  Chat(const std::vector<std::string>& job, const infer::Language& language, const std::string& system)
      : language_(language),
        system_(system),
        is_terminal_(::isatty(STDIN_FILENO) == 1),
        input_(io_),
        signals_(io_, SIGINT, SIGTERM),
        dispatcher_(io_, {.job = job,
                          .most_waiting = 1,
                          .log_job = [this](std::string_view line) { hear(line); },
                          .log = [](const std::string& line) { say(line); },
                          .changed = [] {}}) {
    boost::system::error_code no_stream;  // set if standard input is a file, whose reading never waits
    input_.assign(::dup(STDIN_FILENO), no_stream);
    input_.non_blocking(false, no_stream);
  }

  int run() {
    await_signal();
    dispatcher_.start();
    run_while([this] { return dispatcher_.state() == Dispatcher::State::loading; });
    if (dispatcher_.state() == Dispatcher::State::ended) {
      if (signal_ == 0) {
        throw Error(ErrorCode::aborted, fmt::format("{} before it was ready: {}", dispatcher_.how_ended(), said_));
      }
    }
    reset();
    while (const std::optional<std::string> line = next_line()) {
      if (*line == "/exit") {
        break;
      }
      if (*line == "/reset") {
        reset();
      } else if (line->starts_with('/')) {
        say(fmt::format("there is no {}: /reset begins a new conversation, /exit ends",
                        printable(line->substr(0, 60))));
      } else if (line->find_first_not_of(" \t\r") != std::string::npos) {
        answer(with_replacements(*line));
      }
    }
    dispatcher_.kill();
    return signal_ == 0 ? 0 : 128 + signal_;
  }

 private:
  static void say(const std::string& line) { write_to_standard_error(fmt::format("{}\n", line)); }

  /// Keeps the job's last line on standard error, which is shown only if the job ends before it is ready.
  void hear(std::string_view line) { said_ = line; }

  template <typename Condition>
  void run_while(const Condition& condition) {
    while (signal_ == 0 && condition()) {
      io_.restart();
      io_.run_one();
    }
  }

  void await_signal() {
    signals_.async_wait([this](boost::system::error_code failed, int signal) {
      if (failed) {
        return;
      }
      if (signal == SIGTERM) {
        signal_ = signal;
      } else if (prompt_ != 0) {
        dispatcher_.cancel(std::exchange(prompt_, 0));
      } else {
        say("\n/exit ends");
        show_mark();
      }
      await_signal();
    });
  }

  void reset() {
    conversation_.messages.clear();
    if (!system_.empty()) {
      conversation_.messages.push_back({{"role", "system"}, {"content", system_}});
    }
  }

  void show_mark() const {
    if (is_terminal_) {
      fmt::print("> ");
      std::fflush(stdout);
    }
  }

  /// The next line of standard input; nothing at its end, or if a signal asked to end. Handles signals while it waits.
  std::optional<std::string> next_line() {
    show_mark();
    for (bool is_at_end = false;;) {
      const std::size_t end = read_.find('\n');
      if (end != std::string::npos || (is_at_end && !read_.empty())) {
        std::string line = read_.substr(0, end);
        read_.erase(0, end == std::string::npos ? end : end + 1);
        return line;
      }
      if (is_at_end || signal_ != 0) {
        return std::nullopt;
      }
      if (read_.size() > most_line_bytes) {
        throw Error(ErrorCode::data, fmt::format("standard input: a line has more than {} bytes", most_line_bytes));
      }
      if (input_.is_open()) {
        bool has_input = false;
        input_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [&](auto) { has_input = true; });
        run_while([&] { return !has_input; });
        if (!has_input) {
          input_.cancel();
          run_to_end_of_wait(has_input);
          return std::nullopt;
        }
      }
      std::string bytes(4096, '\0');
      const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
      if (count < 0 && errno != EINTR) {
        throw files::system_error("read", "standard input", errno);
      }
      is_at_end = count == 0;
      read_.append(bytes, 0, count > 0 ? static_cast<std::size_t>(count) : 0);
    }
  }

  void run_to_end_of_wait(const bool& has_ended) {
    while (!has_ended) {
      io_.restart();
      io_.run_one();
    }
  }

  void answer(const std::string& text) {
    boost::json::array& messages = conversation_.messages;
    messages.push_back({{"role", "user"}, {"content", text}});
    const auto give_up = [&](const std::string& why) {
      messages.pop_back();
      say(why);
    };
    std::vector<std::int32_t> tokens;
    try {
      tokens = language_.encode(conversation_);
    } catch (const Error& error) {
      return give_up(error.message());
    }
    run_while([this] { return dispatcher_.state() == Dispatcher::State::loading; });
    if (dispatcher_.state() != Dispatcher::State::ready) {
      return;
    }
    if (std::cmp_greater_equal(tokens.size(), dispatcher_.context())) {
      return give_up(fmt::format("the conversation has {}, and the context is {}: /reset begins a new one",
                                 counted(std::ssize(tokens), "token"), dispatcher_.context()));
    }
    std::string answer;
    std::string failure;
    bool is_complete = false;
    prompt_ = dispatcher_.ask({{"prompt", boost::json::array(tokens.begin(), tokens.end())}},
                              {.told =
                                   [&](const Piece& piece) {
                                     answer += piece.text;
                                     fmt::print("{}", printable_lines(piece.text));
                                     std::fflush(stdout);
                                     is_complete = !piece.finish_reason.empty();
                                   },
                               .failed = [&](const Failure& failed) { failure = failed.message; }});
    run_while([&] { return !is_complete && failure.empty() && prompt_ != 0; });
    if (prompt_ != 0 && !is_complete && failure.empty()) {
      dispatcher_.cancel(prompt_);
    }
    prompt_ = 0;
    fmt::print("\n");
    std::fflush(stdout);
    if (!failure.empty()) {
      return give_up(failure);
    }
    messages.push_back({{"role", "assistant"}, {"content", answer}});
  }

  const infer::Language& language_;
  const std::string& system_;
  const bool is_terminal_;
  boost::asio::io_context io_{1};
  boost::asio::posix::stream_descriptor input_;
  boost::asio::signal_set signals_;
  Dispatcher dispatcher_;
  templates::Conversation conversation_;
  std::string read_;          ///< bytes of standard input that are not taken yet
  std::string said_;          ///< the job's last line on standard error
  std::uint64_t prompt_ = 0;  ///< number of the prompt that is being answered; 0: none
  int signal_ = 0;            ///< the signal that asked to end; 0: none
};

}  // namespace

int chat(const std::vector<std::string>& job, const infer::Language& language, const std::string& system) {
  std::signal(SIGPIPE, SIG_IGN);
  return Chat(job, language, system).run();
}

}  // namespace shardrun::serve
