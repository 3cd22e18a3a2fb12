#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "control.h"

namespace shm {

/// A message on its way, as its sender or its receiver knows it.
struct Letter {
  Post* post = nullptr;
  std::uint64_t number = 0;
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  Carriage carriage = Carriage::in_place;
  MemoryRef memory = {};              ///< in_place
  const std::byte* text = nullptr;    ///< enclosed: where the receiver finds it
  std::vector<std::byte> saved = {};  ///< the same, where the place that it was in had to be given back
};

/// What this member sends to another. One thread at a time uses it.
class Outbox {
 public:
  explicit Outbox(const Pair& pair) noexcept : pair_(pair) {}

  /// Whether there is room for so many messages more. All that were posted before and are not enclosed are done.
  [[nodiscard]] bool has_room(std::uint32_t messages) noexcept;
  /// Short texts are enclosed, as long as there is room for them: the sender is done with them at once. Else `memory`,
  /// where others can map it, or nothing: the receiver has it sent piece by piece. REQUIRES: has_room. Whoever waits is
  /// yet to be woken.
  Letter post(std::uint64_t id, const std::byte* text, std::uint64_t bytes, const std::optional<MemoryRef>& memory);
  /// Whether the receiver has it.
  [[nodiscard]] static bool is_done(const Letter& letter) noexcept {
    return letter.carriage == Carriage::enclosed || letter.post->done.load() == letter.number;
  }
  /// Puts pieces of a letter that the receiver wants so where it finds them; `given`: bytes so far. Whether there were
  /// any.
  bool feed(const Letter& letter, const std::byte* text, std::uint64_t& given) noexcept;

 private:
  Pair pair_;
  std::uint32_t used_ = 0;
  std::uint32_t enclosed_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t pieces_ = 0;
};

/// What another member sends to this one. It takes note of all that comes in the order in which it was sent, so that a
/// message for a later receive holds up none for an earlier one. One thread at a time uses it.
class Inbox {
 public:
  explicit Inbox(const Pair& pair);

  /// Takes note of what has come.
  void look();
  /// The first with that id among those noted, once.
  [[nodiscard]] std::optional<Letter> take(std::uint64_t id);
  /// The letter was read; what was allocated for it serves another.
  void take_back(Letter& letter) noexcept;
  /// After what is wanted was taken and read: gives the sender its room back. Whether there was any. Whoever waits is
  /// yet to be woken.
  [[nodiscard]] bool settle();
  /// Lets the sender have its memory back. Whoever waits is yet to be woken.
  static void finish(const Letter& letter) noexcept { letter.post->done.store(letter.number); }
  /// Reads pieces of a letter that comes so; `taken`: bytes so far. Whether there were any. One letter after the other.
  bool draw(const Letter& letter, std::byte* to, std::uint64_t& taken) noexcept;

 private:
  Pair pair_;
  std::uint32_t at_ = 0;  ///< where the next one stands, unless the sender began anew
  std::uint64_t noted_ = 0;
  std::uint64_t settled_ = 0;
  std::uint64_t pieces_ = 0;
  std::uint64_t drawn_ = 0;      ///< the letter whose pieces are on their way, until all are here: others wait; or 0
  std::vector<Letter> letters_;  ///< noted and not taken
  std::vector<std::vector<std::byte>> spare_;  ///< for texts to save
};

}  // namespace shm
