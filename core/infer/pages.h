#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <shardrun/sdk/model/function.hpp>

namespace shardrun::infer {

/// Keeps track of the pages of the caches for keys and values. A page is free, belongs to one sequence, or is shared by
/// prompts that begin alike. Prompts share whole chunks, counted from their beginning, so that a page's content does
/// not depend on the prompt for which it was computed. Shared chunks that no sequence reads any more are kept until
/// their pages are needed. The one that was read longest ago is freed first.
class Pages {
  struct Chunk;

 public:
  /// The pages of a sequence, in the order of its tokens.
  class Held {
   public:
    [[nodiscard]] const std::vector<std::int32_t>& pages() const noexcept { return pages_; }
    /// The number of tokens, from the sequence's first on, whose pages are shared.
    [[nodiscard]] std::int64_t shared() const noexcept { return shared_; }

   private:
    friend Pages;
    std::vector<std::int32_t> pages_;
    Chunk* last_ = nullptr;  ///< the last chunk that is shared; null: none is
    std::int64_t shared_ = 0;
  };

  /// `chunk`: the tokens of a chunk. Nothing is shared unless this is a multiple of a page's tokens.
  Pages(const sdk::CacheSizes& sizes, std::int64_t chunk);
  Pages(Pages&&) noexcept;
  ~Pages();

  /// Takes pages for `tokens` tokens, beginning with shared ones that fit `prompt`. Returns nothing if they are short.
  [[nodiscard]] std::optional<Held> take(std::span<const std::int32_t> prompt, std::int64_t tokens);
  /// Looks for a shared chunk that begins with the first of `tokens` and follows the shared ones of `held`. If there is
  /// one, its pages replace own pages of `held`. Returns whether there is one.
  bool adopt(Held& held, std::span<const std::int32_t> tokens);
  /// Shares the chunk of `held` that follows its shared ones and has these tokens. Does nothing for part of a chunk.
  void share(Held& held, std::span<const std::int32_t> tokens);
  void release(Held& held);

  /// The number of pages that no sequence has.
  [[nodiscard]] std::int64_t unused() const noexcept;

 private:
  [[nodiscard]] Chunk* behind(const Held& held, std::span<const std::int32_t> tokens) const;
  void hold(Held& held, Chunk& chunk);
  void let_go(Chunk* last);
  void make_free(std::size_t pages);
  Chunk* longest_unused(Chunk& in) const;

  std::int64_t page_;
  std::int64_t chunk_;
  std::vector<std::int32_t> free_;
  std::unique_ptr<Chunk> root_;  ///< the root of a tree; a chunk's children are those that follow it in prompts
  std::size_t idle_ = 0;         ///< the number of pages of chunks that no sequence reads
  std::int64_t clock_ = 0;
};

}  // namespace shardrun::infer
