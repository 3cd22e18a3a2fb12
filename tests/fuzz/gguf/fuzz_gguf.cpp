// Any bytes as a GGUF file. Nothing but shardrun::Error may come out. The tensors of a file that is accepted lie in it,
// and a tokenizer that it has encodes a text to tokens of its vocabulary.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/files/gguf.h"
#include "core/text/bpe_tokenizer.h"
#include "core/text/gguf_tokenizer.h"

using namespace shardrun;

namespace {

void require_sound_gguf(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
  }
}

void use_gguf(const files::GgufContents& contents, std::size_t size) {
  for (const files::GgufTensor& tensor : contents.tensors) {
    const files::GgufBlock& block = files::block_of(tensor.type);
    const auto elements = static_cast<std::uint64_t>(files::elements_of(tensor));
    require_sound_gguf(elements % block.elements == 0, "half a block");
    require_sound_gguf(tensor.offset <= size && elements / block.elements * block.bytes <= size - tensor.offset,
                       "a tensor past the end");
  }
  static_cast<void>(text::gguf_chat(contents, "fuzz.gguf"));
  const text::BpeTokenizer tokenizer =
      text::BpeTokenizer::from_json(text::gguf_tokenizer_json(contents, "fuzz.gguf"), "'fuzz.gguf'");
  std::vector<std::int32_t> tokens;
  text::BpeEncoder(tokenizer).encode("ab the\xE2\x96\x81  aa 12", tokens);
  for (const std::int32_t token : tokens) {
    require_sound_gguf(token >= 0 && token < tokenizer.vocabulary(), "a token past the vocabulary");
  }
  static_cast<void>(tokenizer.decode(tokens));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto read = [&](std::size_t offset, std::span<std::byte> to) {
    require_sound_gguf(offset <= size && to.size() <= size - offset, "a read past the end");
    std::memcpy(to.data(), data + offset, to.size());
  };
  try {
    use_gguf(files::parse_gguf(size, read, "fuzz.gguf"), size);
  } catch (const Error& error) {
    const std::string& message = error.message();
    require_sound_gguf(message.find("fuzz.gguf") != std::string::npos || message.find("byte") != std::string::npos,
                       "a message does not name the file");
  }
  return 0;
}
