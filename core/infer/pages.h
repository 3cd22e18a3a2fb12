#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <shardrun/sdk/model/function.hpp>

namespace shardrun::infer {

/// The pages of the caches: which are free, which a sequence has, and which hold the beginning of a prompt that other
/// prompts may share. Prompts share whole chunks, counted from their beginning, so what a page holds does not depend on
/// who computed it. Chunks that no sequence reads are kept until their pages are needed; the one that was read longest
/// ago goes first.
class Pages {
  struct Chunk;

 public:
  /// The pages of a sequence, in the order of its tokens.
  class Held {
   public:
    [[nodiscard]] const std::vector<std::int32_t>& pages() const noexcept { return pages_; }
    /// The number of its first tokens that are shared.
    [[nodiscard]] std::int64_t shared() const noexcept { return shared_; }

   private:
    friend Pages;
    std::vector<std::int32_t> pages_;
    Chunk* last_ = nullptr;  ///< the last chunk that is shared; null: none is
    std::int64_t shared_ = 0;
  };

  /// `chunk`: tokens that prompts share together. Nothing is shared unless it is a multiple of a page.
  Pages(const sdk::CacheSizes& sizes, std::int64_t chunk);
  Pages(Pages&&) noexcept;
  ~Pages();

  /// Pages for `tokens` tokens. The first are those that hold chunks of `prompt` already. Nothing if there are too few.
  [[nodiscard]] std::optional<Held> take(std::span<const std::int32_t> prompt, std::int64_t tokens);
  /// Gives `held` the pages of the chunk behind those that are shared, with these tokens, in place of its own. Returns
  /// whether there is such a chunk.
  bool adopt(Held& held, std::span<const std::int32_t> tokens);
  /// Shares the chunk behind those that are shared, which has these tokens and has been computed.
  void share(Held& held, std::span<const std::int32_t> tokens);
  void release(Held& held);

  /// Pages that no sequence has.
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
  std::unique_ptr<Chunk> root_;  ///< of a tree: a chunk's children are those that follow it in prompts
  std::size_t idle_ = 0;         ///< pages of chunks that no sequence reads
  std::int64_t clock_ = 0;
};

}  // namespace shardrun::infer
