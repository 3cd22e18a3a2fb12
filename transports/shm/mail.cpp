#include "mail.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace shm {
namespace {

void copy_bytes(std::byte* to, const std::byte* from, std::uint64_t bytes) noexcept {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

/// The receiver is asked only where room is short: each look takes its cache line from it.
bool Outbox::has_room(std::uint32_t messages) noexcept {
  const bool is_short = used_ + messages > posts_per_pair || enclosed_ + messages > enclosures_per_pair;
  if (is_short && pair_.head->noted.load() == posted_) {
    used_ = 0;
    enclosed_ = 0;
  }
  return used_ + messages <= posts_per_pair;
}

Letter Outbox::post(std::uint64_t id, const std::byte* text, std::uint64_t bytes,
                    const std::optional<MemoryRef>& memory) {
  Post& post = pair_.posts[used_++];
  Letter letter{.post = &post, .number = ++posted_, .id = id, .bytes = bytes};
  post.id = id;
  post.bytes = bytes;
  if (bytes <= sizeof(post.text)) {
    letter.carriage = Carriage::enclosed;
    post.enclosure = no_enclosure;
    copy_bytes(post.text, text, bytes);
  } else if (bytes <= enclosure_bytes && enclosed_ < enclosures_per_pair) {
    letter.carriage = Carriage::enclosed;
    post.enclosure = enclosed_++;
    copy_bytes(pair_.enclosures + post.enclosure * enclosure_bytes, text, bytes);
  } else if (memory) {
    letter.carriage = Carriage::in_place;
    std::memcpy(post.text, &*memory, sizeof(post.text));
  } else {
    letter.carriage = Carriage::in_pieces;
  }
  post.carriage = letter.carriage;
  post.number.store(letter.number);
  return letter;
}

bool Outbox::feed(const Letter& letter, const std::byte* text, std::uint64_t& given) noexcept {
  if (given == letter.bytes || pair_.head->wanted.load() != letter.number) {
    return false;
  }
  const std::uint64_t before = given;
  while (given < letter.bytes && pieces_ - pair_.head->drawn.load() < pieces_per_pair) {
    const std::uint64_t bytes = std::min(piece_bytes, letter.bytes - given);
    copy_bytes(pair_.pieces + pieces_ % pieces_per_pair * piece_bytes, text + given, bytes);
    given += bytes;
    pair_.fed->pieces.store(++pieces_);
  }
  return given != before;
}

Inbox::Inbox(const Pair& pair) : pair_(pair) {
  // More, where they ever come, allocate once.
  constexpr std::size_t usual_letters = 64;
  letters_.reserve(usual_letters);
  spare_.reserve(usual_letters);
}

void Inbox::look() {
  const auto has_come = [&](std::uint32_t at) {
    return at < posts_per_pair && pair_.posts[at].number.load() == noted_ + 1;
  };
  for (;;) {
    if (!has_come(at_)) {
      if (!has_come(0)) {
        return;
      }
      at_ = 0;
    }
    Post& post = pair_.posts[at_++];
    Letter& letter = letters_.emplace_back();
    letter.post = &post;
    letter.number = ++noted_;
    letter.id = post.id;
    letter.bytes = post.bytes;
    letter.carriage = post.carriage;
    if (letter.carriage == Carriage::in_place) {
      std::memcpy(static_cast<void*>(&letter.memory), post.text, sizeof(post.text));
      letter.memory.bytes = letter.bytes;
    } else if (letter.carriage == Carriage::enclosed) {
      letter.text = post.enclosure == no_enclosure ? post.text : pair_.enclosures + post.enclosure * enclosure_bytes;
    }
  }
}

std::optional<Letter> Inbox::take(std::uint64_t id) {
  const auto found =
      std::find_if(letters_.begin(), letters_.end(), [&](const Letter& letter) { return letter.id == id; });
  if (found == letters_.end()) {
    return std::nullopt;
  }
  std::optional<Letter> letter = std::move(*found);
  letters_.erase(found);
  return letter;
}

void Inbox::take_back(Letter& letter) noexcept {
  if (letter.saved.capacity() > 0 && spare_.size() < spare_.capacity()) {
    letter.saved.clear();
    spare_.push_back(std::move(letter.saved));
  }
}

bool Inbox::settle() {
  if (settled_ == noted_) {
    return false;
  }
  for (Letter& letter : letters_) {
    if (letter.carriage == Carriage::enclosed && letter.saved.empty() && letter.bytes > 0) {
      if (!spare_.empty()) {
        letter.saved = std::move(spare_.back());
        spare_.pop_back();
      }
      letter.saved.reserve(enclosure_bytes);
      letter.saved.assign(letter.text, letter.text + letter.bytes);
      letter.text = letter.saved.data();
    }
  }
  settled_ = noted_;
  pair_.head->noted.store(noted_);
  return true;
}

bool Inbox::draw(const Letter& letter, std::byte* to, std::uint64_t& taken) noexcept {
  if (drawn_ != 0 && drawn_ != letter.number) {
    return false;
  }
  drawn_ = letter.number;
  const std::uint64_t before = taken;
  bool asked = false;
  if (pair_.head->wanted.load() != letter.number) {
    pair_.head->wanted.store(letter.number);
    asked = true;
  }
  while (taken < letter.bytes && pair_.fed->pieces.load() > pieces_) {
    const std::uint64_t bytes = std::min(piece_bytes, letter.bytes - taken);
    copy_bytes(to + taken, pair_.pieces + pieces_ % pieces_per_pair * piece_bytes, bytes);
    taken += bytes;
    pair_.head->drawn.store(++pieces_);
  }
  if (taken == letter.bytes) {
    drawn_ = 0;
  }
  return asked || taken != before;
}

}  // namespace shm
