#include "transports/shm/control.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <ctime>
#include <shardrun/sdk/transport/clock.hpp>
#include <shardrun/sdk/transport/core_wait.hpp>
#include <system_error>
#include <utility>

namespace shardrun::shm_transport {
namespace {

/// How often a sleeping thread checks without a wakeup, which is lost if the process that should send it ends first.
constexpr std::chrono::milliseconds check_interval(20);

/// The longest time for which Linux usually runs a thread before it lets others run.
constexpr std::int64_t slice_ns = 4'000'000;

/// How long all yields before a sleep may take, apart from one tick of the coarse clock. Members that run the same op
/// need less.
constexpr std::int64_t yielding_ns = 5'000'000;

std::int64_t nanoseconds(const timespec& time) noexcept {
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

/// The host's clock as of its last tick, at most some milliseconds ago. It is cheaper than `now`.
std::int64_t coarse_now() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return nanoseconds(now);
}

std::int64_t coarse_tick() noexcept {
  static const std::int64_t tick = [] {
    timespec resolution{};
    clock_getres(CLOCK_MONOTONIC_COARSE, &resolution);
    return nanoseconds(resolution);
  }();
  return tick;
}

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) noexcept {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

/// What the text "PID DESCRIPTOR INODE" says.
struct Announcement {
  int pid = 0;
  int descriptor = -1;
  std::uint64_t inode = 0;
};

std::string to_text(const Announcement& from) {
  return std::to_string(from.pid) + " " + std::to_string(from.descriptor) + " " + std::to_string(from.inode);
}

/// Parses numbers separated by single spaces. Throws TransportError: `whose` announced the text, expected `what`.
template <class... Number>
void read(const std::string& text, const std::string& whose, const std::string& what, Number&... to) {
  const char* at = text.data();
  const char* const end = at + text.size();
  bool is_good = true;
  const auto read_one = [&](auto& number, bool is_first) {
    if (!is_first) {
      is_good = is_good && at != end && *at == ' ';
      at = std::min(at + 1, end);
    }
    const auto [rest, error] = std::from_chars(at, end, number);
    is_good = is_good && error == std::errc();
    at = rest;
  };
  bool is_first = true;
  (read_one(to, std::exchange(is_first, false)), ...);
  if (!is_good || at != end) {
    throw TransportError(SR_INTERNAL, whose + " announced '" + text + "', expected " + what);
  }
}

Descriptor pidfd_of(int pid) { return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

/// Whether a process ends within a short time. A process closes its files a little before it counts as ended.
bool ends_soon(const Descriptor& pidfd) noexcept {
  constexpr int soon_ms = 200;
  pollfd watched = {.fd = pidfd.number(), .events = POLLIN, .revents = 0};
  return poll(&watched, 1, soon_ms) > 0;
}

bool is_process_gone(int pid) {
  const Descriptor pidfd = pidfd_of(pid);
  return pidfd.number() < 0 ? errno == ESRCH : ends_soon(pidfd);
}

/// Whether the job's ranks on this machine outnumber the cores that they may use.
bool is_crowded(const Config& config) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) != 0 ||
         static_cast<std::uint32_t>(CPU_COUNT(&cores)) < config.local_world_size;
}

TransportError process_gone(int pid, const GroupSpec& group, std::uint32_t member) {
  return {SR_PEER_LOST, "process " + std::to_string(pid) + " of " + group.name_of(member) + " is gone",
          group.members[member]};
}

}  // namespace

std::size_t bytes_for_ops() {
  constexpr std::size_t usual = std::size_t{1} << 30U;
  constexpr std::size_t page = std::size_t{1} << 16U;
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return usual;
  }
  return std::min<std::size_t>(usual, limit.rlim_cur / 16 / page * page);
}

Control::Control(const Config& config, const GroupSpec& spec, const std::string& key)
    : spec_(spec),
      layout_(spec.size()),
      host_(config.host),
      spins_(is_crowded(config) ? 1 : 128),
      yields_(is_crowded(config) ? 64 : 100) {
  connect(key);
}

