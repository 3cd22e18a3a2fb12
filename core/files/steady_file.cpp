#include "core/files/steady_file.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/stop.h"

namespace shardrun::files {
namespace {

constexpr std::int64_t second = 1'000'000'000;

std::int64_t nanoseconds(const timespec& time) { return time.tv_sec * second + time.tv_nsec; }

/// Waits until the kernel's clock has ticked since the file's last change. Changes within one tick can have equal
/// times; after this wait, any later change gets a different time.
void await_next_tick(std::int64_t changed) {
  constexpr std::int64_t longest = 50'000'000;  // if the time is further in the future, another clock has set it
  const auto now = [] {
    timespec time = {};
    ::clock_gettime(CLOCK_REALTIME_COARSE, &time);
    return nanoseconds(time);
  };
  for (std::int64_t at = now(); at <= changed && changed - at < longest; at = now()) {
    const timespec pause = {.tv_sec = 0, .tv_nsec = 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

FileStamp stamp_of(const struct stat& status) {
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size = static_cast<std::uint64_t>(status.st_size),
          .modified = nanoseconds(status.st_mtim),
          .changed = nanoseconds(status.st_ctim)};
}

/// A time as text: "2026-11-22 18:31:35.123 UTC".
std::string time_text(std::int64_t time) {
  const std::time_t seconds = time / second;
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03} UTC", fmt::gmtime(seconds), time % second / 1'000'000);
}

}  // namespace

/// Hashes in four independent lanes, which the processor can compute in parallel.
std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept {
  std::array<std::uint64_t, 4> lanes = {0x243f6a8885a308d3U, 0x13198a2e03707344U, 0xa4093822299f31d0U,
                                        0x082efa98ec4e6c89U};
  constexpr std::uint64_t odd = 0x9e3779b97f4a7c15U;
  std::uint64_t length = bytes.size();
  while (!bytes.empty()) {
    std::array<std::uint64_t, 4> words = {};
    const std::size_t count = std::min(sizeof words, bytes.size());
    std::memcpy(words.data(), bytes.data(), count);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      lanes[i] = (lanes[i] ^ words[i]) * odd;
      lanes[i] ^= lanes[i] >> 29U;
    }
    bytes = bytes.subspan(count);
  }
  for (const std::uint64_t lane : lanes) {
    length = (length ^ lane) * odd;
    length ^= length >> 32U;
  }
  return length;
}

SteadyFile::SteadyFile(std::filesystem::path path, std::size_t hashed) : path_(std::move(path)), hashed_(hashed) {
  // With O_NONBLOCK, opening a named pipe does not wait for its other end; it is refused below.
  file_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status = {};
  if (!file_.is_open() || ::fstat(file_.get(), &status) != 0) {
    throw unreadable("read", path_, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::data, fmt::format("cannot read '{}': it is {}, not a regular file", path_.native(),
                                             S_ISDIR(status.st_mode) ? "a folder" : "a device or pipe"));
  }
  if (char first = 0; ::pread(file_.get(), &first, 1, 0) < 0) {
    throw unreadable("read", path_, errno);
  }
  await_next_tick(std::max(nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)));
  stamp_ = stamp_now();
}

SteadyFile::SteadyFile(FileDescriptor file, std::filesystem::path path)
    : path_(std::move(path)), file_(std::move(file)), stamp_(stamp_now()) {}

FileStamp SteadyFile::stamp_now() const {
  struct stat status = {};
  if (::fstat(file_.get(), &status) != 0) {
    throw system_error("look at", path_, errno);
  }
  return stamp_of(status);
}

void SteadyFile::read(std::size_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got = ::pread(file_.get(), to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      throw system_error("read", path_, errno);
    }
    if (got == 0) {
      throw Error(ErrorCode::io,
                  fmt::format("'{}' was cut short while this job was using it: it had {} bytes and has {} "
                              "now: give the job a file that nobody writes to, and start it again",
                              path_.native(), size(), stamp_now().size));
    }
    offset += static_cast<std::size_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
}

std::optional<std::string> SteadyFile::change() const {
  const FileStamp now = stamp_now();
  if (now == stamp_) {
    return std::nullopt;
  }
  if (now.size != stamp_.size) {
    return fmt::format("it had {} bytes and has {} now", stamp_.size, now.size);
  }
  if (now.modified != stamp_.modified) {
    return fmt::format("its time of last modification is {}, and was {} when it was opened", time_text(now.modified),
                       time_text(stamp_.modified));
  }
  if (!fingerprint_.empty()) {
    const std::string known = std::exchange(fingerprint_, {});
    if (fingerprint() == known) {
      stamp_ = now;
      return std::nullopt;
    }
    fingerprint_ = known;
  }
  return fmt::format("its status and its bytes were changed at {}; when it was opened the last time was {}",
                     time_text(now.changed), time_text(stamp_.changed));
}

