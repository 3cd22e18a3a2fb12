// Reads any bytes as a safetensors file, and any bytes as its header. Nothing but shardrun::Error may be thrown, with a
// message of one line and at most 2,000 bytes. The tensors of an accepted file follow each other up to the file's end,
// and the file has the same tensors when it is written and read again.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/checkpoint/safetensors.h"

using namespace shardrun;

namespace {

void require_sound_file(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
  }
}

void read_file_bytes(std::span<const std::byte> file) {
  checkpoint::SafetensorsContents contents;
  try {
    contents = checkpoint::parse_safetensors(file, "fuzz.st");
  } catch (const Error& error) {
    const std::string& message = error.message();
    require_sound_file(message.find("fuzz.st") != std::string::npos, "a message does not name the file");
    require_sound_file(message.size() < 2000 && message.find('\n') == std::string::npos, "a message is not a line");
    return;
  }
  std::size_t end =
      contents.tensors.empty() ? file.size() : static_cast<std::size_t>(contents.tensors[0].bytes.data() - file.data());
  std::vector<checkpoint::TensorInfo> infos;
  for (const checkpoint::Tensor& tensor : contents.tensors) {
    require_sound_file(tensor.bytes.data() == file.data() + end, "a gap before a tensor");
    require_sound_file(checkpoint::tensor_bytes(tensor.info) == tensor.bytes.size(), "a tensor of another size");
    end += tensor.bytes.size();
    infos.push_back(tensor.info);
  }
  require_sound_file(end == file.size(), "bytes behind the last tensor");
  const checkpoint::TensorFileLayout layout = checkpoint::lay_out(infos, contents.metadata);
  std::vector<std::byte> again(static_cast<std::size_t>(layout.file_bytes));
  std::ranges::copy(std::as_bytes(std::span(layout.header)), again.begin());
  const checkpoint::SafetensorsContents copy = checkpoint::parse_safetensors(again, "copy.st");
  require_sound_file(copy.metadata == contents.metadata && copy.tensors.size() == infos.size(), "another copy");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  read_file_bytes(bytes);
  // The input as the header of files with 0, 4 and 12 bytes of data.
  std::vector<std::byte> framed(8);
  for (std::size_t i = 0; i < framed.size(); ++i) {
    framed[i] = static_cast<std::byte>(size >> (8 * i));
  }
  framed.insert(framed.end(), bytes.begin(), bytes.end());
  for (const std::size_t more : {0U, 4U, 12U}) {
    framed.resize(8 + size + more);
    read_file_bytes(framed);
  }
  return 0;
}
