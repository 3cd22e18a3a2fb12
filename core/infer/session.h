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
#include "core/infer/sampling.h"
#include "core/runtime/executor.h"
#include "core/workload/program.h"

namespace shardrun::infer {

/// A prompt to continue.
struct Request {
  std::int64_t id = 0;
  std::vector<std::int32_t> prompt;  ///< at least one token
  std::int64_t tokens = 1;           ///< the most tokens to add, at least 1
  Sampling sampling = {};
  std::vector<std::int64_t> ends = {};  ///< a sequence ends with any of these tokens
};

/// A token that was added to a sequence.
struct Drawn {
  std::int64_t id = 0;
  std::int32_t token = 0;
  std::span<const float> logits;  ///< from which it was drawn; valid in the call that gets this
  bool is_last = false;
  bool is_end = false;  ///< the token is one of the request's ends
};

using Emit = std::function<void(const Drawn& drawn)>;

/// Continues sequences with the programs `prefill` and `decode`. Each sequence in work has a slot, a row of `decode`,
/// and pages of the caches for all its tokens, which it gets when it starts: none is ever interrupted. Prompts are read
/// in chunks, each counted from the prompt's start. All ranks make the same calls with the same requests, and draw the
/// same tokens.
class Session {
 public:
  /// `caches`, `slots`: sizes with which the programs were made. `context`: the most tokens that a prompt and its
  /// answer have together. The executor outlives this object.
  Session(runtime::Executor& executor, const sdk::CacheSizes& caches, std::int64_t slots, std::int64_t context);

  /// Adds a request behind those that wait. It gets fewer tokens if the context ends before. REQUIRES: its prompt is
  /// shorter than the context.
  void add(Request request);
  /// Ends a request, which then gets no more tokens.
  void cancel(std::int64_t id);

  /// The number of requests that wait or are in work.
  [[nodiscard]] std::int64_t requests() const;
  /// Starts requests for which there is room, reads a chunk of one prompt, and adds a token to each sequence whose
  /// prompt is read. Calls `emit` for each new token.
  void step(const Emit& emit);

  /// The number of tokens of prompts that were read, and of tokens that were drawn.
  [[nodiscard]] std::int64_t prefilled() const noexcept { return prefilled_; }
  [[nodiscard]] std::int64_t drawn() const noexcept { return drawn_; }

 private:
  struct Slot {
    bool is_used = false;
    Request request = {};
    std::int64_t number = 0;                ///< counts requests as they start
    std::vector<std::int32_t> tokens = {};  ///< the prompt, then tokens that were added
    std::vector<std::int32_t> pages = {};
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
    std::int64_t length = 0;  ///< tokens of a row
    std::optional<device::TensorView> inputs;
    std::optional<device::TensorView> positions;
    std::optional<device::TensorView> pages;
    device::TensorView logits;
  };

  [[nodiscard]] std::int64_t pages_of(const Request& request) const;
  void admit();
  void release(Slot& slot);
  void prefill(Slot& slot, const Emit& emit);
  void decode(const Emit& emit);
  void feed(const Program& program, const std::function<Fed(std::int64_t row)>& fed);
  void draw(Slot& slot, std::span<const float> logits, const Emit& emit);

  runtime::Executor& executor_;
  sdk::CacheSizes caches_;
  std::int64_t context_;
  Program prefill_;
  Program decode_;
  std::vector<Slot> slots_;
  std::vector<std::int32_t> free_pages_;
  std::deque<Request> waiting_;
  std::int64_t started_ = 0;
  std::int64_t prefilled_ = 0;
  std::int64_t drawn_ = 0;
};

}  // namespace shardrun::infer
