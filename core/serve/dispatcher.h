#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/infer/sampling.h"

namespace shardrun::serve {

/// A child process that runs a job with [infer] events, from its standard input to its standard output. Functions and
/// callbacks are called only on the thread that runs the io_context. The child ends at the latest with that thread.
class JobProcess : public std::enable_shared_from_this<JobProcess> {
 public:
  struct Events {
    std::function<void(const boost::json::object& event)> told;
    std::function<void(std::string_view line)> said;  ///< called with each line on the job's standard error
    /// Called once, last, unless kill() was called before. `code`: the job's exit code, or 1 if a signal ended it.
    std::function<void(const std::string& how, int code)> ended;
  };

  JobProcess(boost::asio::io_context& io, Events events)
      : input_(io), output_(io), errors_(io), events_(std::move(events)) {}
  JobProcess(const JobProcess&) = delete;
  JobProcess& operator=(const JobProcess&) = delete;
  ~JobProcess() { kill(); }

  /// Runs this program with these words. REQUIRES: a shared pointer owns this object. Throws Error{io}.
  void start(const std::vector<std::string>& words);
  /// Writes a line, without its end, to the job.
  void send(std::string_view line);
  /// Ends the job's input once all lines are written. The job then answers all prompts and ends.
  void end_input();
  /// Ends the process and its ranks at once. No callback is called afterwards.
  void kill() noexcept;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

 private:
  /// A stream of the child that is read in lines.
  struct Lines {
    explicit Lines(boost::asio::io_context& io) : stream(io) {}

    boost::asio::posix::stream_descriptor stream;
    std::string buffer = {};
    std::string begun = {};
  };

  void read(Lines& from, const std::function<void(std::string_view line)>& take, const std::function<void()>& at_end);
  void write();
  void hear(std::string_view line);
  void reap();

  boost::asio::posix::stream_descriptor input_;
  Lines output_;
  Lines errors_;
  Events events_;
  pid_t pid_ = -1;
  std::string unsent_;  ///< the lines to write after those in writing_
  std::string writing_;
  bool is_ending_ = false;
  bool has_failed_ = false;  ///< whether the job wrote a line that is no event; later events are ignored
};

/// What a step has added to an answer.
struct Piece {
  std::string text;
  std::vector<std::int32_t> tokens;
  std::vector<double> logprobs;             ///< the log probability of each token, if they were asked for
  std::vector<infer::Likely> top_logprobs;  ///< the likeliest tokens at each token, if they were asked for
  /// The same for the next tokens of the prompt, after those of the piece before. The prompt's first token has none.
  std::vector<std::optional<double>> prompt_logprobs = {};
  std::vector<infer::Likely> prompt_top_logprobs = {};
  std::string finish_reason;       ///< set in an answer's last piece; otherwise empty
  std::int64_t answer_tokens = 0;  ///< set in an answer's last piece: the answer's tokens
};

/// Why a prompt has no answer.
struct Failure {
  int status = 500;  ///< the status of an HTTP response
  std::string message;
};

/// Functions that are called about a prompt, but never within ask(). The last call is `failed` or has the last piece.
struct Listener {
  std::function<void(const Piece& piece)> told;
  std::function<void(const Failure& failure)> failed;
};

/// Gives prompts to a job and takes its answers. Starts the job again if it ends, unless its first start has failed.
class Dispatcher {
 public:
  struct Settings {
    std::vector<std::string> job;                        ///< words with which this program runs the job
    std::size_t most_waiting = 0;                        ///< most prompts that wait beside those that the job has
    std::function<void(std::string_view line)> log_job;  ///< what the job says on standard error
    std::function<void(const std::string& line)> log;
    std::function<void()> changed;  ///< called when the state has changed, and when a prompt has ended
  };
  enum class State { loading, ready, ended };

  Dispatcher(boost::asio::io_context& io, Settings settings);  ///< the object is used only on the thread of `io`

  void start() { start_job(); }

  [[nodiscard]] State state() const noexcept { return state_; }
  /// Whether this many more prompts can be added.
  [[nodiscard]] bool has_room(std::size_t prompts) const noexcept {
    return waiting_.size() + in_work_.size() + prompts <= settings_.most_waiting + most_in_work();
  }
  /// Adds a prompt. `line`: its line without an id. REQUIRES: has_room(1). Returns its number.
  std::uint64_t ask(boost::json::object line, Listener listener);
  /// Ends a prompt. Nothing is called for it any more. Does nothing if it has ended.
  void cancel(std::uint64_t number);
  /// Lets the job end once it has answered all prompts.
  void finish();
  /// Ends the job at once.
  void kill();

  [[nodiscard]] std::size_t waiting() const noexcept { return waiting_.size(); }
  [[nodiscard]] std::size_t in_work() const noexcept { return in_work_.size(); }
  [[nodiscard]] std::int64_t slots() const noexcept { return slots_; }
  /// context() is the most tokens of a prompt with its answer, vocabulary() the model's; both are 0 until it is ready.
  [[nodiscard]] std::int64_t context() const noexcept { return context_; }
  [[nodiscard]] std::int64_t vocabulary() const noexcept { return vocabulary_; }
  /// Whether the job can tell the log probabilities of prompts.
  [[nodiscard]] bool scores_prompts() const noexcept { return scores_prompts_; }
  [[nodiscard]] std::int64_t restarts() const noexcept { return restarts_; }
  /// How the job ended last.
  [[nodiscard]] const std::string& how_ended() const noexcept { return how_ended_; }
  [[nodiscard]] int exit_code() const noexcept { return exit_code_; }

 private:
  struct Prompt {
    std::uint64_t number;
    std::string line;
    Listener listener;
  };

  /// The most prompts that the job has. One more than slots waits in the job, so that a free slot is used at once.
  [[nodiscard]] std::size_t most_in_work() const noexcept { return static_cast<std::size_t>(slots_) + 1; }
  void start_job();
  void hear(const boost::json::object& event);
  void fail_those_in_work(const std::string& why);
  void job_ended(const std::string& how, int code);
  void send_prompts();
  void become(State state);

  boost::asio::io_context& io_;
  Settings settings_;
  std::shared_ptr<JobProcess> job_;
  State state_ = State::loading;
  std::deque<Prompt> waiting_;
  std::map<std::uint64_t, Listener> in_work_;  ///< a cancelled prompt's listener has no functions
  std::uint64_t next_number_ = 1;
  std::int64_t slots_ = 0;
  std::int64_t context_ = 0;
  std::int64_t vocabulary_ = 0;
  bool scores_prompts_ = false;
  std::int64_t restarts_ = 0;
  std::string how_ended_;
  int exit_code_ = 0;
  bool is_finishing_ = false;
  bool was_ready_ = false;   ///< whether the job that runs, or that ended last, became ready
  bool is_failing_ = false;  ///< whether a rank of the job has failed, so that the job will end
  boost::asio::steady_timer start_again_;
  std::chrono::milliseconds pause_{0};  ///< the pause before the next start
};

}  // namespace shardrun::serve
