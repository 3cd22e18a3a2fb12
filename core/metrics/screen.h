#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

#include "core/metrics/progress.h"

namespace shardrun::metrics {

/// Writes what a person sees on a thread of its own, in order: a terminal that was stopped (Ctrl-S), or a pipe that
/// nobody reads, holds up nobody else. One thread uses it.
class Screen {
 public:
  /// `write` may wait for as long as it likes. It is called, and let go of, on the screen's thread, which goes on after
  /// this where it was given up: what it uses must last. Throws Error{io} where there can be no thread.
  explicit Screen(std::function<void(std::string_view)> write);
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen();  ///< finish()

  /// Returns at once. Whoever has much to show looks at `waiting_bytes` before.
  void write(std::string_view text);
  /// Of what was given to `write`, not on the screen yet.
  [[nodiscard]] std::size_t waiting_bytes() const;

  /// Returns once all is on the screen, and nothing is written after it. Where the screen takes nothing for as long as
  /// `patience`, `wait_on` is asked whether to wait as long again; if it says no, or is empty, what is left is lost and
  /// false returned.
  bool finish(const std::function<bool()>& wait_on = {}, std::chrono::milliseconds patience = usual_patience);

  static constexpr std::chrono::milliseconds usual_patience{1000};

 private:
  struct State;

  std::shared_ptr<State> state_;
  std::thread thread_;
};

/// `sink` with a screen between: writing returns at once, and updates are left out while it is late.
[[nodiscard]] ProgressSink through(Screen& screen, ProgressSink sink);

}  // namespace shardrun::metrics
