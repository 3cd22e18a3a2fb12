#pragma once

#include <string>
#include <string_view>

#include "core/files/gguf.h"

namespace shardrun::text {

/// The tokenizer of a GGUF file as a tokenizer.json. `source` names the file in messages. Throws Error{data} for a
/// model, or a way to cut text into words, that is not known.
[[nodiscard]] std::string gguf_tokenizer_json(const files::GgufContents& gguf, std::string_view source);

/// What a GGUF file says of conversations. Empty: it does not say it.
struct GgufChat {
  std::string chat_template;
  std::string bos;  ///< the token before a text
  std::string eos;  ///< and behind it
  std::string eot;  ///< ends a turn
};

/// Throws Error{data} for a token past the vocabulary.
[[nodiscard]] GgufChat gguf_chat(const files::GgufContents& gguf, std::string_view source);

}  // namespace shardrun::text
