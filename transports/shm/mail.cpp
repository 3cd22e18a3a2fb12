#include "mail.h"

#include <algorithm>

namespace shm {

Letter Outbox::post(std::uint64_t id, const MemoryRef& memory) noexcept {
  Post& post = posts_[used_++];
  post.id = id;
  post.memory = memory;
  post.number.store(++posted_, std::memory_order_release);
  return {&post, posted_, id, memory};
}

void Inbox::look() {
  const auto has_come = [&](std::uint32_t at) {
    return at < posts_per_pair && posts_[at].number.load(std::memory_order_acquire) == noted_ + 1;
  };
  for (;;) {
    if (!has_come(at_)) {
      if (!has_come(0)) {
        return;
      }
      at_ = 0;
    }
    Post& post = posts_[at_++];
    letters_.push_back({&post, ++noted_, post.id, post.memory});
  }
}

std::optional<Letter> Inbox::take(std::uint64_t id) {
  const auto found =
      std::find_if(letters_.begin(), letters_.end(), [&](const Letter& letter) { return letter.id == id; });
  if (found == letters_.end()) {
    return std::nullopt;
  }
  const Letter letter = *found;
  letters_.erase(found);
  return letter;
}

}  // namespace shm
