// Reads any bytes as a GGUF file. Nothing but shardrun::Error may be thrown. The tensors of an accepted file lie within
// it, and its tokenizer, if there is one, encodes a text to tokens of its vocabulary. If the file describes a known
// model, all of its tensors can be read.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/checkpoint/hub_folder.h"
#include "core/compile/model.h"
#include "core/files/gguf.h"
#include "core/template/chat.h"
#include "core/text/bpe_tokenizer.h"
#include "core/text/gguf_tokenizer.h"
#include "tests/support/temporary_folder.h"

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

void use_gguf_model(const std::filesystem::path& file) {
  static const workload::Models models = compile::models_in({SHARDRUN_MODELS});
  const checkpoint::HubFolder model(file, models);
  std::vector<float> values;
  for (std::size_t i = 0; i < model.source().tensors.size(); ++i) {
    const checkpoint::TensorInfo& info = model.source().tensors[i];
    values.resize(*checkpoint::tensor_bytes(info) / element_bytes(info.dtype));
    checkpoint::read_any_as_float(model.source(), i, 0, values);
  }
  static_cast<void>(model.understood_keys());
  static_cast<void>(model.config(checkpoint::DType::f32));
}

/// Calls `use`. Its errors must be shardrun's, and name the file, unless they are about the text that is encoded.
void try_gguf(const std::function<void()>& use) {
  try {
    use();
  } catch (const Error& error) {
    const std::string& message = error.message();
    if (message.find("fuzz.gguf") == std::string::npos && message.find("the tokenizer has no token for") != 0) {
      std::fprintf(stderr, "%s\n", message.c_str());
      require_sound_gguf(false, "a message does not name the file");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto read = [&](std::size_t offset, std::span<std::byte> to) {
    require_sound_gguf(offset <= size && to.size() <= size - offset, "a read past the end");
    std::memcpy(to.data(), data + offset, to.size());
  };
  try_gguf([&] { use_gguf(files::parse_gguf(size, read, "fuzz.gguf"), size); });
  const test::TemporaryFolder folder;
  test::write_file(folder / "fuzz.gguf", std::string_view(reinterpret_cast<const char*>(data), size));
  try_gguf([&] { use_gguf_model(folder / "fuzz.gguf"); });
  try_gguf([&] { static_cast<void>(templates::read_chat_format(folder / "fuzz.gguf")); });
  return 0;
}
