#include "core/data/npy_stream.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/data/npy.h"

namespace shardrun::data {
namespace {

constexpr std::string_view npy_magic = "\x93NUMPY";
constexpr std::size_t read_size = std::size_t{1} << 16U;

/// Waits until a read or write would not block. Returns false if `waiting` has returned false. `waiting` is called ten
/// times a second while nothing can be read or written, and also if bytes keep arriving slowly. `told`: its last call.
bool await_stream(const files::FileDescriptor& file, short event, const Waiting& waiting,
                  std::chrono::steady_clock::time_point& told) {
  constexpr std::chrono::milliseconds interval{100};
  pollfd polled{.fd = file.get(), .events = event, .revents = 0};
  for (;;) {
    const int ready = ::poll(&polled, 1, static_cast<int>(interval.count()));
    if (ready < 0 && errno != EINTR) {
      throw Error(ErrorCode::io, fmt::format("cannot wait for a stream: {}", std::generic_category().message(errno)));
    }
    if (const auto now = std::chrono::steady_clock::now(); ready <= 0 || now - told >= interval) {
      told = now;
      if (!waiting()) {
        return false;
      }
    }
    if (ready > 0) {
      return true;
    }
  }
}

/// How many bytes can be written at once without blocking. A pipe that is ready takes PIPE_BUF, a file any number.
std::size_t most_at_once(const files::FileDescriptor& file) {
  struct stat status = {};
  return ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) ? SIZE_MAX : PIPE_BUF;
}

}  // namespace

void InputStream::read_once() {
  std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_), buffer_.begin() + static_cast<std::ptrdiff_t>(end_),
            buffer_.begin());
  end_ -= std::exchange(begin_, 0);
  buffer_.resize(std::max(buffer_.size(), end_ + read_size));
  const ssize_t count = ::read(file_.get(), buffer_.data() + end_, buffer_.size() - end_);
  if (count < 0 && errno != EINTR && errno != EAGAIN) {
    throw files::system_error("read", name_, errno);
  }
  is_at_end_ = count == 0;
  end_ += count > 0 ? static_cast<std::size_t>(count) : 0;
}

std::size_t InputStream::fill_to(std::size_t bytes) {
  while (end_ - begin_ < bytes && !is_at_end_) {
    if (!await_stream(file_, POLLIN, waiting_, told_)) {
      is_at_end_ = true;
      break;
    }
    read_once();
  }
  return end_ - begin_;
}

bool InputStream::fill_with_what_is_there() {
  pollfd polled{.fd = file_.get(), .events = POLLIN, .revents = 0};
  if (is_at_end_ || ::poll(&polled, 1, 0) <= 0) {
    return false;
  }
  const std::size_t before = end_ - begin_;
  read_once();
  return end_ - begin_ > before;
}

std::optional<std::string> LineReader::next() {
  while (skips_ && stream_.fill_to(1) > 0) {
    const std::span<const std::byte> bytes = stream_.waiting();
    const auto end = std::ranges::find(bytes, std::byte{'\n'});
    skips_ = end == bytes.end();
    stream_.take(static_cast<std::size_t>(end - bytes.begin()) + (skips_ ? 0 : 1));
  }
  for (std::size_t looked = 0; stream_.fill_to(looked + 1) > looked;) {
    const std::span<const std::byte> bytes = stream_.waiting();
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::size_t end = text.find('\n', looked);
    if (end == std::string_view::npos) {
      looked = text.size();
      if (looked > most_) {
        ++number_;
        stream_.take(text.size());
        skips_ = true;
        throw Error(ErrorCode::data, fmt::format("{}: the line has more than {} bytes", place(), most_));
      }
      continue;
    }
    ++number_;
    std::string line(text.substr(0, end));
    stream_.take(end + 1);
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      return line;
    }
    looked = 0;
  }
  const std::span<const std::byte> rest = stream_.waiting();
  if (rest.empty()) {
    return std::nullopt;
  }
  ++number_;
  std::string line(reinterpret_cast<const char*>(rest.data()), rest.size());
  stream_.take(rest.size());
  return line.find_first_not_of(" \t\r") == std::string::npos ? std::nullopt : std::optional(std::move(line));
}

bool LineReader::has_next() {
  do {
    const std::span<const std::byte> bytes = stream_.waiting();
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::size_t begin = text.find_first_not_of(" \t\r\n");
    if (stream_.is_at_end() || text.size() > most_ ||
        (begin != std::string_view::npos && text.find('\n', begin) != std::string_view::npos)) {
      return true;
    }
  } while (stream_.fill_with_what_is_there());
  return stream_.is_at_end();
}

