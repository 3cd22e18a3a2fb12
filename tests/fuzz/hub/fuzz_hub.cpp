// Reads any files as a model folder of Hugging Face's libraries. Each line of the input has the name of a file, a
// blank, and the file. For a safetensors file it has the name, the number of bytes of data (which are zeros), and the
// header. Nothing but shardrun::Error may be thrown; it names the folder, in at most 6,000 bytes. Every tensor of an
// accepted folder can be read, and a conversation in messages.json can be read and rendered.

#include <boost/json.hpp>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/checkpoint/given_weights.h"
#include "core/checkpoint/hub_folder.h"
#include "core/compile/model.h"
#include "core/template/chat.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;

namespace {

void require_sound_folder(bool holds, const std::string& what) {
  if (!holds) {
    std::fprintf(stderr, "%s\n", what.c_str());
    std::abort();
  }
}

bool is_file_name(std::string_view name) {
  for (const char* known : {"config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
                            "tokenizer.json", "chat_template.jinja", "messages.json", "model.safetensors",
                            "model.safetensors.index.json", "1.safetensors", "2.safetensors"}) {
    if (name == known) {
      return true;
    }
  }
  return false;
}

/// The bytes of a safetensors file. `line`: the number of bytes of data, a blank, and the header.
std::string safetensors_file(std::string_view line) {
  constexpr std::size_t most = 1U << 20U;
  std::size_t zeros = 0;
  const auto [rest, fault] = std::from_chars(line.data(), line.data() + line.size(), zeros);
  line.remove_prefix(static_cast<std::size_t>(rest - line.data()));
  line.remove_prefix(line.starts_with(' ') ? 1 : 0);
  std::string file;
  for (std::size_t i = 0; i < 8; ++i) {
    file += static_cast<char>(line.size() >> (8 * i));
  }
  return file.append(line).append(fault == std::errc() ? std::min(zeros, most) : 0, '\0');
}

void write_files(const std::filesystem::path& folder, std::string_view input) {
  while (!input.empty()) {
    const std::string_view line = input.substr(0, input.find('\n'));
    input.remove_prefix(std::min(line.size() + 1, input.size()));
    const std::size_t blank = std::min(line.find(' '), line.size());
    const std::string_view name = line.substr(0, blank);
    const std::string_view content = line.substr(std::min(blank + 1, line.size()));
    if (is_file_name(name)) {
      test::write_file(folder / name, name.ends_with(".safetensors") ? safetensors_file(content) : content);
    }
  }
}

/// Calls `use`. Its errors must be shardrun's, and name the folder or one of its files.
void try_folder(const std::filesystem::path& folder, const std::function<void()>& use) {
  try {
    use();
  } catch (const Error& error) {
    require_sound_folder(error.message().find(folder.filename().native()) != std::string::npos,
                         "a message does not name the folder: " + error.message());
    require_sound_folder(error.message().size() < 6000, "a message without end: " + error.message());
  }
}

void read_all(const checkpoint::TensorSource& source) {
  std::vector<float> values;
  for (std::size_t i = 0; i < source.tensors.size(); ++i) {
    const checkpoint::TensorInfo& info = source.tensors[i];
    values.resize(*checkpoint::tensor_bytes(info) / element_bytes(info.dtype));
    checkpoint::read_any_as_float(source, i, 0, values);
  }
}

void use_model(const std::filesystem::path& folder) {
  static const workload::Models models = compile::models_in({SHARDRUN_MODELS});
  const checkpoint::HubFolder hub(folder, models);
  read_all(hub.source());
  static_cast<void>(hub.understood_keys());
  static_cast<void>(hub.config(checkpoint::DType::bf16));
  static_cast<void>(hub.fingerprint());
}

void use_chat(const std::filesystem::path& folder) {
  const templates::ChatFormat format = templates::read_chat_format(folder);
  templates::Conversation conversation;
  conversation.messages = std::filesystem::exists(folder / "messages.json")
                              ? templates::read_messages(folder / "messages.json")
                              : boost::json::array{{{"role", "user"}, {"content", "Hi"}}};
  if (!format.templates.empty()) {
    static_cast<void>(templates::render_chat(format, conversation, format.templates[0].name));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const test::TemporaryFolder folder;
  write_files(folder.path(), std::string_view(reinterpret_cast<const char*>(data), size));
  try_folder(folder.path(), [&] { use_model(folder.path()); });
  try_folder(folder.path(), [&] { use_chat(folder.path()); });
  return 0;
}
