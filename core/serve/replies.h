#pragma once

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/infer/sampling.h"
#include "core/serve/dispatcher.h"
#include "core/serve/questions.h"

namespace shardrun::serve {

// This header makes answers of OpenAI's interface, as clients expect them.

/// {"error":{"message":…,"type":…,"param":…,"code":…}}
[[nodiscard]] std::string error_json(const Refusal& refusal);

/// What a client is sent for its question: one object, or events.
class Reply {
 public:
  /// `id`: the response's id. `created`: seconds since 1970. `question` and `model` must outlive this object.
  Reply(const Question& question, const ServedModel& model, std::string id, std::int64_t created);

  /// The number of answers.
  [[nodiscard]] std::size_t choices() const noexcept { return choices_.size(); }
  /// Adds a piece to an answer. Returns the data of its events; none unless the question streams.
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
    std::size_t told = 0;    ///< number of characters of text before the next logprobs
    std::size_t scored = 0;  ///< number of tokens of the prompt whose logprobs were added
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
