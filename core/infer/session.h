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

/// Logits that a call has computed for a sequence.
struct Computed {
  std::int64_t id = 0;
  std::span<const std::int32_t> tokens;  ///< of the sequence so far
  std::int64_t first = 0;                ///< the position of the first row: it was computed from tokens 0 to `first`
  std::int64_t rows = 0;                 ///< of logits, at `first` and the positions that follow
  std::span<const float> logits;         ///< valid in the call that gets this
};

/// Gets what a step makes.
struct Listener {
  std::function<void(const Drawn& drawn)> drawn;
  std::function<void(const Scored& scored)> scored = {};
  /// Gets all logits, also those of chunks from which no token is drawn.
  std::function<void(const Computed& computed)> computed = {};
};

/// Continues sequences with the programs `prefill`, `decode` and, for prompts that are scored, `score`. Each sequence
/// in work has a slot, a row of `decode`, and pages of the caches for all its tokens, which it gets when it starts:
/// none is ever interrupted. Prompts are read in chunks, each counted from the prompt's start; chunks with which
/// prompts begin alike are read once. All ranks make the same calls with the same requests, and draw the same tokens.
///
/// If the calls of programs overlap (partition::Programs::stages), as many calls are under way as the pipeline has
/// stages, each on another stage: chunks of prompts, and tokens of the groups into which slots are divided. They are
/// launched and completed in one order on all ranks. A rank begins a call as many launches late as there are stages
/// before its own: then the stage before has just sent what it reads. So every stage is as far at the end of step().
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
  /// Whether step() has something to do.
  [[nodiscard]] bool is_busy() const { return requests() > 0 || !under_way_.empty(); }
  /// Starts requests for which there is room, and completes calls up to the first one that adds tokens: the first token
  /// behind a prompt, or a token of each sequence of a group. If no sequence has a token yet, completes one call. Calls
  /// `listener` for each new token, and for each token of a prompt that is scored. What is called next may depend on
  /// the new tokens, so ranks that may have drawn different ones must compare them before the next step.
  void step(const Listener& listener);
  /// Ends all requests. Returns when this rank has done its part of all calls, and other stages have what it sent.
  void stop();

  /// A program, and how often it was called.
  struct Calls {
    std::string_view name;
    std::size_t program = 0;  ///< its number in the executor
    std::int64_t calls = 0;
  };
  /// The programs that were called. REQUIRES: stop() was called, so that each call has sent all that it sends.
  [[nodiscard]] std::vector<Calls> calls() const;

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
    std::int64_t cached = 0;  ///< tokens that were launched, whose keys and values are then in the caches

    /// Whether the prompt has been read: then only the token that was drawn last is not in the caches.
    [[nodiscard]] bool is_read() const { return is_used && tokens.size() > request.prompt.size(); }
  };

  /// What a row of a program reads: tokens of a slot. Copied, because the request may be cancelled before all stages
  /// have read it.
  struct Fed {
    std::size_t slot = 0;
    std::int64_t request = -1;  ///< its number; −1: the row is idle
    std::int64_t first = 0;     ///< the position of the first token
    std::vector<std::int32_t> tokens = {};
    std::vector<std::int32_t> pages = {};
  };

  /// A program and its tensors. A stage of a pipeline may lack inputs.
  struct Program {
    Program(runtime::Executor& executor, std::string_view function, std::int64_t rows);

    std::size_t number;
    std::optional<device::TensorView> inputs;
    std::optional<device::TensorView> positions;
    std::optional<device::TensorView> pages;
    device::TensorView logits;
    std::string_view name;
    std::int64_t calls = 0;
  };

  /// A call of a program.
  struct Launched {
    Program* program = nullptr;
    std::vector<Fed> rows = {};
    std::size_t group = 0;  ///< of slots; of chunks of prompts: none
    bool is_begun = false;  ///< on this rank
  };

  [[nodiscard]] static std::span<const std::int32_t> shareable(const Request& request);
  void admit();
  void release(Slot& slot);
  [[nodiscard]] bool is_prefill(const Launched& call) const { return call.program != &decode_; }
  [[nodiscard]] std::size_t group_of(const Slot& slot) const;
  /// Launches the next call for which there is something to do. Returns whether there is one.
  bool launch_next();
  [[nodiscard]] std::optional<Launched> next_prefill();
  [[nodiscard]] std::optional<Launched> next_decode(std::size_t group);
  void begin(Launched& call);
  /// Completes the call that was launched first. Returns whether it added tokens.
  bool complete(const Listener& listener);
  /// The slot from which a row was read; null if its request has been cancelled.
  [[nodiscard]] Slot* slot_of(const Fed& row);
  /// Takes the logits of a chunk of a prompt. Returns whether that added a token.
  bool take_chunk(const Launched& call, std::span<const float> logits, const Listener& listener);
  void feed(const Program& program, const std::vector<Fed>& rows);
  static void tell(const Slot& slot, std::int64_t first, std::int64_t rows, std::span<const float> logits,
                   const Listener& listener);
  /// Tells the logits of tokens of the prompt that are scored. `logits`: those after each of the row's tokens.
  void score(const Slot& slot, const Fed& row, std::span<const float> logits, const Listener& listener) const;
  void draw(Slot& slot, std::span<const float> logits, const Listener& listener);

  runtime::Executor& executor_;
  std::int64_t chunk_;
  std::int64_t context_;
  Program prefill_;
  std::optional<Program> score_;  ///< reads the prompts that are scored
  Program decode_;
  std::vector<Slot> slots_;
  std::size_t groups_;
  std::size_t stage_;     ///< of this rank, if calls overlap; otherwise 0
  std::size_t most_;      ///< calls that may be under way
  std::size_t turn_ = 0;  ///< what is launched next: 0, a chunk of a prompt; otherwise a token of group turn_ − 1
  std::deque<Launched> under_way_;
  Pages pages_;
  std::deque<Request> waiting_;
  std::int64_t started_ = 0;
  std::int64_t prefilled_ = 0;
  std::int64_t shared_ = 0;
  std::int64_t drawn_ = 0;
};

}  // namespace shardrun::infer
