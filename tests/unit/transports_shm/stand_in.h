#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "tests/support/transport_ranks.h"

namespace shardrun::test {

/// A process that does nothing until it is ended.
class IdleProcess {
 public:
  IdleProcess() : pid_(fork()) {
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) {
        pause();
      }
    }
    if (pid_ < 0) {
      throw Error(ErrorCode::internal, "no process could be started");
    }
  }
  IdleProcess(const IdleProcess&) = delete;
  IdleProcess& operator=(const IdleProcess&) = delete;
  ~IdleProcess() { end(); }

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Ends the process. Once this returns, it is a zombie until `end`.
  void die() const noexcept {
    siginfo_t ended;
    kill(pid_, SIGKILL);
    waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT);
  }
  /// Ends the process. Once this returns, it is gone.
  void end() noexcept {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      pid_ = 0;
    }
  }

 private:
  pid_t pid_;
};

/// A store for ranks that are threads of one process. One of them seems to the others to be a process of its own, which
/// can end.
class StandInHost final : public SharedHost {
 public:
  explicit StandInHost(std::uint32_t rank) : suffix_("/" + std::to_string(rank)) {}

  void store_set(const std::string& key, std::string value) override {
    SharedHost::store_set(key, key.ends_with(suffix_) ? std::to_string(process_.pid()) : std::move(value));
  }

  /// Called by transports whenever they look whether to go on waiting, before they look at processes.
  [[nodiscard]] bool aborted() const noexcept override {
    ++looks_;
    if (is_armed_.exchange(false)) {
      at_look_();
    }
    return SharedHost::aborted();
  }

  /// Returns once aborted() has been called `n` times more.
  void await_looks(std::uint64_t n) const noexcept {
    const std::uint64_t before = looks_;
    while (looks_ < before + n && !SharedHost::aborted()) {
      std::this_thread::yield();
    }
  }
  /// Whoever calls aborted() next calls `act`, which does not throw.
  void at_next_look(std::function<void()> act) {
    at_look_ = std::move(act);
    is_armed_ = true;
  }
  void end_process() noexcept { process_.end(); }

 private:
  std::string suffix_;
  IdleProcess process_;
  mutable std::atomic<std::uint64_t> looks_ = 0;
  mutable std::atomic<bool> is_armed_ = false;
  std::function<void()> at_look_;
};

}  // namespace shardrun::test
