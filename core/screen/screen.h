#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

#include "core/screen/progress.h"

namespace shardrun::screen {

/// Writes output for a person on a separate thread, in order. So a stopped terminal (Ctrl-S), or a pipe that nobody
/// reads, delays nobody else. Only one thread may use it.
class Screen {
 public:
  /// `write` may block for any time. It is called and destroyed on the screen's thread. That thread may outlive an
  /// abandoned screen, and so must the objects that `write` uses. Throws Error{io} if the thread cannot be started.
  explicit Screen(std::function<void(std::string_view)> write);
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen();  ///< calls finish()

  /// Queues text and returns at once. Callers with much output check `waiting_bytes` first.
  void write(std::string_view text);
  /// Bytes given to `write` that are not on the screen yet.
  [[nodiscard]] std::size_t waiting_bytes() const;

  /// Returns once everything is on the screen; nothing is written afterwards. If the screen accepts nothing for
  /// `patience`, calls `wait_on` to ask whether to wait as long again. If it returns false, or is empty, the rest is
  /// lost and the result is false.
  bool finish(const std::function<bool()>& wait_on = {}, std::chrono::milliseconds patience = usual_patience);

  static constexpr std::chrono::milliseconds usual_patience{1000};

 private:
  struct State;

  std::shared_ptr<State> state_;
  std::thread thread_;
};

/// A sink that writes to `sink` through a screen: writing returns at once, and updates are skipped while the
/// screen is late.
[[nodiscard]] ProgressSink through(Screen& screen, ProgressSink sink);

}  // namespace shardrun::screen