void Control::connect(const std::string& key) {
  if (rank() == 0) {
    mapping_ = Mapping::create(layout_.ops + bytes_for_ops());
    host_.store_set(key + "control", to_text({getpid(), mapping_->descriptor(), mapping_->inode()}));
  } else {
    open_memory(await_key(0, key + "control"));
  }
  header_ = reinterpret_cast<Header*>(mapping_->data());
  segments_.emplace(at(layout_.ops), mapping_->bytes() - layout_.ops, size());
  member(rank()).pid = getpid();
  host_.store_set(key + std::to_string(rank()), std::to_string(getpid()));
  for (std::uint32_t m = 0; m < size(); ++m) {
    pidfds_.push_back(m == rank() ? Descriptor() : watch(m, key));
  }
}

void Control::open_memory(const std::string& announced) {
  Announcement first;
  read(announced, spec_.name_of(0), "process, descriptor and inode", first.pid, first.descriptor, first.inode);
  try {
    mapping_ = Mapping::open(first.pid, first.descriptor, first.inode);
  } catch (const TransportError&) {
    if (is_process_gone(first.pid)) {
      throw process_gone(first.pid, spec_, 0);
    }
    throw;
  }
}

Descriptor Control::watch(std::uint32_t member, const std::string& key) const {
  const std::string name = spec_.name_of(member);
  int pid = 0;
  read(await_key(member, key + std::to_string(member)), name, "a process's number", pid);
  Descriptor pidfd = pidfd_of(pid);
  if (pidfd.number() < 0 && errno == ESRCH) {
    throw process_gone(pid, spec_, member);
  }
  if (pidfd.number() < 0) {
    throw TransportError(
        SR_INTERNAL, "process " + std::to_string(pid) + " of " + name + " cannot be watched: " + std::strerror(errno));
  }
  return pidfd;
}

std::string Control::await_key(std::uint32_t member, const std::string& key) const {
  try {
    return host_.store_get(key, spec_.deadline);
  } catch (const TransportError& error) {
    if (error.status() != SR_TIMEOUT) {
      throw;
    }
    throw TransportError(SR_TIMEOUT, "past the deadline, waiting for " + spec_.name_of(member), spec_.members[member]);
  }
}

Member& Control::member(std::uint32_t index) const noexcept {
  return reinterpret_cast<Member*>(at(layout_.members))[index];
}

PeerClaim& Control::claim(std::uint32_t from, std::uint32_t to) const noexcept {
  return reinterpret_cast<PeerClaim*>(at(layout_.claims))[from * size() + to];
}

Pair Control::pair(std::uint32_t from, std::uint32_t to) const noexcept {
  return Pair(at(layout_.pairs) + (std::size_t{from} * size() + to) * Pair::bytes);
}

Progress& Control::preparing(std::uint32_t index) const noexcept {
  return reinterpret_cast<Progress*>(at(layout_.preparing))[index];
}

std::byte* Control::assign_segment(std::optional<std::size_t> bytes) {
  header_->segment = no_segment;
  if (!bytes) {
    return nullptr;
  }
  const std::optional<std::uint64_t> offset = segments_->assign(*bytes);
  if (!offset) {
    throw TransportError(SR_INTERNAL, "group " + spec_.name + " has more ops at one time than its memory of " +
                                          std::to_string(mapping_->bytes() - layout_.ops) + " bytes holds: free some");
  }
  header_->segment = *offset;
  return segments_->data(*offset);
}

std::string Control::name_of(std::uint32_t index) const {
  return "member " + std::to_string(index) + " (rank " + std::to_string(spec_.members[index]) + ", pid " +
         std::to_string(member(index).pid) + ")";
}

TransportError Control::gone(std::uint32_t member, const std::string& prefix) const {
  return {SR_PEER_LOST, prefix + name_of(member) + " is gone", spec_.members[member]};
}

TransportError Control::past_deadline(const std::string& what, const std::vector<std::uint32_t>& missing) const {
  shardrun::sdk::AwaitedRanks awaited;
  for (const std::uint32_t member : missing) {
    awaited.add(name_of(member), spec_.members[member]);
  }
  return {SR_TIMEOUT, what + ", waiting for " + awaited.names, awaited.first};
}

bool Control::is_gone(std::uint32_t member) const noexcept { return ends_soon(pidfds_[member]); }