std::string LineReader::place() const { return fmt::format("{}:{}", stream_.name(), number_); }

void NpyReader::refuse_record(const std::string& why) const {
  throw Error(ErrorCode::data, fmt::format("record {} of {}: {}", number_, stream_.name(), why));
}

std::size_t NpyReader::read_values(std::span<std::byte> to) {
  std::size_t done = 0;
  while (done < to.size() && stream_.fill_to(1) > 0) {
    const std::span<const std::byte> there = stream_.waiting();
    const std::size_t count = std::min(to.size() - done, there.size());
    std::copy_n(there.begin(), count, to.begin() + static_cast<std::ptrdiff_t>(done));
    stream_.take(count);
    done += count;
  }
  return done;
}

void NpyReader::find_next() {
  is_lost_ = false;
  while (stream_.fill_to(npy_magic.size()) >= npy_magic.size()) {
    const std::span<const std::byte> there = stream_.waiting();
    const std::string_view text(reinterpret_cast<const char*>(there.data()), there.size());
    const std::size_t found = text.find(npy_magic);
    if (found != std::string_view::npos) {
      return stream_.take(found);
    }
    stream_.take(text.size() - (npy_magic.size() - 1));
  }
  stream_.take(stream_.waiting().size());
}

/// Waits until the stream has the header, but not for bytes after it. Returns the number of bytes of the header that
/// are there.
std::size_t NpyReader::fill_header() {
  constexpr std::size_t least = 12;  // magic, version, and a length of two or four bytes
  const std::size_t there = stream_.fill_to(least);
  if (there < least) {
    return there;
  }
  const auto at = [&](std::size_t index) { return std::to_integer<std::size_t>(stream_.waiting()[index]); };
  std::size_t length = at(8) | at(9) << 8U;
  if (at(6) > 1) {
    length |= at(10) << 16U | at(11) << 24U;
  }
  const std::size_t whole = std::min((at(6) > 1 ? 12 : 10) + length, most_header_bytes);
  return std::min(stream_.fill_to(whole), whole);
}

std::optional<NpyRecord> NpyReader::next() {
  if (is_lost_) {
    find_next();
  }
  if (stream_.fill_to(1) == 0) {
    return std::nullopt;
  }
  ++number_;
  const std::size_t head = fill_header();
  const std::span<const std::byte> bytes = stream_.waiting().first(head);
  is_lost_ = true;
  const NpyHeader header = [&] {
    try {
      return parse_npy_header(bytes, head, fmt::format("record {} of {}", number_, stream_.name()));
    } catch (const Error&) {
      stream_.take(1);  // skips the first byte, so that the search for the next record does not find this one again
      throw;
    }
  }();
  stream_.take(header.data_offset);
  const auto elements = static_cast<std::uint64_t>(header.elements);
  if (elements > most_record_bytes / std::max(element_bytes(header.type), graph::element_bytes(dtype_))) {
    refuse_record(fmt::format("its shape [{}] of {} is more than {} bytes, as it is or as {}",
                              fmt::join(header.shape, ", "), to_string(header.type), most_record_bytes,
                              graph::to_string(dtype_)));
  }
  std::vector<std::byte> raw(elements * element_bytes(header.type));
  if (const std::size_t found = read_values(raw); found != raw.size()) {
    refuse_record(fmt::format("it is cut short: {} of its {} bytes are there", found, raw.size()));
  }
  is_lost_ = false;
  NpyRecord record{.number = number_,
                   .shape = header.shape,
                   .bytes = std::vector<std::byte>(elements * graph::element_bytes(dtype_))};
  try {
    convert_elements(header.type, raw, dtype_, record.bytes);
  } catch (const Error& error) {
    refuse_record(error.message());
  }
  return record;
}

NpyWriter::NpyWriter(files::FileDescriptor file, std::string name, Waiting waiting)
    : file_(std::move(file)),
      name_(std::move(name)),
      waiting_(std::move(waiting)),
      most_at_once_(most_at_once(file_)) {}

void NpyWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty() && !is_ended_) {
    is_ended_ = !await_stream(file_, POLLOUT, waiting_, told_);
    const std::span<const std::byte> now = bytes.first(is_ended_ ? 0 : std::min(bytes.size(), most_at_once_));
    files::write_all(file_, now, name_);
    bytes = bytes.subspan(now.size());
  }
}

}  // namespace shardrun::data
