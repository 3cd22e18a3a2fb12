#include "core/launch/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/stop.h"
#include "core/launch/environment.h"
#include "core/launch/launch.h"
#include "core/launch/status.h"

namespace shardrun::launch {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

/// The interval of heartbeats: short enough that a healthy rank never counts as silent.
milliseconds heartbeat_of(const LaunchSettings& settings) {
  const milliseconds interval = settings.heartbeat_timeout.count() > 0
                                    ? std::min(settings.heartbeat_interval, settings.heartbeat_timeout / 4)
                                    : settings.heartbeat_interval;
  return std::max(interval, milliseconds(1));
}

/// How long a dead rank's connection may stay open, so that its last frames arrive; only a descendant of the rank can
/// keep it open for so long. Also how long a process may live on after its connection has ended before a
/// person is told.
constexpr milliseconds last_words{500};

std::string run_name() {
  const Token random = random_token();
  std::string name;
  for (std::size_t i = 0; i < 8; ++i) {
    name += fmt::format("{:02x}", random[i]);
  }
  return name;
}

/// Whether a child that has not been reaped is dead.
bool is_dead(pid_t pid) {
  siginfo_t info = {};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

/// Waits for a dead or killed child. First kills the rest of its process group: processes that a plugin started in it.
/// Until the child is reaped, no other group can have its number.
int reap(pid_t pid) {
  siginfo_t info = {};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  ::kill(-pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

Error not_started(int rank, int ranks, const Error& error) {
  return Error(error.code(), fmt::format("rank {} of {} could not be started: {}", rank, ranks, error.message()));
}

int copy_of(int descriptor) {
  const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) {
    throw files::system_error("open", "a pipe of the launcher", errno);
  }
  return copy;
}

}  // namespace

Supervisor::Supervisor(const LaunchSettings& settings)
    : settings_(settings),
      token_(random_token()),
      host_(host_name()),
      signal_reader_(io_, copy_of(signals_.descriptor())),
      children_(static_cast<std::size_t>(settings.ranks)),
      watch_(io_, watch_settings(), watch_events()) {}

Supervisor::~Supervisor() {
  kill_all();
  for (const RankStatus& each : watch_.judge().statuses()) {
    if (each.end.pid > 0 && !each.gone) {
      reap(each.end.pid);
    }
  }
}

/// If a signal asked for a stop before SignalPipe caught signals, starts no rank.
LaunchResult Supervisor::run() {
  stop_signal_ = stop_requested();
  if (stop_signal_ != 0) {
    stop_at_once();
  } else {
    start();
    io_.run();
    if (watch_.store().strangers() > 0) {
      notice(strangers_notice(watch_.store().strangers()));
    }
  }
  return result();
}

void Supervisor::start() {
  const std::vector<std::string> environment = own_environment();
  const std::string run = run_name();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    const RankContext context{.rank = rank,
                              .world_size = settings_.ranks,
                              .local_rank = rank,
                              .local_world_size = settings_.ranks,
                              .address = settings_.address,
                              .port = watch_.store().port(),
                              .run = run,
                              .token = token_,
                              .heartbeat = heartbeat_of(settings_)};
    start_child(context, environment);
    pids.push_back(status(rank).end.pid);
  }
  if (settings_.on_start) {
    settings_.on_start(pids);
  }
  read_signals();
  watch_.start();
}

void Supervisor::start_child(const RankContext& context, const std::vector<std::string>& environment) {
  const int rank = context.rank;
  const std::string handed_over = handed_over_bytes(context);
  try {
    StartedProcess started =
        start_process({.program = settings_.program,
                       .arguments = settings_.arguments,
                       .environment = rank_environment(environment, context, settings_.threads_per_rank),
                       .handed_over = handed_over});
    Child& started_child = child(rank);
    status(rank).end.pid = started.pid;
    status(rank).host = host_;
    watch_.expect(rank);
    const auto reader = [&](files::FileDescriptor pipe, Stream stream) {
      auto made = std::make_unique<OutputReader>(
          io_, std::move(pipe), [this, rank, stream](std::string_view line) { on_line(rank, stream, line); });
      made->start();
      return made;
    };
    started_child.output = reader(std::move(started.output), Stream::output);
    started_child.errors = reader(std::move(started.errors), Stream::errors);
    watch_start(rank, std::move(started.trouble));
  } catch (const Error& error) {
    throw not_started(rank, settings_.ranks, error);
  }
}

/// Watches for exec without waiting: the process may be suspended before exec, and then only join_timeout would end it.
void Supervisor::watch_start(int rank, files::FileDescriptor trouble) {
  auto& watched = child(rank).trouble;
  watched = std::make_unique<boost::asio::posix::stream_descriptor>(io_, copy_of(trouble.get()));
  watched->async_wait(boost::asio::posix::stream_descriptor::wait_read, [this, rank](const error_code& cancelled) {
    if (!cancelled) {
      require_no_trouble(rank);
    }
  });
}

void Supervisor::require_no_trouble(int rank) {
  const auto watched = std::move(child(rank).trouble);
  if (!watched) {
    return;
  }
  if (const std::optional<Error> error = start_error(watched->native_handle(), settings_.program)) {
    throw not_started(rank, settings_.ranks, *error);
  }
}

JobWatchSettings Supervisor::watch_settings() const {
  return {.store = {.address = settings_.address,
                    .world_size = settings_.ranks,
                    .token = token_,
                    .job = settings_.job,
                    .hello_timeout = settings_.stranger_timeout},
          .heartbeat_timeout = settings_.heartbeat_timeout,
          .join_timeout = settings_.join_timeout,
          .report_time = settings_.report_time,
          .grace = settings_.grace};
}

JobWatchEvents Supervisor::watch_events() {
  const auto nothing = [](const auto&...) {};
  return {.joined = [this](int rank, const Hello&) { child(rank).connected = true; },
          .came_with_other_job = nothing,  // the process itself reports it and ends
          .message =
              [this](int rank, std::string_view kind, std::string_view bytes) {
                if (settings_.on_message) {
                  settings_.on_message({rank, kind, bytes});
                }
              },
          .failed = nothing,
          .said_goodbye = [this](int) { pause_if_all_wait(); },
          .paused =
              [this](int rank) {
                child(rank).paused = true;
                pause_if_all_wait();
              },
          .closed = [this](int rank) { on_closed(rank); },
          .silent = [this](int rank) { kill_rank(rank); },
          .tick = [this](Clock::time_point now) { on_tick(now); },
          .ending =
              [this] {
                if (settings_.on_failure && watch_.judge().cause()) {
                  settings_.on_failure(*watch_.judge().cause());
                }
                for (int rank = 0; rank < settings_.ranks; ++rank) {
                  if (!status(rank).joined) {
                    kill_rank(rank);  // it cannot be told of the abort yet, and has no work to lose
                  }
                }
              },
          .grace_over = [this] { kill_all(); },
          .log = [this](const std::string& line) { log(line); }};
}

void Supervisor::on_closed(int rank) {
  Child& lost = child(rank);
  lost.connected = false;
  const RankStatus& known = status(rank);
  if (!known.gone && !known.end.said_goodbye) {
    lost.lost_connection =
        fmt::format("rank {} (pid {}): its control connection ended: {}", rank, known.end.pid, known.connection_end);
    lost.lost_at = Clock::now();
    log(lost.lost_connection);
  }
  finish_if_done(rank);
}

void Supervisor::read_signals() {
  signal_reader_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const error_code& error) {
    if (error) {
      return;
    }
    std::array<unsigned char, 64> signals = {};
    const ssize_t count = ::read(signals_.descriptor(), signals.data(), signals.size());
    for (ssize_t i = 0; i < count; ++i) {
      on_signal(signals[static_cast<std::size_t>(i)]);
    }
    read_signals();
  });
}

