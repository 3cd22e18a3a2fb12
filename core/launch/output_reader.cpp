#include "core/launch/supervisor.h"

#include <fcntl.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <string_view>
#include <utility>

#include "core/base/error.h"

namespace shardrun::launch {
namespace {

/// The most that drain() reads. A dead writer left no more in the pipe; its descendants could write forever.
constexpr std::size_t largest_pipe_bytes = std::size_t{1024} * 1024;

int duplicate(const files::FileDescriptor& pipe) {
  const int copy = ::fcntl(pipe.get(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) {
    throw files::system_error("open", "a rank's output", errno);
  }
  return copy;
}

}  // namespace

void LineSplitter::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const bool whole = bytes.front() == '\n';
    if (whole || begun_.size() == max_line_bytes) {
      on_line_(begun_);
      begun_.clear();
    }
    if (whole) {
      bytes.remove_prefix(1);
      continue;
    }
    const std::size_t taken = std::min({bytes.find('\n'), bytes.size(), max_line_bytes - begun_.size()});
    begun_ += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
  }
}

void LineSplitter::end() {
  if (!begun_.empty()) {
    on_line_(begun_);
    begun_.clear();
  }
}

/// Asio closes its copy of the descriptor; `pipe` closes the original.
OutputReader::OutputReader(boost::asio::io_context& io, files::FileDescriptor pipe, LineSplitter::OnLine on_line)
    : pipe_(io, duplicate(pipe)), lines_(std::move(on_line)) {
  pipe_.non_blocking(true);
}

/// Waits first and then reads: an asynchronous read could have taken bytes that drain() would miss.
void OutputReader::start() {
  pipe_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](boost::system::error_code error) {
    if (error || !pipe_.is_open()) {
      return;
    }
    const std::size_t size = pipe_.read_some(boost::asio::buffer(chunk_), error);
    lines_.add({chunk_.data(), size});
    if (!error || error == boost::asio::error::would_block) {
      start();
    }
  });
}

void OutputReader::drain() {
  boost::system::error_code error;
  for (std::size_t drained = 0; !error && pipe_.is_open() && drained < largest_pipe_bytes;) {
    const std::size_t size = pipe_.read_some(boost::asio::buffer(chunk_), error);
    lines_.add({chunk_.data(), size});
    drained += size;
  }
  pipe_.close(error);
  lines_.end();
}

}  // namespace shardrun::launch
