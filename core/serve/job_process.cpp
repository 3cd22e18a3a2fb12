#include "core/serve/dispatcher.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <csignal>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/files/descriptor.h"
#include "core/files/json.h"
#include "core/launch/environment.h"
#include "core/launch/process.h"

namespace shardrun::serve {
namespace {

using boost::system::error_code;

/// The longest line of the job's output, in bytes. An event has the text and tokens of a step.
constexpr std::size_t most_event_bytes = std::size_t{16} << 20U;

std::string how_ended(int status) {
  return WIFSIGNALED(status) ? fmt::format("the job was ended by SIG{}", ::sigabbrev_np(WTERMSIG(status)))
                             : fmt::format("the job ended with exit code {}", WEXITSTATUS(status));
}

int released(files::FileDescriptor descriptor) {
  const int copy = ::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) {
    throw files::system_error("open", "a pipe to the job", errno);
  }
  return copy;
}

}  // namespace

void JobProcess::start(const std::vector<std::string>& words) {
  std::array<int, 2> ends = {};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw files::system_error("open", "a pipe to the job", errno);
  }
  const files::FileDescriptor input(ends[0]);
  input_.assign(ends[1]);
  std::vector<std::string> arguments = {"shardrun"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  launch::StartedProcess started = launch::start_process({.program = "/proc/self/exe",
                                                          .arguments = std::move(arguments),
                                                          .environment = launch::own_environment(),
                                                          .input = input.get()});
  pid_ = started.pid;
  output_.stream.assign(released(std::move(started.output)));
  errors_.stream.assign(released(std::move(started.errors)));
  read(
      output_, [this](std::string_view line) { hear(line); }, [this] { reap(); });
  read(
      errors_, [this](std::string_view line) { events_.said(line); }, [this] { reap(); });
}

void JobProcess::read(Lines& from, const std::function<void(std::string_view line)>& take,
                      const std::function<void()>& at_end) {
  from.buffer.resize(std::size_t{64} << 10U);
  from.stream.async_read_some(boost::asio::buffer(from.buffer), [self = shared_from_this(), &from, take, at_end](
                                                                    error_code failed, std::size_t size) {
    if (self->pid_ < 0) {
      return;
    }
    if (failed) {
      from.stream.close();
      return at_end();
    }
    std::string_view bytes(from.buffer.data(), size);
    for (std::size_t end = 0; (end = bytes.find('\n')) != std::string_view::npos; bytes.remove_prefix(end + 1)) {
      from.begun += bytes.substr(0, end);
      take(std::exchange(from.begun, ""));
      if (self->pid_ < 0) {
        return;
      }
    }
    from.begun += bytes;
    if (from.begun.size() > most_event_bytes) {
      self->events_.said(fmt::format("the job is ended: it wrote a line of more than {} bytes", most_event_bytes));
      ::kill(self->pid_, SIGKILL);
      from.begun.clear();
    }
    self->read(from, take, at_end);
  });
}

void JobProcess::hear(std::string_view line) {
  if (line.empty() || has_failed_) {
    return;
  }
  boost::json::object event;
  try {
    event = files::parse_json_strictly(line, "an event of the job").as_object();
  } catch (const std::exception& error) {
    // Usually a rank failed while the event was being written. The job then ends by itself, and says why.
    has_failed_ = true;
    events_.said(fmt::format("what the job wrote is no event: {}", error.what()));
    ::kill(pid_, SIGTERM);
    end_input();  // the signal alone does not end a job that waits for prompts
    event = {{"failed", "the job wrote what is no event"}};
  }
  events_.told(event);
}

void JobProcess::send(std::string_view line) {
  unsent_ += line;
  unsent_ += '\n';
  write();
}

void JobProcess::write() {
  if (!writing_.empty() || !input_.is_open()) {
    return;
  }
  if (unsent_.empty()) {
    if (is_ending_) {
      input_.close();
    }
    return;
  }
  writing_ = std::exchange(unsent_, "");
  boost::asio::async_write(input_, boost::asio::buffer(writing_),
                           [self = shared_from_this()](error_code failed, std::size_t) {
                             self->writing_.clear();
                             if (!failed) {  // otherwise the job has ended, which the end of its output tells
                               self->write();
                             }
                           });
}

void JobProcess::end_input() {
  is_ending_ = true;
  write();
}

/// Waits for the process once all its output is read. By then the process has ended, or is about to end.
void JobProcess::reap() {
  if (pid_ < 0 || output_.stream.is_open() || errors_.stream.is_open()) {
    return;
  }
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  error_code ignored;
  input_.close(ignored);
  events_.ended(how_ended(status), WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

void JobProcess::kill() noexcept {
  if (pid_ < 0) {
    return;
  }
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  error_code ignored;
  input_.close(ignored);
  output_.stream.close(ignored);
  errors_.stream.close(ignored);
}

}  // namespace shardrun::serve
