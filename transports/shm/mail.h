#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "control.h"

namespace shm {

/// A message on its way, as its sender and its receiver know it.
struct Letter {
  Post* post = nullptr;
  std::uint64_t number = 0;
  std::uint64_t id = 0;
  MemoryRef memory;
};

/// What this member sends to another. The group's worker alone uses it.
class Outbox {
 public:
  explicit Outbox(Post* posts) noexcept : posts_(posts) {}

  /// Of a batch. All messages before it are done.
  void begin() noexcept { used_ = 0; }
  /// REQUIRES: no more than posts_per_pair since `begin`. Whoever waits is yet to be woken.
  Letter post(std::uint64_t id, const MemoryRef& memory) noexcept;
  [[nodiscard]] static bool is_done(const Letter& letter) noexcept {
    return letter.post->done.load(std::memory_order_acquire) == letter.number;
  }

 private:
  Post* posts_;
  std::uint32_t used_ = 0;
  std::uint64_t posted_ = 0;
};

/// What another member sends to this one. It takes note of all that comes in the order in which it was sent, so that a
/// message for a later receive holds up none for an earlier one. The group's worker alone uses it.
class Inbox {
 public:
  explicit Inbox(Post* posts) noexcept : posts_(posts) {}

  /// Takes note of what has come.
  void look();
  /// The first with that id among those noted, once.
  [[nodiscard]] std::optional<Letter> take(std::uint64_t id);
  /// Lets the sender have its memory back. Whoever waits is yet to be woken.
  static void finish(const Letter& letter) noexcept {
    letter.post->done.store(letter.number, std::memory_order_release);
  }

 private:
  Post* posts_;
  std::uint32_t at_ = 0;  ///< where the next one stands, unless it is a batch's first
  std::uint64_t noted_ = 0;
  std::vector<Letter> letters_;  ///< noted and not taken
};

}  // namespace shm
