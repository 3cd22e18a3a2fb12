#include "core/screen/screen.h"

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/process.h"

namespace shardrun::screen {
namespace {

/// The bytes of one write. They are so few that finish() notices progress even of a slow screen.
constexpr std::size_t piece_bytes = 4096;

/// Updates are skipped while more bytes than this wait for the screen.
constexpr std::size_t most_waiting_updates = std::size_t{64} * 1024;

}  // namespace

struct Screen::State {
  std::function<void(std::string_view)> write;
  mutable std::mutex mutex;  ///< guards all members below
  std::condition_variable changed;
  std::string queue;              ///< text whose writing has not begun
  std::size_t waiting_bytes = 0;  ///< in the queue and in the running write
  std::uint64_t pieces = 0;       ///< pieces written so far
  bool ending = false;
  bool done = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return !queue.empty() || ending; });
      if (queue.empty()) {
        done = true;
        changed.notify_all();
        return;
      }
      const std::string text = std::exchange(queue, {});
      for (std::size_t at = 0; at < text.size(); at += piece_bytes) {
        const std::string_view piece = std::string_view(text).substr(at, piece_bytes);
        lock.unlock();
        write(piece);
        lock.lock();
        waiting_bytes -= piece.size();
        ++pieces;
        changed.notify_all();
      }
    }
  }
};

Screen::Screen(std::function<void(std::string_view)> write) : state_(std::make_shared<State>()) {
  state_->write = std::move(write);
  // SIGPIPE stays unblocked, because it is delivered to the thread that writes.
  thread_ = thread_without_signals(
      "the thread that shows progress", [state = state_] { state->run(); }, SIGPIPE);
}

Screen::~Screen() { finish(); }

void Screen::write(std::string_view text) {
  const std::lock_guard lock(state_->mutex);
  state_->queue += text;
  state_->waiting_bytes += text.size();
  state_->changed.notify_all();
}

std::size_t Screen::waiting_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->waiting_bytes;
}

bool Screen::finish(const std::function<bool()>& wait_on, std::chrono::milliseconds patience) {
  if (!thread_.joinable()) {
    return true;
  }
  std::unique_lock lock(state_->mutex);
  state_->ending = true;
  state_->changed.notify_all();
  while (!state_->done) {
    const std::uint64_t pieces = state_->pieces;
    const bool moves =
        state_->changed.wait_for(lock, patience, [&] { return state_->done || state_->pieces != pieces; });
    if (!moves && !(wait_on && wait_on())) {
      thread_.detach();  // the thread is in a write that only the screen, or the end of this process, can end
      return false;
    }
  }
  lock.unlock();
  thread_.join();
  return true;
}

ProgressSink through(Screen& screen, ProgressSink sink) {
  sink.write = [&screen](std::string_view text) { screen.write(text); };
  sink.is_behind = [&screen] { return screen.waiting_bytes() > most_waiting_updates; };
  return sink;
}

}  // namespace shardrun::screen
