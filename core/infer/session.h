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
  std::int64_t tokens = 1;           ///< the most tokens to add; 0 is possible only if the prompt is scored
  Sampling sampling = {};
  std::vector<std::int64_t> ends = {};  ///< a sequence ends with any of these tokens
  /// Tokens of the prompt from this index on are scored (Listener::scored); nothing: none is.
  std::optional<std::int64_t> scored_from = {};
};

/// A token of a prompt that is scored.
struct Scored {
  std::int64_t id = 0;
  std::int32_t token = 0;
  std::span<const float> logits;  ///< valid during the call; empty for the first token of a prompt
  bool is_last = false;           ///< whether nothing more is told of the request
};

/// A token that was added to a sequence.
struct Drawn {
  std::int64_t id = 0;
  std::int32_t token = 0;
  std::span<const float> logits;  ///< those from which it was drawn; valid during the call
  bool is_last = false;
  bool is_end = false;  ///< whether the token is one of the request's ends
};

/// Logits that a call has computed for a sequence.
struct Computed {
  std::int64_t id = 0;
  std::span<const std::int32_t> tokens;  ///< the sequence's tokens so far
  std::int64_t first = 0;                ///< position of the first row, which was computed from tokens 0 to `first`
  std::int64_t rows = 0;                 ///< the number of rows of logits, at `first` and the next positions
  std::span<const float> logits;         ///< [rows, vocabulary]; valid during the call
};

/// Functions that step() calls with its results.
struct Listener {
  std::function<void(const Drawn& drawn)> drawn;
  std::function<void(const Scored& scored)> scored = {};
  /// Gets all logits, also those of chunks from which no token is drawn.
  std::function<void(const Computed& computed)> computed = {};
};

/// Continues sequences with the programs `prefill`, `decode` and, for prompts that are scored, `score`. When a sequence
/// starts, it gets a slot, which is a row of `decode`, and pages of the caches for all its tokens. So no sequence is
/// ever interrupted. Prompts are read in chunks. Chunks with which several prompts begin are read once. All ranks make
/// the same calls with the same requests, and draw the same tokens.
///
/// If the calls of programs overlap (partition::Programs::stages), as many calls are under way as the pipeline has
/// stages, each on another stage. A call reads a chunk of a prompt, or a token of each sequence in a group of slots.
/// All ranks launch and complete calls in the same order. A rank on stage s begins a call s launches later, when the
/// stage before has just sent what the call reads. At the end of step(), all ranks have completed the same calls.
class Session {
 public:
  /// `caches`, `made`: the sizes with which the programs were made. `context`: the most tokens that a prompt and its
  /// answer have together. The executor must outlive this object.
  Session(runtime::Executor& executor, const sdk::CacheSizes& caches, const workload::DecodingSettings& made,
          std::int64_t context);

  /// Adds a request behind those that wait. It gets fewer tokens if the context ends before. REQUIRES: its prompt is
  /// shorter than the context, or as long if no token is to be added; `made.scores_prompts` was set if it is scored.
  void add(Request request);
  /// Ends the requests with this id, which then get no more tokens.
  void cancel(std::int64_t id);

  /// The number of requests that wait or are in work.
  [[nodiscard]] std::int64_t requests() const;
  /// Whether step() has something to do.
  [[nodiscard]] bool is_busy() const { return requests() > 0 || !under_way_.empty(); }
  /// Starts requests for which there is room, and completes calls up to the first one that adds tokens. Such a call
  /// adds the first token after a prompt, or a token to each sequence of a group. If no sequence has an added token
  /// yet, completes only one call. Calls `listener` with the results. The next calls depend on the new tokens, so ranks
  /// that could have drawn different ones must compare them before the next step.
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

  /// prefilled() counts tokens of prompts that were read, shared() those that were not, because another prompt with the
  /// same beginning had been read, and drawn() the tokens that were drawn.
  [[nodiscard]] std::int64_t prefilled() const noexcept { return prefilled_; }
  [[nodiscard]] std::int64_t shared() const noexcept { return shared_; }
  [[nodiscard]] std::int64_t drawn() const noexcept { return drawn_; }

 private:
  struct Slot {
    bool is_used = false;
    Request request = {};
    std::int64_t number = 0;                ///< the request's number, in the order in which requests start
    std::vector<std::int32_t> tokens = {};  ///< the prompt, then tokens that were added
    Pages::Held held = {};
    std::int64_t cached = 0;  ///< tokens whose calls were launched; later calls find them in the caches

    /// Whether the prompt has been read. Then only the token that was drawn last is not in the caches.
    [[nodiscard]] bool is_read() const { return is_used && tokens.size() > request.prompt.size(); }
  };

  /// The tokens of a slot that a row of a program reads. They are copied, because the request can be cancelled before
  /// all stages have read them.
  struct Fed {
    std::size_t slot = 0;
    std::int64_t request = -1;  ///< Slot::number; −1: the row is idle
    std::int64_t first = 0;     ///< the position of the first token
    std::vector<std::int32_t> tokens = {};
    std::vector<std::int32_t> pages = {};
  };

  /// A program and its tensors. Some stages of a pipeline lack inputs.
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
    std::size_t group = 0;  ///< the group of slots of a call of `decode`
    bool is_begun = false;  ///< whether this rank has begun the call
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
  /// Takes the logits of a chunk of a prompt. Returns whether a token was drawn from them.
  bool take_chunk(const Launched& call, std::span<const float> logits, const Listener& listener);
  void feed(const Program& program, const std::vector<Fed>& rows);
  static void tell(const Slot& slot, std::int64_t first, std::int64_t rows, std::span<const float> logits,
                   const Listener& listener);
  /// Tells the listener the scored tokens that follow the row's tokens. `logits`: those after each of the row's tokens.
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
  std::size_t stage_;     ///< the stage of this rank if calls overlap; otherwise 0
  std::size_t most_;      ///< the most calls that are under way at once
  std::size_t turn_ = 0;  ///< what to launch next; 0: a chunk of a prompt; otherwise tokens of group turn_ − 1
  std::deque<Launched> under_way_;
  Pages pages_;
  std::deque<Request> waiting_;
  std::int64_t started_ = 0;
  std::int64_t prefilled_ = 0;
  std::int64_t shared_ = 0;
  std::int64_t drawn_ = 0;
};

}  // namespace shardrun::infer
