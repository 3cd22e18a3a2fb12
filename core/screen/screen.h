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
/// reads, does not delay the program. Only one thread at a time is allowed to use a screen.
class Screen {
 public:
  /// `write` is called on the screen's thread, and is allowed to block. If finish() returns false, that thread outlives
  /// the screen, and the objects that `write` uses must outlive the thread. Throws Error{io} if it cannot be started.
  explicit Screen(std::function<void(std::string_view)> write);
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen();  ///< calls finish()

  /// Queues text and returns at once. Callers with much output check `waiting_bytes` first.
  void write(std::string_view text);
  /// Bytes given to `write` that are not on the screen yet.
  [[nodiscard]] std::size_t waiting_bytes() const;

  /// Returns true once everything is written. If the screen accepts nothing for `patience`, calls `wait_on` to ask
  /// whether to wait as long again. If `wait_on` returns false, or is empty, returns false: the rest is written only if
  /// the screen accepts it before the process ends.
  bool finish(const std::function<bool()>& wait_on = {}, std::chrono::milliseconds patience = usual_patience);

  static constexpr std::chrono::milliseconds usual_patience{1000};

 private:
  struct State;

  std::shared_ptr<State> state_;
  std::thread thread_;
};

/// Returns `sink`, but with writes through a screen: they return at once, and updates are skipped while the screen is
/// late. The screen must outlive the result.
[[nodiscard]] ProgressSink through(Screen& screen, ProgressSink sink);

}  // namespace shardrun::screen