void Control::wake() noexcept {
  header_->wakeups.fetch_add(1);
  futex(header_->wakeups, FUTEX_WAKE, INT_MAX, nullptr);
}

void Control::mark_failed() noexcept {
  member(rank()).failed.store(1);
  notify();
}

void Control::pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

bool Control::Yielding::yield() noexcept {
  if (count_ == 0) {
    end_ = coarse_now() + std::min(until_.left().count(), coarse_tick() + yielding_ns);
  }
  if (count_++ == control_.yields_) {
    return false;
  }
  shardrun::sdk::yielded() += last_;
  const std::int64_t begin = shardrun::sdk::monotonic_now();
  sched_yield();
  last_ = shardrun::sdk::monotonic_now() - begin;
  return coarse_now() < end_;
}

Control::Yielding::~Yielding() { shardrun::sdk::yielded() += std::min(last_, slice_ns); }

void Control::sleep(std::uint32_t seen, sdk::Deadline deadline) const noexcept {
  const std::chrono::nanoseconds left =
      std::clamp<std::chrono::nanoseconds>(deadline - host_.now(), {}, check_interval);
  const timespec timeout{.tv_sec = 0, .tv_nsec = left.count()};
  futex(header_->wakeups, FUTEX_WAIT, seen, &timeout);
}

void Control::await_untouched() noexcept {
  for (std::uint32_t m = 0; m < size(); ++m) {
    const auto is_at_work = [&] { return m != rank() && member(m).touching.load() != 0; };
    for (Yielding yielding(*this, sdk::Deadline::never()); is_at_work() && yielding.yield();) {
    }
    const auto is_other = [&](std::uint32_t other) { return other == m; };
    while (is_at_work() && !first_gone(is_other)) {
      // Sleeps, because members send no wakeup when an access ends: only this member waits for that.
      constexpr timespec nap{.tv_sec = 0, .tv_nsec = 200'000};
      nanosleep(&nap, nullptr);
    }
  }
}

bool Control::is_time_to_check(NextCheck& next_check) const noexcept {
  const sdk::Deadline now = host_.now();
  if (now < next_check) {
    return false;
  }
  next_check = now + check_interval;
  return true;
}

/// Allocates nothing, because it runs in every wait.
std::optional<Control::Obstacle> Control::obstacle(const std::atomic<bool>& cancelled, const Needs& needs) const {
  if (cancelled.load(std::memory_order_acquire) || host_.aborted()) {
    return Obstacle{.kind = Obstacle::Kind::aborted};
  }
  if (const std::optional<std::uint32_t> gone = first_gone(needs)) {
    return Obstacle{.kind = Obstacle::Kind::gone, .member = *gone};
  }
  for (std::uint32_t m = 0; m < size(); ++m) {
    if (m != rank() && member(m).failed.load() != 0 && needs(m)) {
      return Obstacle{.kind = Obstacle::Kind::failed, .member = m};
    }
  }
  return std::nullopt;
}

TransportError Control::error_of(const Obstacle& obstacle) const {
  const std::string group = "group " + spec_.name;
  switch (obstacle.kind) {
    case Obstacle::Kind::gone: return gone(obstacle.member, group + ": ");
    case Obstacle::Kind::failed: return {SR_ABORTED, group + ": " + name_of(obstacle.member) + " has failed"};
    default: return {SR_ABORTED, group + " was aborted"};
  }
}

std::optional<std::uint32_t> Control::first_gone(const Needs& needs) const {
  std::array<pollfd, 64> watched;
  for (std::uint32_t first = 0; first < size(); first += watched.size()) {
    const auto count = std::min(static_cast<std::uint32_t>(watched.size()), size() - first);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t m = first + i;
      const bool is_watched = m != rank() && needs(m);
      watched[i] = {.fd = is_watched ? pidfds_[m].number() : -1, .events = POLLIN, .revents = 0};
    }
    if (poll(watched.data(), count, 0) <= 0) {
      continue;
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      if (watched[i].revents != 0) {
        return first + i;
      }
    }
  }
  return std::nullopt;
}

}  // namespace shardrun::shm_transport
