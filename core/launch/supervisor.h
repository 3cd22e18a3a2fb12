#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/files/descriptor.h"
#include "core/launch/job_watch.h"
#include "core/launch/launch.h"
#include "core/launch/process.h"
#include "core/launch/rank.h"
#include "core/launch/signals.h"

namespace shardrun::launch {

/// Splits a stream of bytes into lines. A line longer than `max_line_bytes` comes in pieces of that size.
class LineSplitter {
 public:
  static constexpr std::size_t max_line_bytes = std::size_t{64} * 1024;
  using OnLine = std::function<void(std::string_view line)>;

  explicit LineSplitter(OnLine on_line) : on_line_(std::move(on_line)) {}

  void add(std::string_view bytes);
  void end();  ///< passes on an unfinished last line, if any

 private:
  OnLine on_line_;
  std::string begun_;
};

/// Reads one of a rank's output pipes line by line.
class OutputReader {
 public:
  OutputReader(boost::asio::io_context& io, files::FileDescriptor pipe, LineSplitter::OnLine on_line);

  void start();

  /// Passes on what is left in the pipe and closes it. Used after the rank has ended, because its descendants may keep
  /// the pipe open for longer.
  void drain();

 private:
  boost::asio::posix::stream_descriptor pipe_;
  LineSplitter lines_;
  std::array<char, 16384> chunk_ = {};
};

/// Carries out one call of launch(). Owns the ranks' processes and pipes, and watches the job, on the calling thread.
class Supervisor {
 public:
  explicit Supervisor(const LaunchSettings& settings);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;
  ~Supervisor();  ///< kills and reaps every rank that still runs

  [[nodiscard]] LaunchResult run();

 private:
  using Clock = std::chrono::steady_clock;

  /// Facts about a rank that only the launcher knows.
  struct Child {
    std::unique_ptr<boost::asio::posix::stream_descriptor> trouble;  ///< open until exec has succeeded
    std::unique_ptr<OutputReader> output;
    std::unique_ptr<OutputReader> errors;
    bool connected = false;
    std::string lost_connection;  ///< a message for people that its connection has ended
    Clock::time_point lost_at;
    bool paused = false;  ///< it waits until it may continue
    Clock::time_point reaped_at;
    bool finished = false;  ///< it was reaped, and everything that it wrote or sent has been read
  };

  void start();
  void watch_start(int rank, files::FileDescriptor trouble);
  void require_no_trouble(int rank);
  void start_child(const RankContext& context, const std::vector<std::string>& environment);
  [[nodiscard]] JobWatchSettings watch_settings() const;
  [[nodiscard]] JobWatchEvents watch_events();
  [[nodiscard]] LaunchResult result() const;

  // Events: of processes, and of signals (supervisor_signals.cpp).
  void read_signals();
  void on_signal(int signal);
  void ask_to_stop(int signal);
  void stop_at_once();
  void ask_to_pause();
  void pause_if_all_wait();
  void stand_still();
  void reap_children();
  void on_exit(int rank, int wait_status);
  void on_line(int rank, Stream stream, std::string_view line);
  void on_closed(int rank);
  void on_tick(Clock::time_point now);
  void finish_if_done(int rank);

  // Reactions.
  void kill_all();
  void kill_rank(int rank);
  void log(const std::string& line) const;
  void notice(const std::string& line) const;

  [[nodiscard]] Child& child(int rank) { return children_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] RankStatus& status(int rank) { return watch_.status(rank); }

  const LaunchSettings& settings_;
  const Token token_;
  const std::string host_;
  SignalPipe signals_;
  boost::asio::io_context io_;
  boost::asio::posix::stream_descriptor signal_reader_;
  std::vector<Child> children_;  ///< by rank
  JobWatch watch_;

  bool pausing_ = false;     ///< the ranks are asked to pause
  Clock::time_point asked_;  ///< when the ranks were asked to stop
  int stop_signal_ = 0;
  bool stopped_at_once_ = false;
  int forced_signal_ = 0;  ///< the second signal, which ends the job at once
};

}  // namespace shardrun::launch
