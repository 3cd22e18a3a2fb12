#include "plugins/loader/descendants.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <string_view>

namespace shardrun::plugins {
namespace {

/// Builds "/proc/PID/task/TID/children" and the like, without allocating.
class ProcPath {
 public:
  ProcPath& operator<<(std::string_view text) noexcept {
    const std::size_t taken = text.size() < text_.size() - 1 - size_ ? text.size() : text_.size() - 1 - size_;
    std::memcpy(text_.data() + size_, text.data(), taken);
    size_ += taken;
    return *this;
  }
  ProcPath& operator<<(pid_t number) noexcept {
    std::array<char, 12> digits{};
    std::size_t at = digits.size();
    for (unsigned rest = static_cast<unsigned>(number); rest != 0 || at == digits.size(); rest /= 10) {
      digits[--at] = static_cast<char>('0' + rest % 10);
    }
    return *this << std::string_view(digits.data() + at, digits.size() - at);
  }
  [[nodiscard]] int open(int flags) const noexcept { return ::open(text_.data(), flags | O_RDONLY | O_CLOEXEC); }

 private:
  std::array<char, 128> text_{};
  std::size_t size_ = 0;
};

std::uint64_t number_in(std::string_view text, std::size_t& at) noexcept {
  std::uint64_t number = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    number = number * 10 + static_cast<std::uint64_t>(text[at] - '0');
  }
  return number;
}

template <std::size_t size>
std::string_view read_all(const ProcPath& path, std::array<char, size>& room) noexcept {
  const int file = path.open(0);
  std::size_t count = 0;
  for (ssize_t got = 1; file >= 0 && got > 0 && count < size; count += static_cast<std::size_t>(got > 0 ? got : 0)) {
    got = ::read(file, room.data() + count, size - count);
  }
  if (file >= 0) {
    ::close(file);
  }
  return {room.data(), count};
}

/// Field 22 of /proc/PID/stat, or 0 where there is no such process. Field 2 is a name in parentheses.
std::uint64_t start_of(pid_t process) noexcept {
  std::array<char, 1024> room{};
  const std::string_view text = read_all(ProcPath() << "/proc/" << process << "/stat", room);
  std::size_t at = text.rfind(')');
  for (int field = 2; field < 22 && at != std::string_view::npos; ++field) {
    at = text.find(' ', at + 1);
  }
  return at == std::string_view::npos ? 0 : number_in(text, ++at);
}

void kill_below(pid_t process, std::uint64_t since, int depth) noexcept;

void kill_children(std::string_view list, std::uint64_t since, int depth) noexcept {
  for (std::size_t at = 0; at < list.size(); ++at) {
    const auto child = static_cast<pid_t>(number_in(list, at));
    if (child > 0 && start_of(child) >= since) {
      ::kill(child, SIGSTOP);  // so that it starts no more processes
      kill_below(child, 0, depth + 1);
      ::kill(child, SIGKILL);
    }
  }
}

void kill_below(pid_t process, std::uint64_t since, int depth) noexcept {
  constexpr int deepest = 8;  // the stack of a signal handler is small
  const int folder = depth > deepest ? -1 : (ProcPath() << "/proc/" << process << "/task").open(O_DIRECTORY);
  if (folder < 0) {
    return;
  }
  constexpr std::size_t name_offset = 19;  // in struct linux_dirent64: after the 16-bit size and the type
  alignas(8) std::array<char, 1024> entries{};
  for (long got = 1; got > 0;) {
    got = ::syscall(SYS_getdents64, folder, entries.data(), entries.size());
    for (long at = 0; at < got;) {
      const char* const entry = entries.data() + at;
      std::uint16_t length = 0;
      std::memcpy(&length, entry + 16, sizeof(length));
      at += length;
      if (const std::string_view thread(entry + name_offset); thread.front() != '.') {
        std::array<char, 2048> room{};
        kill_children(read_all(ProcPath() << "/proc/" << process << "/task/" << thread << "/children", room), since,
                      depth);
      }
    }
  }
  ::close(folder);
}

}  // namespace

std::uint64_t process_clock() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  constexpr long ticks = 100;  // USER_HZ, the same on every machine
  return static_cast<std::uint64_t>(now.tv_sec) * ticks +
         static_cast<std::uint64_t>(now.tv_nsec) / (1'000'000'000 / ticks);
}

void kill_children_since(std::uint64_t time) noexcept { kill_below(::getpid(), time, 0); }

}  // namespace shardrun::plugins
