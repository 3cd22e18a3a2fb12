#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/infer/prompts.h"
#include "core/serve/dispatcher.h"

namespace shardrun::serve {

// OpenAI's interface: requests as clients send them, and answers as clients expect them.

/// The model, as requests see it.
struct ServedModel {
  std::string name;
  const infer::Language* language = nullptr;
  std::int64_t context = 0;      ///< the most tokens of a prompt and its answer
  std::int64_t vocabulary = 0;   ///< the number of its tokens
  bool scores_prompts = false;   ///< prompts can have logprobs
  std::size_t most_prompts = 0;  ///< of a request, counted once for each answer
};

/// Why a request is refused. Thrown in this folder alone.
struct Refusal {
  int status = 400;
  std::string message;
  std::string param = {};  ///< the field of the request
  std::string code = {};
};

/// {"error":{"message":…,"type":…,"param":…,"code":…}}
[[nodiscard]] std::string error_json(const Refusal& refusal);

/// A request for chat completions or completions, checked.
struct Question {
  bool is_chat = false;
  bool streams = false;
  bool includes_usage = false;  ///< a stream ends with the numbers of tokens
  bool logprobs = false;
  bool echoes = false;                             ///< prompts precede their answers, and have logprobs if answers do
  std::int64_t n = 1;                              ///< answers to each prompt
  std::vector<std::vector<std::int32_t>> prompts;  ///< tokens
  std::vector<std::string> echoed = {};            ///< the text of each prompt, if it echoes
  boost::json::object settings = {};               ///< keys of a prompt's line
  std::vector<std::string> unknown = {};           ///< fields that have no effect
};

/// Reads the body of a request. Throws Refusal.
[[nodiscard]] Question read_question(bool is_chat, std::string_view body, const ServedModel& model);

/// The line of an answer to a prompt, without an id. `choice`: counted over all prompts and their answers. `random`:
/// the seed if the request has none.
[[nodiscard]] boost::json::object line_of(const Question& question, std::size_t choice, std::uint64_t random);

/// Answers /tokenize and /detokenize. Throw Refusal.
[[nodiscard]] std::string tokenize(std::string_view body, const ServedModel& model);
[[nodiscard]] std::string detokenize(std::string_view body, const ServedModel& model);

/// What a client is sent for its question: one object, or events.
class Reply {
 public:
  /// `id`: of the response. `created`: seconds since 1970. The references outlive this object.
  Reply(const Question& question, const ServedModel& model, std::string id, std::int64_t created);

  /// The number of answers.
  [[nodiscard]] std::size_t choices() const noexcept { return choices_.size(); }
  /// Adds to an answer. Returns the data of the events for it.
  [[nodiscard]] std::vector<std::string> add(std::size_t choice, const Piece& piece);
  [[nodiscard]] bool is_complete() const noexcept { return complete_ == choices_.size(); }
  /// The data of the last events of a stream: usage, if it was asked for, and [DONE].
  [[nodiscard]] std::vector<std::string> end() const;
  /// The whole response.
  [[nodiscard]] std::string whole() const;

  [[nodiscard]] std::int64_t prompt_tokens() const noexcept { return prompt_tokens_; }
  [[nodiscard]] std::int64_t answer_tokens() const noexcept { return answer_tokens_; }

 private:
  struct Choice {
    std::string text;
    std::string finish_reason;
    std::size_t told = 0;  ///< characters of text before the logprobs that are made next
    bool has_begun = false;
    boost::json::array content = {};  ///< logprobs
  };

  [[nodiscard]] boost::json::object head(std::string_view object) const;
  [[nodiscard]] boost::json::object entry_of(std::int32_t token, std::optional<double> logprob,
                                             const infer::Likely* likely) const;
  [[nodiscard]] boost::json::array logprobs_of(std::size_t choice, const Piece& piece) const;
  [[nodiscard]] boost::json::value shown(const boost::json::array& content, std::size_t offset) const;
  [[nodiscard]] std::string text_of(std::int32_t token) const;
  [[nodiscard]] std::string chunk(std::size_t choice, boost::json::object change, boost::json::value logprobs,
                                  boost::json::value finish_reason) const;
  [[nodiscard]] boost::json::object usage() const;

  const Question& question_;
  const ServedModel& model_;
  std::string id_;
  std::int64_t created_;
  std::vector<std::int64_t> ends_;
  std::vector<Choice> choices_;
  std::size_t complete_ = 0;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t answer_tokens_ = 0;
};

}  // namespace shardrun::serve
