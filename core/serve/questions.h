#pragma once

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/infer/prompts.h"

namespace shardrun::serve {

// OpenAI's interface: requests as clients send them.

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

}  // namespace shardrun::serve
