#include "core/infer/pages.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace shardrun::infer {

struct Pages::Chunk {
  Chunk* before = nullptr;
  std::vector<std::int32_t> pages = {};
  std::map<std::vector<std::int32_t>, std::unique_ptr<Chunk>> behind = {};  ///< the next chunks, by their tokens
  std::int64_t readers = 0;  ///< the number of sequences that begin with the chunks up to this one
  std::int64_t read_at = 0;
};

Pages::Pages(const sdk::CacheSizes& sizes, std::int64_t chunk)
    : page_(sizes.page), chunk_(chunk), root_(std::make_unique<Chunk>()) {
  for (std::int64_t page = sizes.pages; page-- > 0;) {
    free_.push_back(static_cast<std::int32_t>(page));
  }
}

Pages::Pages(Pages&&) noexcept = default;
Pages::~Pages() = default;

std::optional<Pages::Held> Pages::take(std::span<const std::int32_t> prompt, std::int64_t tokens) {
  Held held;
  while (Chunk* const next = behind(held, prompt)) {
    std::ranges::copy(next->pages, std::back_inserter(held.pages_));
    hold(held, *next);
    prompt = prompt.subspan(static_cast<std::size_t>(chunk_));
  }
  const auto own = static_cast<std::size_t>((tokens + page_ - 1) / page_) - held.pages_.size();
  if (own > free_.size() + idle_) {
    let_go(held.last_);
    return std::nullopt;
  }
  make_free(own);
  std::reverse_copy(free_.end() - static_cast<std::ptrdiff_t>(own), free_.end(), std::back_inserter(held.pages_));
  free_.resize(free_.size() - own);
  return held;
}

bool Pages::adopt(Held& held, std::span<const std::int32_t> tokens) {
  Chunk* const chunk = behind(held, tokens);
  if (chunk != nullptr) {
    const auto own = held.pages_.begin() + held.shared_ / page_;
    free_.insert(free_.end(), own, own + std::ssize(chunk->pages));
    std::ranges::copy(chunk->pages, own);
    hold(held, *chunk);
  }
  return chunk != nullptr;
}

void Pages::share(Held& held, std::span<const std::int32_t> tokens) {
  if (chunk_ % page_ != 0 || std::ssize(tokens) != chunk_ || adopt(held, tokens)) {
    return;
  }
  Chunk& before = held.last_ != nullptr ? *held.last_ : *root_;
  const auto own = held.pages_.begin() + held.shared_ / page_;
  auto chunk = std::make_unique<Chunk>(Chunk{.before = &before, .pages = std::vector(own, own + chunk_ / page_)});
  idle_ += chunk->pages.size();  // hold() subtracts them again
  hold(held, *chunk);
  before.behind.emplace(std::vector(tokens.begin(), tokens.end()), std::move(chunk));
}

void Pages::release(Held& held) {
  free_.insert(free_.end(), held.pages_.rbegin(), held.pages_.rend() - held.shared_ / page_);
  let_go(held.last_);
  held = {};
}

std::int64_t Pages::unused() const noexcept { return static_cast<std::int64_t>(free_.size() + idle_); }

/// The chunk that follows the shared ones of `held` and has the first of these tokens; null if there is none.
Pages::Chunk* Pages::behind(const Held& held, std::span<const std::int32_t> tokens) const {
  if (std::ssize(tokens) < chunk_) {
    return nullptr;
  }
  const Chunk& last = held.last_ != nullptr ? *held.last_ : *root_;
  const auto found = last.behind.find(std::vector(tokens.begin(), tokens.begin() + chunk_));
  return found == last.behind.end() ? nullptr : found->second.get();
}

void Pages::hold(Held& held, Chunk& chunk) {
  if (chunk.readers++ == 0) {
    idle_ -= chunk.pages.size();
  }
  held.last_ = &chunk;
  held.shared_ += chunk_;
}

void Pages::let_go(Chunk* last) {
  ++clock_;
  for (Chunk* chunk = last; chunk != nullptr && chunk != root_.get(); chunk = chunk->before) {
    chunk->read_at = clock_;
    if (--chunk->readers == 0) {
      idle_ += chunk->pages.size();
    }
  }
}

void Pages::make_free(std::size_t pages) {
  while (free_.size() < pages) {
    Chunk& chunk = *longest_unused(*root_);
    free_.insert(free_.end(), chunk.pages.rbegin(), chunk.pages.rend());
    idle_ -= chunk.pages.size();
    std::erase_if(chunk.before->behind, [&](const auto& each) { return each.second.get() == &chunk; });
  }
}

/// The chunk without readers and children that was read longest ago, in the subtree of `in`; null if there is none.
Pages::Chunk* Pages::longest_unused(Chunk& in) const {
  if (&in != root_.get() && in.behind.empty()) {
    return in.readers == 0 ? &in : nullptr;
  }
  Chunk* found = nullptr;
  for (const auto& [tokens, chunk] : in.behind) {
    Chunk* const candidate = longest_unused(*chunk);
    if (candidate != nullptr && (found == nullptr || candidate->read_at < found->read_at)) {
      found = candidate;
    }
  }
  return found;
}

}  // namespace shardrun::infer
