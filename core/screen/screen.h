#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

#include "core/screen/progress.h"

namespace shardrun::screen {

/// Writes a person's output on a thread of its own, in order. A stopped terminal (Ctrl-S), or a pipe that nobody reads,
/// holds up nobody else. One thread uses it.
class Screen {
 public:
  /// `write` may wait as long as it likes. It is called and destroyed on the screen's thread. That thread may outlive
  /// an abandoned screen, and so must the objects that `write` uses. Throws Error{io} if there can be no thread.
  explicit Screen(std::function<void(std::string_view)> write);
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen();  ///< finish()

  /// Returns at once. Callers with much output check `waiting_bytes` first.
  void write(std::string_view text);
  /// Bytes given to `write` that are not on the screen yet.
  [[nodiscard]] std::size_t waiting_bytes() const;

  /// Returns once everything is on the screen; nothing is written afterwards. If the screen takes nothing for
  /// `patience`, asks `wait_on` whether to wait as long again. If that says no, or is empty, the rest is lost and the
  /// result is false.
  bool finish(const std::function<bool()>& wait_on = {}, std::chrono::milliseconds patience = usual_patience);

  static constexpr std::chrono::milliseconds usual_patience{1000};

 private:
  struct State;

  std::shared_ptr<State> state_;
  std::thread thread_;
};

/// `sink` behind a screen: writing returns at once, and updates are skipped while the screen is late.
[[nodiscard]] ProgressSink through(Screen& screen, ProgressSink sink);

}  // namespace shardrun::screen
