#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/json.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::serve {

/// A job with [infer] events, from standard input to standard output, as a child process. Functions and callbacks are
/// called only on the thread that runs the io_context. The child does not outlive that thread.
class JobProcess : public std::enable_shared_from_this<JobProcess> {
 public:
  struct Events {
    std::function<void(const boost::json::object& event)> told;
    std::function<void(std::string_view line)> said;    ///< on standard error
    std::function<void(const std::string& how)> ended;  ///< called once, last, unless kill() was called before
  };

  JobProcess(boost::asio::io_context& io, Events events)
      : input_(io), output_(io), errors_(io), events_(std::move(events)) {}
  JobProcess(const JobProcess&) = delete;
  JobProcess& operator=(const JobProcess&) = delete;
  ~JobProcess() { kill(); }

  /// Runs this program with these words. The object must be owned by a shared pointer. Throws Error{io}.
  void start(const std::vector<std::string>& words);
  /// Writes a line, without its end, to the job.
  void send(std::string_view line);
  /// Ends the job's input once all lines are written: it answers them and ends.
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
  std::string unsent_;  ///< lines behind those that are being written
  std::string writing_;
  bool is_ending_ = false;
  bool is_silent_ = false;  ///< standard error has ended
};

}  // namespace shardrun::serve
