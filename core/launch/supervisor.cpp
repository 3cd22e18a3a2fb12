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
#include "core/base/stop.h"
#include "core/launch/environment.h"
#include "core/launch/status.h"

namespace shardrun::launch {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

/// How often silence is looked for.
milliseconds tick_of(const LaunchSettings& settings) {
  milliseconds tick{1000};
  for (const milliseconds timeout : {settings.heartbeat_timeout, settings.join_timeout}) {
    tick = timeout.count() > 0 ? std::min(tick, timeout / 8) : tick;
  }
  return std::max(tick, milliseconds(5));
}

/// Often enough that a healthy rank is not missed.
milliseconds heartbeat_of(const LaunchSettings& settings) {
  const milliseconds interval = settings.heartbeat_timeout.count() > 0
                                    ? std::min(settings.heartbeat_interval, settings.heartbeat_timeout / 4)
                                    : settings.heartbeat_interval;
  return std::max(interval, milliseconds(1));
}

/// For what a dead rank said last to arrive: at once as a rule, unless a descendant of it keeps its connection open.
/// And for a process whose connection has ended to end.
constexpr milliseconds last_words{500};

std::string run_name() {
  const Token random = random_token();
  std::string name;
  for (std::size_t i = 0; i < 8; ++i) {
    name += fmt::format("{:02x}", random[i]);
  }
  return name;
}

/// Of a child that was not reaped yet.
bool is_dead(pid_t pid) {
  siginfo_t info = {};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
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
      ticker_(io_),
      grace_(io_),
      children_(static_cast<std::size_t>(settings.ranks)),
      inquest_(settings.ranks),
      ending_(io_, settings.hearing, [this] { end_all(); }),
      store_(io_, store_settings(), store_events()) {}

Supervisor::~Supervisor() {
  kill_all();
  for (const Inquest::Subject& each : inquest_.subjects()) {
    while (each.end.pid > 0 && !each.gone && ::waitpid(each.end.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

/// A request that came before this took the signals has reached nobody else.
LaunchResult Supervisor::run() {
  stop_signal_ = stop_requested();
  if (stop_signal_ != 0) {
    stop_at_once();
  } else {
    start();
    io_.run();
    if (store_.strangers() > 0) {
      notice(strangers_notice(store_.strangers()));
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
                              .port = store_.port(),
                              .run = run,
                              .token = token_,
                              .heartbeat = heartbeat_of(settings_)};
    start_child(context, environment);
    pids.push_back(subject(rank).end.pid);
  }
  if (settings_.on_start) {
    settings_.on_start(pids);
  }
  last_tick_ = Clock::now();
  read_signals();
  tick();
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
    subject(rank).end.pid = started.pid;
    subject(rank).host = host_;
    subject(rank).heard = Clock::now();
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

/// Not waited for: a process may be stopped before it is the program, and nobody but the limit of joining would end it.
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

StoreServerSettings Supervisor::store_settings() const {
  return {.address = settings_.address,
          .world_size = settings_.ranks,
          .token = token_,
          .job = settings_.job,
          .hello_timeout = settings_.stranger_timeout};
}

StoreServerEvents Supervisor::store_events() {
  return {.joined =
              [this](int rank, const Hello& hello) {
                child(rank).connected = true;
                subject(rank).joined = true;
                subject(rank).heard = Clock::now();
                subject(rank).host = hello.host;
              },
          .came_with_other_job = [](const Hello&, const std::string&) {},  // its process ends, and says why
          .heard = [this](int rank) { subject(rank).heard = Clock::now(); },
          .message =
              [this](int rank, std::string_view kind, std::string_view bytes) {
                if (settings_.on_message) {
                  settings_.on_message({rank, kind, bytes});
                }
              },
          .failed =
              [this](int rank, FailureKind kind, std::optional<int> awaited, std::string_view text) {
                inquest_.says_failed(rank, kind, awaited, text);
                ending_.look(inquest_);
              },
          .abort_heard = [this](int rank) { subject(rank).abort_heard = true; },
          .said_goodbye =
              [this](int rank) {
                subject(rank).end.said_goodbye = true;
                pause_if_all_wait();
              },
          .paused =
              [this](int rank) {
                child(rank).paused = true;
                pause_if_all_wait();
              },
          .closed =
              [this](int rank, const std::string& why) {
                Child& lost = child(rank);
                lost.connected = false;
                const Inquest::Subject& known = subject(rank);
                if (!known.gone && !known.end.said_goodbye) {
                  lost.lost_connection =
                      fmt::format("rank {} (pid {}): its control connection ended: {}", rank, known.end.pid, why);
                  lost.lost_at = Clock::now();
                  log(lost.lost_connection);
                }
                finish_if_done(rank);
              },
          .log = [this](const std::string& line) { log(line); }};
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

void Supervisor::on_signal(int signal) {
  if (signal == SIGCHLD) {
    reap_children();
  } else if (signal == SIGTSTP) {
    ask_to_pause();
  } else if (signal != SIGPIPE ||
             (stop_signal_ == 0 && !ending_.has_begun())) {  // which comes with every line that nobody reads
    ask_to_stop(signal);
  }
}

/// Not in the middle of an operation, whose deadline would have passed when they go on.
void Supervisor::ask_to_pause() {
  if (ending_.has_begun() || stop_signal_ != 0 || std::exchange(pausing_, true)) {
    return;
  }
  notice("asked to stand still: waiting for the ranks to end this step");
  store_.pause();
}

/// Ranks that wait need not be stopped: they do nothing but send heartbeats.
void Supervisor::pause_if_all_wait() {
  const bool any = std::any_of(children_.begin(), children_.end(), [](const Child& each) { return each.paused; });
  bool all = true;
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    all = all && (child(rank).paused || subject(rank).gone || subject(rank).end.said_goodbye);
  }
  if (!any || !all || inquest_.cause()) {
    return;
  }
  if (stop_signal_ == 0) {
    stand_still();
  }
  pausing_ = false;
  for (Child& each : children_) {
    each.paused = false;
  }
  store_.resume();
}

/// By the signal's own action, not SIGSTOP: where no shell could continue this process, the system leaves it out.
void Supervisor::stand_still() {
  struct sigaction caught = {};
  struct sigaction stops = {};
  stops.sa_handler = SIG_DFL;
  sigemptyset(&stops.sa_mask);
  ::sigaction(SIGTSTP, &stops, &caught);
  ::raise(SIGTSTP);
  ::sigaction(SIGTSTP, &caught, nullptr);
  last_tick_ = Clock::now();
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    subject(rank).heard = last_tick_;
  }
}

void Supervisor::ask_to_stop(int signal) {
  if (signal == stop_signal_ && forced_signal_ == 0 && Clock::now() - asked_ < same_request) {
    return;
  }
  if (stop_signal_ == 0 && !ending_.has_begun()) {
    stop_signal_ = signal;
    asked_ = Clock::now();
    if (settings_.has_begun && !settings_.has_begun()) {
      return stop_at_once();
    }
    notice(stop_notice(signal));
    return store_.stop(signal);
  }
  const bool impatient = ending_.has_begun() || forced_signal_ != 0;
  forced_signal_ = signal;
  if (impatient) {
    return kill_all();
  }
  notice(fmt::format("ending the ranks now, by {}", signal_text(signal)));
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    send_signal(rank, SIGTERM);
    send_signal(rank, SIGCONT);  // one that was stopped would not hear of it
  }
  kill_after_grace();
}

/// Ranks that load, compile or connect hear of nothing, and have nothing to lose.
void Supervisor::stop_at_once() {
  notice(stop_notice(stop_signal_, "stopping before the first step"));
  stopped_at_once_ = true;
  kill_all();
}

void Supervisor::reap_children() {
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    int status = 0;
    const pid_t pid = subject(rank).end.pid;
    if (!subject(rank).gone && ::waitpid(pid, &status, WNOHANG) == pid) {
      on_exit(rank, status);
    }
  }
}

void Supervisor::on_exit(int rank, int status) {
  Child& gone = child(rank);
  subject(rank).gone = true;  // before anything can throw: the pid may be another process's from here on
  gone.reaped_at = Clock::now();
  require_no_trouble(rank);
  if (WIFSIGNALED(status)) {
    subject(rank).end.signal = WTERMSIG(status);
  } else {
    subject(rank).end.exit_code = WEXITSTATUS(status);
  }
  gone.output->drain();
  gone.errors->drain();
  finish_if_done(rank);
  ending_.look(inquest_);
}

void Supervisor::on_line(int rank, Stream stream, std::string_view line) {
  if (stream == Stream::errors && !line.empty()) {
    subject(rank).last_error_line = line.substr(0, 1000);
  }
  if (settings_.on_output) {
    settings_.on_output({rank, stream, line});
  }
}

void Supervisor::finish_if_done(int rank) {
  Child& gone = child(rank);
  if (!subject(rank).gone || gone.connected || gone.finished) {
    return;
  }
  gone.finished = true;
  inquest_.ended(rank, stop_signal_);
  ending_.look(inquest_);
  if (std::all_of(children_.begin(), children_.end(), [](const Child& each) { return each.finished; })) {
    io_.stop();
  }
}

void Supervisor::tick() {
  const milliseconds interval = tick_of(settings_);
  const Clock::time_point now = Clock::now();
  const Clock::duration missed = time_held_up(now - last_tick_, interval);
  last_tick_ = now;
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    Child& each = child(rank);
    subject(rank).heard += missed;
    if (each.connected && subject(rank).gone && now - each.reaped_at > last_words) {
      store_.close(rank);
      each.connected = false;
      finish_if_done(rank);
    }
    // A dying process closes its connection before it can be reaped: that is no news.
    const bool lives_on = !subject(rank).gone && !ending_.has_begun() && now - each.lost_at > last_words;
    if (lives_on && !each.lost_connection.empty() && settings_.on_notice) {
      settings_.on_notice(std::exchange(each.lost_connection, {}));
    }
    check_silence(rank, now);
  }
  ticker_.expires_after(interval);
  ticker_.async_wait([this](const error_code& cancelled) {
    if (!cancelled) {
      tick();
    }
  });
}

void Supervisor::check_silence(int rank, Clock::time_point now) {
  if (ending_.has_begun()) {
    return;
  }
  if (std::optional<std::string> why =
          inquest_.silence(rank, now, settings_.heartbeat_timeout, settings_.join_timeout)) {
    send_signal(rank, SIGKILL);
    inquest_.blame(rank, FailureKind::own, std::move(*why));
    ending_.look(inquest_);
  }
}

void Supervisor::end_all() {
  store_.abort(describe(*inquest_.cause()));
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    if (!subject(rank).joined) {
      send_signal(rank, SIGKILL);  // it could not hear of the abort, and has nothing to lose yet
    }
  }
  kill_after_grace();
}

void Supervisor::kill_after_grace() {
  grace_.start(settings_.grace, [this] { kill_all(); });
}

void Supervisor::kill_all() {
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    send_signal(rank, SIGKILL);
  }
}

/// By its pid, which is its own until it is reaped. Who is dead already was not killed by this.
void Supervisor::send_signal(int rank, int signal) {
  const Inquest::Subject& running = subject(rank);
  if (running.end.pid > 0 && !running.gone && !is_dead(running.end.pid)) {
    subject(rank).end.killed = true;
    ::kill(running.end.pid, signal);
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
  LaunchResult result = inquest_.result();
  result.strangers = store_.strangers();
  result.stop_signal = stop_signal_;
  result.forced_signal = forced_signal_;
  if (!result.cause && forced_signal_ != 0) {
    result.exit_code = 128 + forced_signal_;
  } else if (!result.cause && stopped_at_once_) {
    result.exit_code = 128 + stop_signal_;
  }
  if (ending_.has_begun()) {
    result.ending = ending_.lasting();
  }
  return result;
}

}  // namespace shardrun::launch
