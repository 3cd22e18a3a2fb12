// Reads one line as a tokenizer.json, and the rest as a text. Nothing but shardrun::Error may be thrown. A tokenizer
// that is accepted is the same when it is written and read again. It encodes the text to tokens of its vocabulary, the
// same each time, and decodes all of them, at once and one by one.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/text/bpe_tokenizer.h"

using namespace shardrun;

namespace {

void require_sound_tokens(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
  }
}

std::optional<std::vector<std::int32_t>> tokens_of(text::BpeEncoder& encoder, std::string_view text) {
  std::vector<std::int32_t> tokens;
  try {
    encoder.encode(text, tokens);
  } catch (const Error&) {
    return std::nullopt;
  }
  return tokens;
}

void use_tokenizer(const text::BpeTokenizer& tokenizer, std::string_view text) {
  require_sound_tokens(text::BpeTokenizer::from_json(tokenizer.json(), "copy").json() == tokenizer.json(),
                       "another copy");
  text::BpeEncoder encoder(tokenizer);
  const std::optional<std::vector<std::int32_t>> tokens = tokens_of(encoder, text);
  require_sound_tokens(tokens == tokens_of(encoder, text), "other tokens the second time");
  if (!tokens) {
    return;
  }
  for (const std::int32_t token : *tokens) {
    require_sound_tokens(token >= 0 && token < tokenizer.vocabulary(), "a token past the vocabulary");
  }
  text::BpeDecoder decoder(tokenizer);
  std::string streamed;
  for (const std::int32_t token : *tokens) {
    decoder.decode(token, streamed);
  }
  decoder.finish(streamed);
  require_sound_tokens(streamed == tokenizer.decode(*tokens), "another text one by one");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view json = input.substr(0, input.find('\n'));
  std::optional<text::BpeTokenizer> tokenizer;
  try {
    tokenizer = text::BpeTokenizer::from_json(json, "fuzz.json");
  } catch (const Error& error) {
    require_sound_tokens(error.message().find("fuzz.json") != std::string::npos, "a message does not name the file");
    return 0;
  }
  use_tokenizer(*tokenizer, json.size() < input.size() ? input.substr(json.size() + 1) : std::string_view());
  return 0;
}
