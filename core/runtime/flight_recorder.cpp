#include "core/runtime/flight_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <string>
#include <system_error>
#include <utility>

namespace shardrun::runtime {
namespace {

std::int64_t steady_now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::int64_t system_now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

/// Allocates the disk space at once: on a full disk, touching a page would otherwise cause a signal, not an error.
FlightRecorder::FlightRecorder(std::filesystem::path path, int rank) : path_(std::move(path)) {
  file_ = files::FileDescriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file_.is_open()) {
    throw files::system_error("create the flight record", path_, errno);
  }
  int failed = EINTR;
  while (failed == EINTR) {  // on a memory file system a signal may interrupt it
    failed = ::posix_fallocate(file_.get(), 0, sizeof(FlightFile));
  }
  if (failed != 0) {
    throw files::system_error("make room for the flight record", path_, failed);
  }
  void* const mapped = ::mmap(nullptr, sizeof(FlightFile), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (mapped == MAP_FAILED) {
    throw files::system_error("map the flight record", path_, errno);
  }
  record_ = static_cast<FlightFile*>(mapped);  // all zeros, the initial values of its members
  record_->header.version = flight_version;
  record_->header.rank = rank;
  record_->header.pid = ::getpid();
  record_->header.clock_offset = system_now() - steady_now();
  record_->header.magic = flight_magic;
}

FlightRecorder::~FlightRecorder() { ::munmap(record_, sizeof(FlightFile)); }

void FlightRecorder::set_phase(std::string_view phase, std::int64_t step) noexcept {
  FlightHeader& header = record_->header;
  const std::uint64_t change = header.phase_changes.load(std::memory_order_relaxed) + 1;
  FlightPhase& next = header.phases[change % header.phases.size()];
  const std::size_t size = std::min(phase.size(), next.name.size() - 1);
  std::copy_n(phase.data(), size, next.name.data());
  std::fill(next.name.begin() + static_cast<std::ptrdiff_t>(size), next.name.end(), '\0');
  next.step = step;
  header.phase_changes.store(change, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_release);  // before the next change overwrites the other slot
  step_ = step;
}

void FlightRecorder::remove() noexcept {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void FlightRecorder::append(std::string_view line) {
  const std::uint64_t before = record_->header.text_bytes.load();
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = ::pwrite(file_.get(), line.data() + done, line.size() - done,
                                     static_cast<off_t>(sizeof(FlightFile) + before + done));
    if (written < 0 && errno != EINTR) {
      throw files::system_error("write the flight record", path_, errno);
    }
    done += written < 0 ? 0 : static_cast<std::size_t>(written);
  }
  record_->header.text_bytes.store(before + line.size());
}

std::uint32_t FlightRecorder::add_group(std::string_view name, const std::vector<std::uint32_t>& members) {
  append(fmt::format("G {} {} {}\n", members.size(), fmt::join(members, " "), name));
  return groups_++;
}

std::uint32_t FlightRecorder::add_op(std::uint32_t group, std::uint64_t bytes, std::string_view what) {
  append(fmt::format("O {} {} {}\n", group, bytes, what));
  ops_.push_back({.group = group});
  return static_cast<std::uint32_t>(ops_.size() - 1);
}

void FlightRecorder::started(std::uint32_t op) noexcept {
  const std::uint64_t number = record_->header.runs.load(std::memory_order_relaxed) + 1;
  const std::uint32_t group = ops_[op].group;
  FlightRun& run = record_->runs[(number - 1) % flight_runs];
  (void)run.number.exchange(0, std::memory_order_acq_rel);  // before the stores below
  run.op = op;
  run.number_in_group = group < flight_groups ? ++record_->starts[group] : 0;
  run.step = step_;
  run.started = steady_now();
  run.waited_for = 0;
  run.ended = 0;
  run.state.store(FlightState::started, std::memory_order_relaxed);
  run.number.store(number, std::memory_order_release);
  ops_[op].run = number;
  record_->header.runs.store(number, std::memory_order_release);
}

FlightRun* FlightRecorder::latest_of(std::uint32_t op) noexcept {
  const std::uint64_t number = ops_[op].run;
  FlightRun& run = record_->runs[(number - 1) % flight_runs];
  return number != 0 && run.number.load(std::memory_order_relaxed) == number ? &run : nullptr;
}

void FlightRecorder::waited_for(std::uint32_t op) noexcept {
  if (FlightRun* const run = latest_of(op)) {
    run->waited_for = steady_now();
    run->state.store(FlightState::waited_for, std::memory_order_release);
  }
}

void FlightRecorder::ended(std::uint32_t op, bool failed) noexcept {
  if (FlightRun* const run = latest_of(op)) {
    run->ended = steady_now();
    run->state.store(failed ? FlightState::failed : FlightState::done, std::memory_order_release);
  }
}

}  // namespace shardrun::runtime