void SteadyFile::require_unchanged() const {
  if (const std::optional<std::string> how = change()) {
    throw Error(ErrorCode::io, fmt::format("'{}' changed while this job was using it: {}: give the job a file that "
                                           "nobody writes to, and start it again",
                                           path_.native(), *how));
  }
}

void SteadyFile::hash_also(std::size_t offset, std::size_t bytes) {
  for (std::size_t number = offset / page; number * page < offset + bytes; ++number) {
    also_hashed_.push_back(number);
  }
}

const std::string& SteadyFile::fingerprint() const {
  if (!fingerprint_.empty()) {
    return fingerprint_;
  }
  const std::size_t pages = (size() + page - 1) / page;
  const std::size_t spaced = std::min(pages, hashed_ / page);
  std::vector<std::size_t> chosen = also_hashed_;
  for (std::size_t i = 0; i < spaced; ++i) {
    chosen.push_back(spaced < 2 ? 0 : i * (pages - 1) / (spaced - 1));  // evenly spaced pages, with the last
  }
  std::ranges::sort(chosen);
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  std::vector<std::byte> bytes(page);
  std::uint64_t hash = 0;
  for (const std::size_t number : chosen) {
    stop_point();
    const std::size_t first = number * page;
    const std::span<std::byte> part = std::span(bytes).first(std::min(page, size() - first));
    read(first, part);
    // Multiplying by an odd number makes the hash depend on the order of the pages.
    hash = (hash ^ hash_of(part)) * 0x9e3779b97f4a7c15ULL;
  }
  return fingerprint_ = fmt::format("{} bytes, hash {:016x}", size(), hash);
}

namespace {

/// Takes a number, and the dot after it if there is one, from the start of a text. Returns false if no number is there.
template <typename Number>
bool take(std::string_view& text, Number& number, int base = 10) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (failed != std::errc()) {
    return false;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (text.starts_with('.')) {
    text.remove_prefix(1);
  }
  return true;
}

}  // namespace

std::string SteadyFile::handle(int process, int number) const {
  const std::string& print = fingerprint();
  return fmt::format("{}.{}.{}.{}.{}.{}.{}.{}", process, number, stamp_.device, stamp_.inode, stamp_.size,
                     stamp_.modified, stamp_.changed, print.substr(print.rfind(' ') + 1));
}

std::optional<SteadyFile> SteadyFile::open_handle(std::string_view handle, std::filesystem::path path) {
  int process = 0;
  int number = 0;
  FileStamp stamp;
  std::uint64_t hash = 0;
  std::string_view rest = handle;
  if (!take(rest, process) || !take(rest, number) || !take(rest, stamp.device) || !take(rest, stamp.inode) ||
      !take(rest, stamp.size) || !take(rest, stamp.modified) || !take(rest, stamp.changed) || !take(rest, hash, 16) ||
      !rest.empty()) {
    throw Error(ErrorCode::io, fmt::format("'{}' does not tell of an open file", handle));
  }
  const auto is_the_file = [&](int descriptor) {
    struct stat status = {};
    return ::fstat(descriptor, &status) == 0 && status.st_dev == stamp.device && status.st_ino == stamp.inode;
  };
  FileDescriptor file;
  if (process != 0) {
    // The number can now belong to a pipe or a terminal of that process, so opening must neither wait nor take a
    // terminal.
    file = FileDescriptor(
        ::open(fmt::format("/proc/{}/fd/{}", process, number).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!file.is_open() || !is_the_file(file.get())) {
      return std::nullopt;
    }
  } else {
    // A descriptor of another file belongs to other code of this process, so it is not closed.
    if (!is_the_file(number)) {
      return std::nullopt;
    }
    file = FileDescriptor(number);
    if (::fcntl(number, F_SETFD, FD_CLOEXEC) != 0) {
      throw system_error("keep to this process", path, errno);
    }
  }
  SteadyFile opened(std::move(file), std::move(path));
  opened.stamp_ = stamp;
  opened.fingerprint_ = fmt::format("{} bytes, hash {:016x}", stamp.size, hash);
  opened.require_unchanged();
  return opened;
}

}  // namespace shardrun::files
