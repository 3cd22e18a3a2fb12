#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/tokenizer.h"
#include "core/infer/session.h"
#include "core/template/chat.h"

namespace shardrun::infer {

/// How texts become tokens of a model, and tokens become text.
class Language {
 public:
  /// `model`: the folder of Hugging Face's libraries, or the GGUF file, that holds chat templates and special tokens;
  /// empty: there is none. Throws Error{data}.
  Language(std::optional<data::Tokenizer> tokenizer, const std::filesystem::path& model);

  /// Null if there is none. The texts of prompts are then numbers of tokens, such as "17 4 250".
  [[nodiscard]] const data::Tokenizer* tokenizer() const noexcept { return tokenizer_ ? &*tokenizer_ : nullptr; }
  /// Whether conversations can become a prompt.
  [[nodiscard]] bool has_chat() const noexcept { return format_ && tokenizer_; }
  /// The tokens of a whole text, including those that the tokenizer puts around texts. An empty text becomes the token
  /// with which texts begin. Throws Error{data}.
  [[nodiscard]] std::vector<std::int32_t> encode(const std::string& text) const;
  /// The same, but without the tokens that the tokenizer puts after texts, so that another text can follow. If no token
  /// is left, the model's BOS token or, without one, its EOS token.
  [[nodiscard]] std::vector<std::int32_t> encode_beginning(const std::string& text) const;
  /// The tokens of a conversation, by the model's chat template. REQUIRES: has_chat(). Throws Error{data}.
  [[nodiscard]] std::vector<std::int32_t> encode(const templates::Conversation& conversation) const;
  /// The text of tokens, or their numbers if there is no tokenizer. Throws Error{data} for a token outside of the
  /// vocabulary.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const;
  /// The tokens with which an answer ends, by the model's files; empty without these files.
  [[nodiscard]] std::vector<std::int64_t> ends() const;

 private:
  /// The tokens that precede and follow a text.
  struct Around {
    std::vector<std::int32_t> before;
    std::vector<std::int32_t> behind;
  };
  [[nodiscard]] Around around() const;

  std::optional<data::Tokenizer> tokenizer_;
  std::optional<templates::ChatFormat> format_;
};

/// The most tokens whose probabilities are told at each token of an answer.
inline constexpr std::int64_t most_top_logprobs = 20;

/// The longest line of a file of prompts, in bytes. A line takes about ten times as much memory while it is read.
inline constexpr std::size_t most_line_bytes = std::size_t{16} << 20U;

/// A line of a file of prompts.
struct Prompt {
  Request request;
  std::string id;                  ///< JSON of `id`, a text or an integer; empty: none
  std::vector<std::string> stops;  ///< texts before which the answer ends
  bool echo = false;               ///< whether the prompt precedes the answer
  bool logprobs = false;           ///< whether the logarithm of each token's probability is told
  bool timings = false;            ///< whether the answer tells how long it took ([infer] timings)
  std::int64_t top_logprobs = 0;   ///< how many of the likeliest tokens are told at each token
};

/// Reads a JSON object with one of `prompt` (a text, or a list of tokens) and `messages` (as in read_messages()), and
/// any of max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty, seed,
/// stop (a text or a list), echo, logprobs, top_logprobs, prompt_logprobs (true, or the number of the first token),
/// ignore_eos, id. `usual`: the settings for keys that are missing. Throws Error{data} with the key that is wrong.
[[nodiscard]] Prompt read_prompt(std::string_view line, const Language& language, const Request& usual);

/// Why a prompt leaves no room for an answer in a context of so many tokens, and what to do; "" if it leaves some.
[[nodiscard]] std::string lack_of_room(const Request& request, std::int64_t context);

/// The line of a prompt with the request's tokens in place of `prompt` or `messages`, with its `max_tokens`, and with
/// its `id` if it has one.
[[nodiscard]] std::string with_tokens(std::string_view line, const Prompt& prompt);

/// The JSON of ID, if the line is {"cancel": ID}; nothing if it has no `cancel`. Throws Error{data}.
[[nodiscard]] std::optional<std::string> read_cancel(std::string_view line);
/// The JSON of the line's `id` or `cancel`; "" if it has neither, and "null" if it cannot be read.
[[nodiscard]] std::string id_of_line(std::string_view line) noexcept;

/// An event about a line that is not answered: {"id":…,"error":{"message":…,"code":…}}. `id`: JSON.
[[nodiscard]] std::string error_event(std::string_view id, std::string_view message, std::string_view code);

/// The text of an answer while its tokens are drawn.
class Answer {
 public:
  /// `language` must outlive this object.
  Answer(const Language& language, Prompt prompt);

  /// Takes a token of the prompt that is scored.
  void take_scored(const Scored& scored);
  /// Takes a token that was drawn. Returns the text that is certain by now and was not returned before. A text that can
  /// begin a stop, and bytes of an incomplete character, are held back. is_stopped() is true once a stop was found.
  std::string take(const Drawn& drawn);
  [[nodiscard]] bool is_stopped() const noexcept { return is_stopped_; }
  /// The answer as a JSON object, once it is complete. `line`: the number of the prompt's line.
  [[nodiscard]] std::string to_json(std::int64_t line) const;
  /// Returns an event, one line of JSON, with `text` (from take()) and the tokens and scores since the last event. If
  /// there are more than 1024 scores, further lines precede it, because readers bound a line's length. `reason`: why
  /// the answer ends ("cancelled", or finish_reason()); nothing: it goes on. REQUIRES: the prompt has an id.
  [[nodiscard]] std::string event(std::string_view text, std::optional<std::string_view> reason);
  /// JSON of the prompt's id.
  [[nodiscard]] const std::string& id() const noexcept { return prompt_.id; }
  /// "stop" or "length".
  [[nodiscard]] std::string_view finish_reason() const noexcept {
    return has_ended_ || is_stopped_ ? "stop" : "length";
  }

 private:
  [[nodiscard]] std::string text_of(std::int32_t token);
  /// Adds what to_json() and event() tell of the answer's tokens from index `first` on.
  void add_tokens(boost::json::object& json, std::size_t first) const;
  /// Adds the scores of_prompt_[first] to of_prompt_[end - 1], with the likeliest tokens if they were asked for.
  void add_scores(boost::json::object& json, std::size_t first, std::size_t end) const;
  void add_timings(boost::json::object& json) const;
  /// Moves the text that can no longer be part of a stop from `held_` to the answer, and returns it.
  std::string release(bool is_last);

  Prompt prompt_;
  std::optional<data::Decoder> decoder_;
  std::string text_;    ///< the text of the answer that is certain
  std::string echoed_;  ///< the prompt, until take() returns it
  std::string held_;
  std::vector<std::int32_t> tokens_;
  std::vector<double> log_probabilities_;
  std::vector<std::optional<double>> of_prompt_;  ///< log probabilities of tokens of the prompt; none for its first
  std::vector<Likely> likely_of_prompt_;          ///< top_logprobs of the same tokens
  std::vector<Likely> likely_;                    ///< top_logprobs of each token
  std::size_t told_ = 0;                          ///< how many tokens events have told
  std::size_t told_of_prompt_ = 0;                ///< how many scores events have told
  bool is_stopped_ = false;
  bool has_ended_ = false;
  using Time = std::chrono::steady_clock::time_point;
  Time begin_ = std::chrono::steady_clock::now();
  Time first_;  ///< when the first token was drawn
  Time last_;
};

}  // namespace shardrun::infer
