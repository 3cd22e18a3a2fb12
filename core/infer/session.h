#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <shardrun/sdk/model/function.hpp>

#include "core/device/device.h"
#include "core/infer/pages.h"
#include "core/infer/sampling.h"
#include "core/runtime/executor.h"
#include "core/workload/program.h"

namespace shardrun::infer {

/// A prompt to continue.
struct Request {
  std::int64_t id = 0;
  std::vector<std::int32_t> prompt;  ///< at least one token
  std::int64_t tokens = 1;           ///< the most tokens to add; 0: only if the prompt is scored
  Sampling sampling = {};
  std::vector<std::int64_t> ends = {};  ///< a sequence ends with any of these tokens
  /// Tokens of the prompt from this one on are scored: their logits are told.
  std::optional<std::int64_t> scored_from = {};
};

/// A token of a prompt that is scored.
struct Scored {
  std::int64_t id = 0;
  std::int32_t token = 0;
  std::span<const float> logits;  ///< valid in the call that gets this; empty for the first token of a prompt
  bool is_last = false;           ///< nothing more comes of the request
};

/// A token that was added to a sequence.
struct Drawn {
  std::int64_t id = 0;
  std::int32_t token = 0;
  std::span<const float> logits;  ///< from which it was drawn; valid in the call that gets this
  bool is_last = false;
  bool is_end = false;  ///< the token is one of the request's ends
};

/// Gets what a step makes.
struct Listener {
  std::function<void(const Drawn& drawn)> drawn;
  std::function<void(const Scored& scored)> scored = {};
};

/// Continues sequences with the programs `prefill`, `decode` and, for prompts that are scored, `score`. Each sequence
/// in work has a slot, a row of `decode`, and pages of the caches for all its tokens, which it gets when it starts:
/// none is ever interrupted. Prompts are read in chunks, each counted from the prompt's start; chunks with which
/// prompts begin alike are read once. All ranks make the same calls with the same requests, and draw the same tokens.
class Session {
 public:
  /// `caches`, `made`: the sizes with which the programs were made. `context`: the most tokens that a prompt and its
  /// answer have together. The executor outlives this object.
  Session(runtime::Executor& executor, const sdk::CacheSizes& caches, const workload::DecodingSettings& made,
          std::int64_t context);

  /// Adds a request behind those that wait. It gets fewer tokens if the context ends before. REQUIRES: its prompt is
  /// shorter than the context, or as long if no token is to be added; it is scored only if the programs were made so.
  void add(Request request);
  /// Ends a request, which then gets no more tokens.
  void cancel(std::int64_t id);

  /// The number of requests that wait or are in work.
  [[nodiscard]] std::int64_t requests() const;
  /// Starts requests for which there is room, reads a chunk of one prompt, and adds a token to each sequence whose
  /// prompt is read. Calls `listener` for each new token, and for each token of a prompt that is scored.
  void step(const Listener& listener);

  /// The number of tokens of prompts that were read, of those that had been read for another prompt, and of tokens that
  /// were drawn.
  [[nodiscard]] std::int64_t prefilled() const noexcept { return prefilled_; }
  [[nodiscard]] std::int64_t shared() const noexcept { return shared_; }
  [[nodiscard]] std::int64_t drawn() const noexcept { return drawn_; }

 private:
  struct Slot {
    bool is_used = false;
    Request request = {};
    std::int64_t number = 0;                ///< counts requests as they start
    std::vector<std::int32_t> tokens = {};  ///< the prompt, then tokens that were added
    Pages::Held held = {};
    std::int64_t cached = 0;  ///< tokens whose keys and values are in the caches

    /// Whether the prompt has been read: then only the token that was drawn last is not in the caches.
    [[nodiscard]] bool is_read() const { return is_used && tokens.size() > request.prompt.size(); }
  };

  /// What a row of a program reads: tokens of a slot, from the first that is not in the caches.
  struct Fed {
    const Slot* slot = nullptr;  ///< null: the row is idle
    std::int64_t tokens = 0;
  };

  /// A program and its tensors. A stage of a pipeline may lack inputs.
  struct Program {
    Program(runtime::Executor& executor, std::string_view name, std::int64_t rows);

    std::size_t number;
    std::optional<device::TensorView> inputs;
    std::optional<device::TensorView> positions;
    std::optional<device::TensorView> pages;
    device::TensorView logits;
  };

  [[nodiscard]] static std::span<const std::int32_t> shareable(const Request& request);
  void admit();
  void release(Slot& slot);
  void prefill(Slot& slot, const Listener& listener);
  void decode(const Listener& listener);
  void feed(const Program& program, const std::function<Fed(std::int64_t row)>& fed);
  /// Tells the logits of tokens of the prompt that are scored. `logits`: those after each of `fed` tokens, the first of
  /// which is not in the caches.
  void score(const Slot& slot, std::span<const float> logits, std::int64_t fed, const Listener& listener) const;
  void draw(Slot& slot, std::span<const float> logits, const Listener& listener);

  runtime::Executor& executor_;
  std::int64_t chunk_;
  std::int64_t context_;
  Program prefill_;
  std::optional<Program> score_;  ///< reads the prompts that are scored
  Program decode_;
  std::vector<Slot> slots_;
  Pages pages_;
  std::deque<Request> waiting_;
  std::int64_t started_ = 0;
  std::int64_t prefilled_ = 0;
  std::int64_t shared_ = 0;
  std::int64_t drawn_ = 0;
};

}  // namespace shardrun::infer
