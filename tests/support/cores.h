#pragma once

#include <sched.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <atomic>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace shardrun::test {

/// Keeps a thread on one core from now on. 0: the calling thread.
inline void stay_on(int core, pid_t thread = 0) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  if (sched_setaffinity(thread, sizeof(cores), &cores) != 0) {
    throw std::runtime_error("thread " + std::to_string(thread) + " cannot stay on core " + std::to_string(core));
  }
}

/// Keeps all threads of a process, and those that they start, on one core, of which they get a tenth beside a rival.
inline void starve_on(int core, pid_t process) {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
    const pid_t number = std::stoi(thread.path().filename().string());
    stay_on(core, number);
    setpriority(PRIO_PROCESS, static_cast<id_t>(number), 10);
  }
}

/// The cores that this process may use.
[[nodiscard]] inline std::vector<int> usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  std::vector<int> all;
  for (int core = 0; sched_getaffinity(0, sizeof(cores), &cores) == 0 && core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores)) {
      all.push_back(core);
    }
  }
  return all;
}

/// Threads that always want to run on a core.
class Rivals {
 public:
  Rivals(int core, int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, core] {
        stay_on(core);
        while (!ending_) {
        }
      });
    }
  }
  Rivals(const Rivals&) = delete;
  Rivals& operator=(const Rivals&) = delete;
  ~Rivals() {
    ending_ = true;
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

 private:
  std::atomic<bool> ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace shardrun::test