void Supervisor::reap_children() {
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    const pid_t pid = status(rank).end.pid;
    if (!status(rank).gone && pid > 0 && is_dead(pid)) {
      on_exit(rank, reap(pid));
    }
  }
}

void Supervisor::on_exit(int rank, int wait_status) {
  Child& gone = child(rank);
  status(rank).gone = true;  // before anything can throw, because the pid may now belong to another process
  gone.reaped_at = Clock::now();
  require_no_trouble(rank);
  if (WIFSIGNALED(wait_status)) {
    status(rank).end.signal = WTERMSIG(wait_status);
  } else {
    status(rank).end.exit_code = WEXITSTATUS(wait_status);
  }
  gone.output->drain();
  gone.errors->drain();
  finish_if_done(rank);
  watch_.end_if_failed();
}

void Supervisor::on_line(int rank, Stream stream, std::string_view line) {
  if (stream == Stream::errors && !line.empty()) {
    status(rank).last_error_line = line.substr(0, 1000);
  }
  if (settings_.on_output) {
    settings_.on_output({rank, stream, line});
  }
}

void Supervisor::finish_if_done(int rank) {
  Child& gone = child(rank);
  if (!status(rank).gone || gone.connected || gone.finished) {
    return;
  }
  gone.finished = true;
  watch_.ended(rank, stop_signal_);
  if (std::all_of(children_.begin(), children_.end(), [](const Child& each) { return each.finished; })) {
    io_.stop();
  }
}

void Supervisor::on_tick(Clock::time_point now) {
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    Child& each = child(rank);
    if (each.connected && status(rank).gone && now - each.reaped_at > last_words) {
      watch_.store().close(rank);
      each.connected = false;
      finish_if_done(rank);
    }
    // A dying process closes its connection before it can be reaped, so a person is told only after a while.
    const bool lives_on = !status(rank).gone && !watch_.is_ending() && now - each.lost_at > last_words;
    if (lives_on && !each.lost_connection.empty() && settings_.on_notice) {
      settings_.on_notice(std::exchange(each.lost_connection, {}));
    }
  }
}

void Supervisor::kill_all() {
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    kill_rank(rank);
  }
}

/// Kills a rank. Until the rank is reaped, its pid cannot belong to another process. A rank that is dead already does
/// not count as killed.
void Supervisor::kill_rank(int rank) {
  RankStatus& running = status(rank);
  if (running.end.pid > 0 && !running.gone && !is_dead(running.end.pid)) {
    running.end.killed = true;
    ::kill(running.end.pid, SIGKILL);
  }
}

void Supervisor::log(const std::string& line) const {
  if (settings_.on_log) {
    settings_.on_log(line);
  }
}

void Supervisor::notice(const std::string& line) const {
  log(line);
  if (settings_.on_notice) {
    settings_.on_notice(line);
  }
}

LaunchResult Supervisor::result() const {
  LaunchResult result = watch_.result();
  result.stop_signal = stop_signal_;
  result.forced_signal = forced_signal_;
  if (!result.cause && forced_signal_ != 0) {
    result.exit_code = 128 + forced_signal_;
  } else if (!result.cause && stopped_at_once_) {
    result.exit_code = 128 + stop_signal_;
  }
  return result;
}

LaunchResult launch(const LaunchSettings& settings) {
  if (settings.ranks < 1 || settings.arguments.empty()) {
    throw Error(ErrorCode::internal, fmt::format("launching {} ranks with {} arguments: at least one of each is needed",
                                                 settings.ranks, settings.arguments.size()));
  }
  Supervisor supervisor(settings);
  return supervisor.run();
}

}  // namespace shardrun::launch
