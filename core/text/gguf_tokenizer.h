#pragma once

#include <string>
#include <string_view>

#include "core/files/gguf.h"

namespace shardrun::text {

/// Converts the tokenizer of a GGUF file to the text of a tokenizer.json. `source` names the file in messages. Throws
/// Error{data} if the tokenizer's model, or its way to cut text into words, is not known, or if its data is invalid.
[[nodiscard]] std::string gguf_tokenizer_json(const files::GgufContents& gguf, std::string_view source);

/// The metadata of a GGUF file that concerns conversations. A text is empty if the file does not have it.
struct GgufChat {
  std::string chat_template;
  std::string bos;  ///< the token before a text
  std::string eos;  ///< the token after a text
  std::string eot;  ///< the token that ends a turn
};

/// Reads the metadata. Throws Error{data} for a token id outside of the vocabulary.
[[nodiscard]] GgufChat gguf_chat(const files::GgufContents& gguf, std::string_view source);

}  // namespace shardrun::text
