#include "core/device/cuda/runtime/timed_products.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace shardrun::device::cuda {
namespace {

/// A lock on the whole file, held while the file is read and extended.
class Locked {
 public:
  Locked(const files::FileDescriptor& file, const std::filesystem::path& path) : file_(file) {
    while (::flock(file.get(), LOCK_EX) != 0) {
      if (errno != EINTR) {
        throw files::system_error("lock", path, errno);
      }
    }
  }
  ~Locked() { static_cast<void>(::flock(file_.get(), LOCK_UN)); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  const files::FileDescriptor& file_;
};

files::FileDescriptor open(const std::filesystem::path& path) {
  files::FileDescriptor file(::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (!file.is_open()) {
    throw files::system_error("open", path, errno);
  }
  return file;
}

}  // namespace

TimedProducts::TimedProducts(std::filesystem::path path, const std::string& library, const std::string& gpu)
    : path_(std::move(path)),
      head_(fmt::format("# shardrun: products timed with {} on {}", library, gpu)),
      file_(open(path_)) {
  const Locked lock(file_, path_);
  read_on();
  if (lines_ == 0) {
    append(head_);
  }
}

std::size_t TimedProducts::find(const std::vector<std::int64_t>& key, std::size_t proposals, const std::string& text,
                                const std::function<Times()>& time) {
  const std::string name = fmt::format("{}", fmt::join(key, ","));
  const Locked lock(file_, path_);
  read_on();
  if (const auto known = known_.find(name); known != known_.end()) {
    const auto [proposal, line] = known->second;
    if (proposal >= proposals) {
      refuse(line, fmt::format("proposal {} for {}", proposal, text),
             fmt::format("one of {}, counted from 0", proposals));
    }
    return proposal;
  }
  const Times times = time();
  const auto best = std::ranges::min_element(times);
  const auto number = static_cast<std::size_t>(std::distance(times.begin(), best));
  append(fmt::format("{}\t{}\t{:.4f} ms, the first of {} {:.4f} ms\t{}", name, number, *best, times.size(),
                     times.front(), text));
  return number;
}

void TimedProducts::read_on() {
  std::string added;
  for (;;) {
    std::array<char, 65536> part = {};
    const ssize_t got = ::pread(file_.get(), part.data(), part.size(), static_cast<off_t>(read_ + added.size()));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      throw files::system_error("read", path_, errno);
    }
    if (got == 0) {
      break;
    }
    added.append(part.data(), static_cast<std::size_t>(got));
  }
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = added.find('\n', begin)) != std::string::npos; begin = end + 1) {
    take(added.substr(begin, end - begin));
  }
  read_ += begin;
  // A killed process has left a part of a line. It can be removed, because nobody else writes while the file is locked.
  if (begin != added.size() && ::ftruncate(file_.get(), static_cast<off_t>(read_)) != 0) {
    throw files::system_error("write", path_, errno);
  }
}

void TimedProducts::take(const std::string& line) {
  ++lines_;
  if (lines_ == 1) {
    if (line != head_) {
      refuse(1, fmt::format("'{}'", shown(line)), fmt::format("'{}'", head_));
    }
    return;
  }
  const std::size_t tab = line.find('\t');
  const std::string_view rest = tab == std::string::npos ? "" : std::string_view(line).substr(tab + 1);
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || end == rest.data() + rest.size() || *end != '\t') {
    refuse(lines_, fmt::format("'{}'", shown(line)), "a product and the number of a proposal, with tabs behind them");
  }
  known_.insert_or_assign(line.substr(0, tab), Known{number, lines_});
}

void TimedProducts::append(const std::string& line) {
  const std::string bytes = line + "\n";
  files::write_all(file_, std::as_bytes(std::span(bytes)), path_);
  read_on();
}

void TimedProducts::refuse(std::size_t line, const std::string& found, const std::string& expected) const {
  throw Error(ErrorCode::job, fmt::format("'{}' ({}), line {}: found {}, expected {}: remove the file, or name another",
                                          shown(path_.native()), timed_products_variable, line, found, expected));
}

}  // namespace shardrun::device::cuda
